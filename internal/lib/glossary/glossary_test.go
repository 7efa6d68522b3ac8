package glossary_test

import (
	"strings"
	"testing"

	"berth/internal/lib/glossary"
	"berth/internal/lib/golden"
)

func TestDocumentMatchesTheTable(t *testing.T) {
	t.Parallel()
	const path = "../../../docs/glossary.md"
	want := glossary.Document()
	golden.Check(t, path, want)
}

func TestEachWordStandsOnceWithAMeaning(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, s := range glossary.Terms {
		for _, term := range s.Terms {
			switch {
			case term.Word == "" || term.Meaning == "":
				t.Errorf("section %s: %+v lacks its word or its meaning", s.Title, term)
			case seen[term.Word]:
				t.Errorf("%q is in the table twice", term.Word)
			case strings.HasSuffix(term.Meaning, "."):
				t.Errorf("%q: the meaning ends with a full stop", term.Word)
			case strings.Contains(term.Word+term.Meaning, "|"):
				t.Errorf("%q: a bar would end the cell", term.Word)
			}
			seen[term.Word] = true
		}
	}
	for _, r := range glossary.RetiredWords {
		for _, w := range r.Words {
			if seen[w] {
				t.Errorf("%q is retired, and a term as well", w)
			}
			seen[w] = true
		}
	}
}
