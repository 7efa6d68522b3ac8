package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"berth/internal/lib/golden"
)

const cliDocument = "../../docs/reference/cli.md"

// docs/reference/cli.md is made from the commands themselves, so it cannot lag behind.
func TestTheDocumentIsTheCommands(t *testing.T) {
	t.Parallel()
	want := document()
	golden.Check(t, cliDocument, want)
}

func TestEveryCommandSaysWhatItDoes(t *testing.T) {
	t.Parallel()
	eachCommand(newRoot(&app{}), func(c *cobra.Command) {
		if c.Short == "" || strings.HasSuffix(c.Short, ".") {
			t.Errorf("%s: %q is no short description", c.CommandPath(), c.Short)
		}
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Usage == "" {
				t.Errorf("%s --%s is not described", c.CommandPath(), f.Name)
			}
		})
	})
}

// document writes the reference of all commands.
func document() string {
	var b bytes.Buffer
	root := newRoot(&app{})
	b.WriteString("# The command line\n")
	b.WriteString("Made from the program by `go test ./cmd/berth -run Document -update`. Job files are described in [job-file.md](../guide/job-file.md).\n\n")
	b.WriteString("## Whom it speaks to\n")
	b.WriteString("`--url` or `BERTH_URL`, else the context of `--context` or `BERTH_CONTEXT`, else the current context of\n" +
		"`~/.config/berth/config.yaml` (`BERTH_CONFIG`), else `" + defaultURL + "`. The token is `BERTH_TOKEN`, else the one\n" +
		"stored by `berth login` for that very server; it is never sent to another one.\n\n")
	b.WriteString("## Naming a job\n")
	b.WriteString("`JOB` is a handle (the end of an id as `berth list` shows it, six characters or more), an id, the beginning of\n" +
		"an id (four characters or more) or a name. A handle or beginning of several jobs is refused with the candidates. A name means the\n" +
		"latest job of that name; if there are several, that is said on standard error. Behind each, `[3]` is an element of an array and `.fit` a step of\n" +
		"a pipeline: `sweep[3]`, `nightly.train.fit`, `nightly.tune[7]`.\n\n")
	b.WriteString("## Output\n")
	b.WriteString("`-o table` (for people), `wide` (the same with more columns and whole ids), `json` and `yaml` (the API's own\n" +
		"documents, times in UTC), `name` (ids alone, for scripts). Results go to standard output, everything said about them to\n" +
		"standard error, so `id=$(berth submit job.yaml)` works. Colour is used on a terminal only, and never with `NO_COLOR`.\n" +
		"With `-o json`, `logs` and `events -f` print a document a line.\n\n")
	b.WriteString("## Exit codes\n| code | means |\n| --- | --- |\n")
	for _, e := range exitCodes {
		fmt.Fprintf(&b, "| %d | %s |\n", e.code, e.meaning)
	}
	for _, g := range root.Groups() {
		fmt.Fprintf(&b, "\n## %s\n", strings.TrimSuffix(g.Title, ":"))
		for _, c := range root.Commands() {
			if c.GroupID == g.ID {
				eachCommand(c, func(c *cobra.Command) { describe(&b, c) })
			}
		}
	}
	fmt.Fprintf(&b, "\n### berth completion\nWrite the completion of a shell: `source <(berth completion bash)`; also `zsh`, `fish` and `powershell`.\nJob ids, job names, machines, contexts and statuses are completed.\n")
	return b.String()
}

func describe(b *bytes.Buffer, c *cobra.Command) {
	if c.HasSubCommands() || c.Name() == "help" {
		return
	}
	fmt.Fprintf(b, "\n### %s\n", c.CommandPath())
	text := c.Long
	if text == "" {
		text = c.Short + "."
	}
	fmt.Fprintf(b, "%s\n\n```\n%s\n```\n", text, strings.TrimSuffix(c.UseLine(), " [flags]"))
	var flags []string
	c.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
		if f.Name == "help" || f.Hidden {
			return
		}
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		flags = append(flags, fmt.Sprintf("| `%s` | %s |", name, f.Usage))
	})
	if len(flags) > 0 {
		fmt.Fprintf(b, "\n| flag | |\n| --- | --- |\n%s\n", strings.Join(flags, "\n"))
	}
	if c.Example != "" {
		fmt.Fprintf(b, "\n```sh\n%s\n```\n", strings.ReplaceAll(strings.TrimPrefix(c.Example, "  "), "\n  ", "\n"))
	}
}
