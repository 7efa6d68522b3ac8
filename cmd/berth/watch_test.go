package main

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"charm.land/lipgloss/v2"

	"berth"
	"berth/wire"
)

// A watched list keeps its first rows, which are the newest jobs, on a terminal with fewer rows, at its present size.
func TestAWatchedListFitsOnTheTerminal(t *testing.T) {
	t.Parallel()
	a, b := onTerminal(120, false)
	const all = "more jobs exist; list all with --all"
	height, width := 24, 60
	a.outTerm.rows = func() int { return height }
	a.outTerm.measure = func() int { return width }
	var list wire.Page[wire.Job]
	for i := range 50 {
		list.Items = append(list.Items, wire.Job{ID: "0193a1b2-c3d4-7000-8000-000000000001", Handle: "2c7b31",
			Name: fmt.Sprintf("job-%02d", i), Status: berth.Queued, SubmittedAt: noon,
			Reason: &berth.Reason{Code: "no_room", Message: "no machine has 2 CPUs free now, of all in the pool"}})
	}
	list.NextCursor = "x"
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		height, lines int
		last          string
	}{{24, 23, "… 32 more"}, {57, 54, all}, {0, 54, all}} {
		height = c.height
		b.Reset()
		_ = watchScreen(ctx, a, "", func() error {
			clearScreen(a, "Ctrl-C ends")
			return showJobs(a, list)
		})
		lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
		if len(lines) != c.lines || lines[len(lines)-1] != c.last || !strings.Contains(lines[3], "job-00") {
			t.Errorf("%d rows: %d lines, the last is %q", c.height, len(lines), lines[len(lines)-1])
		}
		for _, line := range lines[2:] {
			if n := lipgloss.Width(line); n > width {
				t.Errorf("%d columns: %q", n, line)
			}
		}
	}
}

// The variables of a grid are cut before the names, and the status stays whole.
func TestAListOfAGridFitsInEightyColumns(t *testing.T) {
	t.Parallel()
	a, b := onTerminal(80, false)
	index := 3
	err := showJobs(a, wire.Page[wire.Job]{Items: []wire.Job{{
		ID: "0193a1b2-c3d4-7000-8000-000000000001", Handle: "2c7b31", Name: "sweep", ArrayIndex: &index,
		Status: berth.Queued, SubmittedAt: noon,
		Variables: map[string]string{"BATCH": "128", "DEPTH": "50", "LEARNING_RATE": "0.001", "OPTIMIZER": "adamw"},
		Reason:    &berth.Reason{Code: "no_room", Message: "no machine has 2 CPUs free"}}}})
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(b.String()) {
		if n := lipgloss.Width(strings.TrimSuffix(line, "\n")); n > 80 {
			t.Errorf("%d columns: %q", n, line)
		}
	}
	if !strings.Contains(b.String(), "  sweep[3]  BATCH=128") || !strings.Contains(b.String(), "  queued  ") {
		t.Errorf("got\n%s", b)
	}
}
