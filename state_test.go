package berth_test

import (
	"fmt"
	"strings"
	"testing"

	"berth"
	"berth/internal/lib/golden"
)

// statesDocument renders docs/design/states.md from the state table.
func statesDocument() string {
	var b strings.Builder
	b.WriteString("# Statuses of a job\n\n")
	b.WriteString("Generated from `berth.Transitions` by `go test . -run States -update`; the guard trigger in the\ndatabase holds the same list and refuses every other change.\n\n")
	b.WriteString("```mermaid\nstateDiagram-v2\n")
	for _, t := range berth.Transitions {
		from := string(t.From)
		if from == "" {
			from = "[*]"
		}
		fmt.Fprintf(&b, "    %s --> %s\n", from, t.To)
	}
	for _, s := range berth.States {
		if s.Terminal() {
			fmt.Fprintf(&b, "    %s --> [*]\n", s)
		}
	}
	b.WriteString("```\n\n| from | to | by | condition, checked in the same transaction |\n| --- | --- | --- | --- |\n")
	for _, t := range berth.Transitions {
		from := string(t.From)
		if from == "" {
			from = "-"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", from, t.To, t.By, t.When)
	}
	b.WriteString("\n## Of an array or a pipeline\nEither has a row and a status too, and holds nothing: its status follows from its elements. Generated from\n`berth.ParentTransitions`; the guard trigger holds this list as well.\n\n| from | to | by | condition, checked in the same transaction |\n| --- | --- | --- | --- |\n")
	for _, t := range berth.ParentTransitions {
		from := string(t.From)
		if from == "" {
			from = "-"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", from, t.To, t.By, t.When)
	}
	b.WriteString(nominationStates)
	return b.String()
}

func TestStatesDocumentMatchesTheTable(t *testing.T) {
	t.Parallel()
	const path = "docs/design/states.md"
	want := statesDocument()
	golden.Check(t, path, want)
}

func TestTerminalStatesHaveNoWayOut(t *testing.T) {
	t.Parallel()
	for _, tr := range berth.Transitions {
		if tr.From.Terminal() {
			t.Errorf("%s -> %s leaves a terminal state", tr.From, tr.To)
		}
	}
}

func TestEveryStateIsReachedAndEnds(t *testing.T) {
	t.Parallel()
	reached := map[berth.State]bool{}
	var visit func(berth.State)
	visit = func(s berth.State) {
		if reached[s] {
			return
		}
		reached[s] = true
		for _, tr := range berth.Transitions {
			if tr.From == s {
				visit(tr.To)
			}
		}
	}
	visit("")
	for _, s := range berth.States {
		if !reached[s] {
			t.Errorf("%s cannot be reached", s)
		}
		if s.Terminal() {
			continue
		}
		ends := map[berth.State]bool{}
		var walk func(berth.State) bool
		walk = func(s berth.State) bool {
			if s.Terminal() {
				return true
			}
			if ends[s] {
				return false
			}
			ends[s] = true
			for _, tr := range berth.Transitions {
				if tr.From == s && walk(tr.To) {
					return true
				}
			}
			return false
		}
		if !walk(s) {
			t.Errorf("%s cannot reach a terminal state", s)
		}
	}
}

// A cancel request is possible in every state that is not terminal, and a state
// that holds capacity never ends without passing Settle.
func TestCapacityIsOnlyLeftThroughSettle(t *testing.T) {
	t.Parallel()
	for _, tr := range berth.Transitions {
		if tr.From == "" || !tr.From.HoldsCapacity() || tr.To.HoldsCapacity() {
			continue
		}
		if tr.By != berth.ActorWorkflow {
			t.Errorf("%s -> %s gives capacity back but is made by %s", tr.From, tr.To, tr.By)
		}
	}
}
