package check_test

import (
	"testing"

	"berth/db/history"
	"berth/internal/check"
	"berth/spec"
)

// picky is a gang at work on the second of its alternatives.
func picky() check.History {
	h := running()
	j := &h.Jobs[0]
	j.Alternatives, j.Alternative, j.Class = []string{"h100", "a100", "l40s"}, 1, "a100"
	a := j.Allocations[0]
	j.Request = &spec.Request{CPUMilli: a.CPUMilli, MemoryMiB: a.MemoryMiB, DiskMiB: a.DiskMiB, Members: 2}
	if j.Request.GPUs = len(a.GPUs); len(a.GPUs) > 0 {
		j.Request.GPUMilli = a.GPUs[0].Milli
	}
	j.Attempts[0].Alternative = new(int)
	*j.Attempts[0].Alternative = 1
	return h
}

var badAlternatives = []bad{
	{34, "an alternative in force of a job without alternatives", picky, func(h *check.History) { h.Jobs[0].Alternatives = nil }},
	{34, "the class of another alternative", picky, func(h *check.History) { h.Jobs[0].Class = "h100" }},
	{34, "an alternative that the job does not have", picky, func(h *check.History) { h.Jobs[0].Alternative = 3 }},
	{34, "an attempt with another alternative", picky, func(h *check.History) { *h.Jobs[0].Attempts[0].Alternative = 2 }},
	{34, "a member with less memory than the alternative", picky, func(h *check.History) {
		alloc(h, h.Jobs[0].Allocations[1].ID, func(a *history.Allocation) { a.MemoryMiB-- })
	}},
	{34, "a member with another share of a device", picky, func(h *check.History) { h.Jobs[0].Request.GPUMilli /= 2 }},
}

func TestAJobOnItsAlternativeBreachesNothing(t *testing.T) {
	t.Parallel()
	h := picky()
	if found := check.Verify(h, check.Options{}); len(found) > 0 {
		t.Errorf("found %v", found)
	}
	// An attempt of a berthd of the version before has no number.
	h.Jobs[0].Attempts[0].Alternative = nil
	if found := check.Verify(h, check.Options{}); len(found) > 0 {
		t.Errorf("found %v", found)
	}
}
