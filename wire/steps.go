package wire

import (
	"time"

	"berth"
	"berth/failure"
	"berth/spec"
)

// JobView is the part of a job's row that its workflow reads: ids and positions only,
// so that no spec and no secret enters a history.
type JobView struct {
	State      berth.State   `json:"state"`
	Attempt    int           `json:"attempt"`
	Slots      []berth.Slot  `json:"slots,omitempty"` // of the current attempt
	HasParent  bool          `json:"has_parent,omitempty"`
	ResumeStep int64         `json:"resume_step,omitempty"` // where the attempt starts from
	StopBy     time.Time     `json:"stop_by,omitzero"`      // after it, Escalate
	RunLimit   spec.Duration `json:"run_limit,omitempty"`   // with grace: bounds the Run activity
	CancelSeen bool          `json:"cancel_seen,omitempty"` // a cancel request stands on the row
	Placeable  bool          `json:"-"`                     // waits, is not held, and its backoff is over
}

// JobInput is the input of a job's workflow; the row contains the rest.
type JobInput struct {
	Job berth.JobID `json:"job"`
}

// SettleResult is the answer of a Settle step.
type SettleResult struct {
	NotReady  bool        `json:"not_ready,omitempty"` // some member is neither sealed nor orphaned
	Next      berth.State `json:"next,omitempty"`
	HasParent bool        `json:"has_parent,omitempty"`
}

// RunRequest is the input of the Run activity.
type RunRequest struct {
	Job     berth.JobID        `json:"job"`
	Attempt int                `json:"attempt"`
	Alloc   berth.AllocationID `json:"alloc"`
}

// Heartbeats of the activity that waits for a member. Each is an update of the
// workflow's execution. The machine's lease detects a dead machine, and the leader
// finds lost waiters in the sets of the replicas: heartbeats show progress in
// Temporal, and find a waiter that both have missed. ADR 0030 has the measurement
// that both numbers follow from.
const (
	WaiterBeat    = 10 * time.Minute // the longest time between two heartbeats of a waiter
	WaiterTimeout = 25 * time.Minute // after the last heartbeat the server starts the activity again
)

// RunProgress is a heartbeat's detail.
type RunProgress struct {
	Phase     berth.Phase     `json:"phase"`
	Step      int64           `json:"step,omitempty"`
	Total     int64           `json:"total,omitempty"` // steps
	Machine   berth.MachineID `json:"machine,omitempty"`
	LogOffset int64           `json:"log_offset,omitempty"`
}

// MemberView is the row of one member (an allocation) as the activity that waits
// for it reads it.
type MemberView struct {
	Alloc   berth.AllocationID
	State   berth.AllocationState
	Current bool          // its attempt is the job's, and the job still holds capacity
	Sealed  bool          // its end is stored, with logs and checkpoints
	Exit    *failure.Exit // once sealed; nil for a member that was given up without one

	Progress RunProgress

	// Overdue is true while the machine has been silent for longer than a verdict
	// takes and a verdict may be passed. It is false while verdicts are frozen.
	Overdue bool
}

// Live reports whether there is still something to wait for.
func (m MemberView) Live() bool {
	return m.Current && berth.Slot{State: m.State, Sealed: m.Sealed}.Live()
}

// RunResult is the result of a Run activity. A bad exit is a result too: the activity
// fails only when its waiter is lost.
type RunResult struct {
	Phase berth.Phase   `json:"phase"`
	Exit  *failure.Exit `json:"exit,omitempty"`
}

// ReconcileResult is the answer of a step over a parent: ids and positions only.
type ReconcileResult struct {
	State berth.State `json:"state"`
	More  bool        `json:"more,omitempty"` // there is more to do at once

	// Ready are steps of a pipeline whose workflows are to be started, some of
	// them if they are many; Tenant is whose.
	Ready  []Ready        `json:"ready,omitempty"`
	Tenant berth.TenantID `json:"tenant,omitempty"`
}

// Ready is a step that may start.
type Ready struct {
	Job  berth.JobID `json:"job"`
	Kind berth.Kind  `json:"kind"`
}

// FireInput is the input of a workflow that fires a schedule. The schedule's row
// contains the rest, and the time is the workflow's start.
type FireInput struct {
	Schedule berth.ScheduleID `json:"schedule"`
}

// FireResult is the answer of a Fire step.
type FireResult struct {
	Status FireStatus  `json:"status,omitempty"` // "": there is no such schedule any more
	Job    berth.JobID `json:"job,omitempty"`
}
