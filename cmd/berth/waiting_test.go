package main

import (
	"strings"
	"testing"
	"time"

	"charm.land/lipgloss/v2"

	"berth"
	"berth/wire"
)

// In 80 columns each row of the queue is one line, with the cause readable.
func TestTheQueueFitsIn80Columns(t *testing.T) {
	t.Parallel()
	a, b := onTerminal(80, false)
	start := noon.Add(26 * time.Hour)
	err := showQueue(a, wire.Queue{Items: []wire.QueuedJob{{Job: wire.Job{
		ID: "0193a1b2-c3d4-7000-8000-000000000001", Name: "train-resnet", Status: berth.Queued, SubmittedAt: noon,
		Waiting: &wire.Waiting{Code: "no_room", Position: 1234, EstimatedStart: &start,
			Message: "no room: needs 2 CPUs, most free 0.5 (m1)"},
	}}}})
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(b.String()) {
		if width := lipgloss.Width(strings.TrimSuffix(line, "\n")); width > 80 {
			t.Errorf("%d columns: %s", width, line)
		}
	}
	if !strings.Contains(b.String(), "1234  0193a1b2-c3d4-7000  train-resnet  in 26h  no room: needs 2 CPUs") {
		t.Errorf("no cause to read:\n%s", b.String())
	}
}

// Without a terminal the reason of a wait is a new line when its code changes, not when the
// place in the queue does.
func TestPlainProgressShowsAReasonOnce(t *testing.T) {
	t.Parallel()
	a, b := onTerminal(80, false)
	a.errTerm.terminal = false
	p := newProgress(a)
	for _, w := range []wire.Waiting{
		{Code: "not_accepted", Message: "waiting for the control plane"},
		{Code: "no_room", Message: "waiting behind 2 jobs"},
		{Code: "no_room", Message: "waiting behind 1 job"},
		{Code: "quota", Message: "quota of a: 1 of 1 running"},
	} {
		p.update(wire.Job{Name: "x", Status: berth.Queued, Waiting: &w})
	}
	want := "12:00:00  x  queued\n12:00:00  x  queued  waiting behind 2 jobs\n12:00:00  x  queued  quota of a: 1 of 1 running\n"
	if got := b.String(); got != want {
		t.Errorf("got:\n%swant:\n%s", got, want)
	}
}
