package lifecycle

import (
	"slices"

	"berth"
	"berth/failure"
)

// Hurried returns the job with its grace bounded by berth.GangGrace, which applies after
// another member of the gang has ended.
func (j Job) Hurried() Job {
	j.Grace = min(j.Grace, berth.GangGrace)
	return j
}

// Repairable reports whether the capacity of the surviving members may be kept for the next
// attempt: the job is a gang that is neither canceled nor preempted, and it is scheduled or
// running.
func (j Job) Repairable() bool {
	return j.Gang() && j.CancelAt == nil && !j.Preempted &&
		(j.State == berth.Scheduled || j.State == berth.Running)
}

// Survivors returns the members whose machines did nothing wrong: all members except
// orphans and unclaimed reservations or, if there is neither, all except the member that
// was the first to end badly by itself. A cause of ordered or not started does not count as
// an end by itself. Of a hung gang, the odd member takes the place of the first, if one is named.
func (j Job) Survivors() []berth.AllocationID {
	hole := -1 // index of the member to replace
	gone := func(m Member) bool { return m.Orphaned || m.Unclaimed() }
	for i, m := range j.Members {
		if !m.Bad() || m.Exit == nil ||
			m.Exit.Cause == failure.CauseOrdered || m.Exit.Cause == failure.CauseNotStarted {
			continue
		}
		if hole < 0 || m.Exit.FinishedAt.Before(j.Members[hole].Exit.FinishedAt) {
			hole = i
		}
	}
	if odd := j.odd(); hole >= 0 && odd >= 0 {
		hole = odd
	}
	if slices.ContainsFunc(j.Members, gone) {
		hole = -1
	}
	var list []berth.AllocationID
	for i, m := range j.Members {
		if !gone(m) && i != hole {
			list = append(list, m.ID)
		}
	}
	return list
}

// odd returns the index of the member that holds up a hung gang; -1 if none is named.
func (j Job) odd() int {
	o := j.evidence(History{}).Odd()
	if o == nil || o.Rank == nil {
		return -1
	}
	return slices.IndexFunc(j.Members, func(m Member) bool { return m.Rank == *o.Rank })
}

// Lost returns the members whose machines did not claim them within UnclaimedAfter, for
// StepGiveUp.
func (j Job) Lost() []berth.AllocationID {
	var list []berth.AllocationID
	for _, m := range j.Members {
		if m.Unclaimed() {
			list = append(list, m.ID)
		}
	}
	return list
}

// room decides about the nominations of a gang after a verdict: they stay if the next attempt
// starts within berth.RepairHold. A suspended gang keeps nothing.
func (j Job) room(v failure.Verdict) Room {
	switch {
	case !j.Gang():
		return RoomNone
	case v.Next == berth.Retrying && v.Delay < berth.RepairHold && v.Reason.Code != berth.ReasonSuspended:
		return RoomKept
	default:
		return RoomReleased
	}
}
