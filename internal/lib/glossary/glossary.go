package glossary

import (
	"fmt"
	"strings"
)

// Section is a group of related terms, one table of the document.
type Section struct {
	Title string
	Terms []Term
}

// Term is one word with one meaning. The other fields name the closest term of another
// system; an empty field means that the system has none.
type Term struct {
	Word    string
	Meaning string

	Slurm      string
	Kubernetes string
	Nomad      string
	Temporal   string
	Other      string // the term of any other system, with the system's name
}

// Document renders the glossary as Markdown. docs/glossary.md must equal the result; a
// test compares both.
func Document() string {
	var b strings.Builder
	b.WriteString("# Glossary\n" +
		"The terms of Berth's code, API and documents, each with one meaning. The third column names the closest\n" +
		"term of another system; a dash means that Slurm, Kubernetes, Nomad and Temporal have none. Generated from\n" +
		"`internal/lib/glossary` by `make generate`.\n")
	for _, s := range Terms {
		fmt.Fprintf(&b, "\n## %s\n| term | meaning | elsewhere |\n| --- | --- | --- |\n", s.Title)
		for _, t := range s.Terms {
			fmt.Fprintf(&b, "| %s | %s | %s |\n", t.Word, t.Meaning, t.elsewhere())
		}
	}
	b.WriteString("\n## Retired words\nThese words name nothing new: not in code, not in documents.\n\n" +
		"| retired | use |\n| --- | --- |\n")
	for _, r := range RetiredWords {
		fmt.Fprintf(&b, "| %s | %s |\n", strings.Join(r.Words, ", "), r.Use)
	}
	return b.String()
}

// elsewhere renders the closest terms of other systems, or a dash.
func (t Term) elsewhere() string {
	var list []string
	add := func(system, term string) {
		if term != "" {
			list = append(list, system+term)
		}
	}
	add("Slurm: ", t.Slurm)
	add("Kubernetes: ", t.Kubernetes)
	add("Nomad: ", t.Nomad)
	add("Temporal: ", t.Temporal)
	add("", t.Other)
	if len(list) == 0 {
		return "-"
	}
	return strings.Join(list, "; ")
}
