package lifecycle

import (
	"slices"
	"time"

	"berth"
	"berth/failure"
	"berth/spec"
)

// UnclaimedAfter is the age at which an unclaimed reservation makes the attempt count as
// lost.
const UnclaimedAfter = 2 * time.Minute

// Job is a job with the members of its current attempt, as its locked rows show them.
type Job struct {
	ID         berth.JobID
	State      berth.State
	Attempt    int           // number of the current attempt; 0: none yet
	Grace      time.Duration // from SIGTERM to SIGKILL
	Retry      spec.RetryPolicy
	CancelAt   *time.Time // time of the cancel request
	Preempted  bool
	Avoid      []berth.MachineID
	Failures   int           // runs charged to the user's budget
	Losses     int           // attempts charged to the infrastructure's budget
	OOMGrown   bool          // an earlier attempt has already got more memory
	Checkpoint bool          // a verified checkpoint exists
	Reason     *berth.Reason // stored with the current state
	Settled    *berth.State  // the job's state after the requested attempt; nil: not settled
	Members    []Member
	Debug      bool // it holds a failed attempt of another job, and runs only once
}

// Member is an allocation of the current attempt.
type Member struct {
	ID       berth.AllocationID
	Rank     int
	Group    string // of a gang with unlike members; "": all members are alike
	Leads    bool   // a member of the group that decides the success of the job; false in jobs without one
	Machine  berth.MachineID
	State    berth.AllocationState
	Exit     *failure.Exit // nil: no machine has reported an end
	Claimed  bool
	Sealed   bool
	Orphaned bool          // at some time, even if released since
	Suspect  bool          // the machine died soon after the member's start, without another cause
	CutOff   bool          // sealed on behalf of a machine that had not stored the whole output
	Age      time.Duration // since the reservation
	LastStep *int64        // the last step that its progress reported
	Drain    string        // drain reason of the machine; "" if the machine is not drained

	Hang *failure.HangEvidence // collected when the attempt was judged to hang; nil: none
}

// LeadDone reports whether a group leads the job and all its members have completed their work. Then the
// other members stop, and only the leading ones count for the result: others often fail because the leading
// ones have gone, and the clocks of two machines cannot order the two ends.
func (j Job) LeadDone() bool {
	leads := false
	for _, m := range j.Members {
		if m.Leads && (m.Orphaned || m.Exit == nil || !m.Exit.Done()) {
			return false
		}
		leads = leads || m.Leads
	}
	return leads
}

// Gang reports whether the attempt has more than one member.
func (j Job) Gang() bool { return len(j.Members) > 1 }

// Unclaimed reports whether the machine has not claimed the reservation within
// UnclaimedAfter.
func (m Member) Unclaimed() bool { return m.State == berth.AllocReserved && m.Age >= UnclaimedAfter }

// Bad reports whether the member ended without completing its work.
func (m Member) Bad() bool {
	return m.Orphaned || m.Exit != nil && !m.Exit.Done()
}

// complete reports whether the evidence on the member is complete: no report can add to it.
func (m Member) complete() bool {
	switch m.State {
	case berth.AllocReserved:
		return m.Unclaimed()
	case berth.AllocActive:
		return false
	case berth.AllocExited:
		return m.Sealed
	case berth.AllocOrphaned, berth.AllocReleased:
		return true
	default:
		panic("unknown allocation state " + string(m.State))
	}
}

// ready reports whether the evidence on all members is complete.
func (j Job) ready() bool {
	return len(j.Members) > 0 && !slices.ContainsFunc(j.Members, func(m Member) bool { return !m.complete() })
}

// lastStep returns the highest step that a member has reported, or nil.
func (j Job) lastStep() *int64 {
	var last *int64
	for _, m := range j.Members {
		if m.LastStep != nil && (last == nil || *m.LastStep > *last) {
			last = m.LastStep
		}
	}
	return last
}
