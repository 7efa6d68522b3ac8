package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"charm.land/lipgloss/v2"

	"berth"
	"berth/wire"
)

// A list of 300 jobs with long names and reasons is readable in 80 columns: each job is one
// line with its handle, its status and the beginning of its reason.
func TestAListFitsInEightyColumns(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	now := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)
	a := &app{out: &b, err: &strings.Builder{}, now: func() time.Time { return now },
		outTerm: screen{terminal: true, width: 80}}
	a.Output = "table"
	var list wire.Page[wire.Job]
	for i := range 300 {
		started := now.Add(-time.Duration(i) * time.Minute)
		j := wire.Job{ID: berth.JobID(fmt.Sprintf("0199a000-0000-7000-8000-1234567%05x", i)),
			Handle: fmt.Sprintf("7%05x", i),
			Name:   "train-resnet-152-on-imagenet-with-" + fmt.Sprint(i), Status: berth.Queued, Attempt: 1,
			SubmittedAt: started.Add(-time.Hour), Reason: &berth.Reason{Code: "no_room",
				Message: "no machine has 2 CPUs free"}}
		if i%3 == 0 {
			j.Status, j.StartedAt = berth.Failed, &started
			j.Tally = &wire.Tally{Total: 12, ByStatus: map[berth.State]int{berth.Failed: 3}}
			j.Reason = &berth.Reason{Code: berth.ReasonElementsFailed, Message: "3 of 12 elements failed"}
		}
		list.Items = append(list.Items, j)
	}
	if err := showJobs(a, list); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	if len(lines) != 301 {
		t.Fatalf("%d lines", len(lines))
	}
	for i, line := range lines[1:] {
		j := list.Items[i]
		reason := reasonText(j.Reason)[:16]
		if w := lipgloss.Width(line); w > 80 || !strings.HasPrefix(line, j.Handle+"  train-") ||
			!strings.Contains(line, "  "+statusCell(j).text+"  ") || !strings.Contains(line, "  "+reason) {
			t.Fatalf("line %d has %d columns and lacks handle, status or %q:\n%s\n%s", i, w, reason, lines[0], line)
		}
	}

	// A wide terminal shows every column whole, and so does a pipe.
	for _, s := range []screen{{terminal: true, width: 200}, {}} {
		b.Reset()
		a.outTerm = s
		if err := showJobs(a, list); err != nil {
			t.Fatal(err)
		}
		if out := b.String(); !strings.Contains(out, "ATTEMPT") || !strings.Contains(out, "with-299  ") ||
			strings.Contains(out, "…") {
			t.Errorf("columns are missing on %+v:\n%.400s", s, out)
		}
	}
}
