package check

import (
	"slices"

	"berth/db/history"
	"berth/spec"
)

// hardwareInForce proves invariant 34. A start puts an alternative in force in the transaction that
// reserves the capacity, so both agree for as long as the attempt holds capacity. Afterwards the request
// may have grown, for the next attempt. The request of the alternative bounds quotas and names the machines
// that may run the job, so a difference would be capacity that no policy has allowed.
func hardwareInForce(c *jobCase) {
	j := c.j
	if j.Alternatives == nil {
		if j.Alternative != 0 {
			c.breach(nil, "alternative %d is in force, and the job has none", j.Alternative)
		}
		return
	}
	if j.Alternative < 0 || j.Alternative >= len(j.Alternatives) || j.Alternatives[j.Alternative] != j.Class {
		c.breach(nil, "alternative %d of %v is in force, and the class is %s", j.Alternative, j.Alternatives, j.Class)
		return
	}
	if !j.State.HoldsCapacity() {
		return
	}
	for _, t := range j.Attempts {
		if t.Attempt == j.Attempt && t.Alternative != nil && *t.Alternative != j.Alternative {
			c.breach(rows(t), "attempt %d got alternative %d, and %d is in force", t.Attempt, *t.Alternative,
				j.Alternative)
		}
	}
	if j.Request == nil {
		return
	}
	for _, a := range c.ranks(j.Attempt) {
		if !suits(a, *j.Request) {
			c.of(a, rows(a), "rank %d has other capacity than alternative %d: %+v", a.Rank, j.Alternative,
				j.Request.Capacity())
		}
	}
}

// suits reports whether a member has exactly the capacity of a request.
func suits(a history.Allocation, r spec.Request) bool {
	want := r.Capacity()
	return a.CPUMilli == want.CPUMilli && a.MemoryMiB == want.MemoryMiB && a.DiskMiB == want.DiskMiB &&
		a.GPUMilli == want.GPUMilli && len(a.GPUs) == r.GPUs &&
		!slices.ContainsFunc(a.GPUs, func(g history.DeviceAllocation) bool { return g.Milli != r.GPUMilli })
}
