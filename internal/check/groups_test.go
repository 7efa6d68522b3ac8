package check_test

import (
	"testing"
	"time"

	"berth"
	"berth/db/history"
	"berth/failure"
	"berth/internal/check"
	"berth/spec"
)

// grouped makes a running gang of two one with a head, which leads, and a worker.
func grouped() check.History {
	h := running()
	j := &h.Jobs[0]
	j.Grouped, j.LeadFirst, j.LeadLast = true, new(0), new(0)
	j.Request = &spec.Request{Members: 2}
	for i, a := range j.Allocations {
		g := spec.GroupRequest{Name: []string{"head", "workers"}[i], Members: 1, CPUMilli: a.CPUMilli, MemoryMiB: a.MemoryMiB, DiskMiB: a.DiskMiB}
		if g.GPUs = len(a.GPUs); len(a.GPUs) > 0 {
			g.GPUMilli = a.GPUs[0].Milli
		}
		j.Request.Groups = append(j.Request.Groups, g)
	}
	return h
}

// led is a gang whose head has ended with 0 and whose worker was stopped and ended with 143.
func led() check.History {
	s := newStory()
	m1, m2 := s.machine("m1"), s.machine("m2")
	j := s.submit(2, "at_least_once")
	j.Grouped, j.LeadFirst, j.LeadLast = true, new(0), new(0)
	j.place(0, m1, m2)
	j.run()
	j.exits(0, failure.CauseExited)
	for _, a := range j.now() {
		if a.Rank == 1 {
			a.Exit.Code, a.Exit.Cause = 143, failure.CauseOrdered
		}
	}
	j.settle(berth.Succeeded, "", failure.BudgetNone)
	return s.history()
}

// headless makes the head of a running gang end, with or without an order to the worker.
func headless(h *check.History) {
	alloc(h, h.Jobs[0].Allocations[0].ID, func(a *history.Allocation) {
		at := a.StartedAt.Add(time.Second)
		a.State, a.ExitedAt, a.SealedAt = berth.AllocExited, &at, &at
		a.Exit = &failure.Exit{Cause: failure.CauseExited, StartedAt: *a.StartedAt, FinishedAt: at}
	})
	later(h, time.Hour)
}

var badGroups = []bad{
	{35, "a member with less memory than its group", grouped, func(h *check.History) {
		alloc(h, h.Jobs[0].Allocations[1].ID, func(a *history.Allocation) { a.MemoryMiB-- })
	}},
	{35, "a member without the GPUs of its group", grouped, func(h *check.History) { h.Jobs[0].Request.Groups[1].GPUs++ }},
	{35, "a group without a member", grouped, func(h *check.History) { h.Jobs[0].Request.Groups[1].Members++ }},
	{10, "a worker runs on, untold, after its head had ended", grouped, headless},
	{23, "a success without the head's exit 0", led, func(h *check.History) {
		alloc(h, h.Jobs[0].Allocations[0].ID, func(a *history.Allocation) { a.Exit.Code = 1 })
	}},
	{23, "a success of equal members with an exit that is not 0", led, func(h *check.History) { h.Jobs[0].LeadFirst, h.Jobs[0].LeadLast = nil, nil }},
}

func TestAGangWithGroupsBreachesNothing(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]func() check.History{"at work": grouped, "ended by its head": led} {
		h := of()
		if found := check.Verify(h, check.Options{}); len(found) > 0 {
			t.Errorf("%s: found %v", name, found)
		}
	}
}
