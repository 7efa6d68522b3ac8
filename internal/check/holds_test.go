package check_test

import (
	"testing"

	"berth"
	"berth/db/history"
	"berth/failure"
	"berth/internal/check"
)

// debugged is a job that failed on m1, and the debug job that held it there. The debug job is the second one.
func debugged() check.History {
	s := newStory()
	m := s.machine("m1")
	failed := s.submit(1, "at_least_once")
	failed.place(0, m)
	failed.run()
	failed.exits(1, failure.CauseExited)
	failed.settle(berth.Failed, berth.ReasonExitCode, failure.BudgetUser)
	d := s.submit(1, "at_least_once")
	d.place(0, m)
	d.run()
	d.exits(0, failure.CauseExited)
	d.settle(berth.Succeeded, "", failure.BudgetNone)
	d.Debug = true
	d.Hold = &history.Hold{Job: failed.ID, Attempt: 1, Machine: "m1", FreedSeq: failed.Allocations[0].FreedSeq}
	return s.history()
}

var badHolds = []bad{
	{37, "a debug job on another machine than the files", debugged, func(h *check.History) { h.Jobs[1].Hold.Machine = "m2" }},
	{37, "a debug job beside the failed member", debugged, func(h *check.History) { h.Jobs[1].Hold.FreedSeq = h.Jobs[1].Allocations[0].TakenSeq + 1 }},
	{37, "a debug job of at_most_one work", debugged, func(h *check.History) { h.Jobs[1].Execution = "at_most_one" }},
}

func TestAHoldBreachesNothing(t *testing.T) {
	t.Parallel()
	if found := check.Verify(debugged(), check.Options{}); len(found) > 0 {
		t.Errorf("found %v", found)
	}
}
