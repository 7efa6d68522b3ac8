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
	ResumeStep int64         `json:"resume_step,omitempty"` // step of the checkpoint that the attempt resumes from
	StopBy     time.Time     `json:"stop_by,omitzero"`      // afterwards the workflow calls Escalate
	RunLimit   spec.Duration `json:"run_limit,omitempty"`   // with grace: bounds the Run activity
	CancelSeen bool          `json:"cancel_seen,omitempty"` // the row contains a cancel request
	Placeable  bool          `json:"-"`                     // the job waits, is not held, and its backoff is over
}

// JobInput is the input of a job's workflow; the row contains the rest.
type JobInput struct {
	Job berth.JobID `json:"job"`
	// Outcome makes the workflow record its outcome as a search attribute when it ends. It is
	// false if an earlier version started the workflow, or the namespace lacks the attribute.
	// The flag takes the place of workflow.GetVersion, which would add two events.
	Outcome bool `json:"outcome,omitempty"`
	// API is the address of the API, for the memo of the workflows that a pipeline starts.
	API string `json:"api,omitempty"`
}

// StepInput is the input of a step about a job.
type StepInput struct {
	Job berth.JobID `json:"job"`
}

// AttemptInput is the input of a step about one attempt of a job.
type AttemptInput struct {
	Job     berth.JobID `json:"job"`
	Attempt int         `json:"attempt"`
}

// FireStep is the input of the step that decides one time of a schedule.
type FireStep struct {
	Schedule berth.ScheduleID `json:"schedule"`
	At       time.Time        `json:"at"`
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

// Heartbeats of the activity that waits for a member. Each heartbeat updates the
// workflow's execution. The machine's lease detects a dead machine, and the leader
// finds lost waiters in the sets of the replicas. So heartbeats only show progress in
// Temporal, and reveal a waiter that both have missed. ADR 0030 contains the measurement
// behind both numbers.
const (
	WaiterBeat    = 10 * time.Minute // the longest time between two heartbeats of a waiter
	WaiterTimeout = 25 * time.Minute // after the last heartbeat the server starts the activity again
)

// RunProgress is a heartbeat's detail.
type RunProgress struct {
	Phase     berth.Phase     `json:"phase"`
	Stage     string          `json:"stage,omitempty"` // of a member that is being prepared
	Percent   int             `json:"percent,omitempty"`
	Step      int64           `json:"step,omitempty"`
	Total     int64           `json:"total,omitempty"` // steps
	Machine   berth.MachineID `json:"machine,omitempty"`
	LogOffset int64           `json:"log_offset,omitempty"`
}

// Show adds the stage of a member that is being prepared, nil for none, and the percentage of
// the stage or of the steps. Errors are left out: a heartbeat may enter a history.
func (p *RunProgress) Show(s *Stage) {
	switch {
	case s != nil:
		p.Stage = Stage{Name: s.Name, Input: s.Input}.String()
		if s.Percent != nil {
			p.Percent = *s.Percent
		}
	case p.Total > 0:
		p.Percent = int(100 * min(1, max(0, float64(p.Step)/float64(p.Total))))
	}
}

// MemberView is the part of a member's row (an allocation) that the waiting activity
// reads.
type MemberView struct {
	Alloc   berth.AllocationID
	State   berth.AllocationState
	Current bool          // the member is of the job's current attempt, and the job still holds capacity
	Sealed  bool          // the member's end is stored, with logs and checkpoints
	Exit    *failure.Exit // set once sealed; nil for a member that was given up without an exit

	Progress RunProgress

	// Overdue reports that the machine has been silent for longer than a verdict takes. It
	// is false while verdicts are frozen.
	Overdue bool
}

// Live reports whether the member's end is still to come.
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
	More  bool        `json:"more,omitempty"` // call again at once: work is left

	// Ready lists steps of a pipeline whose workflows should start now. Of many steps it
	// lists only some. Tenant is the tenant of the steps.
	Ready  []Ready        `json:"ready,omitempty"`
	Tenant berth.TenantID `json:"tenant,omitempty"`
	User   string         `json:"user,omitempty"` // submitter of the pipeline
}

// Ready is a step that may start.
type Ready struct {
	Job   berth.JobID `json:"job"`
	Kind  berth.Kind  `json:"kind"`
	Name  string      `json:"name,omitempty"`
	Image string      `json:"image,omitempty"`
}

// FireInput is the input of a workflow that fires a schedule. The schedule's row
// contains the rest, and the time is the workflow's start.
type FireInput struct {
	Schedule berth.ScheduleID `json:"schedule"`
}

// FireResult is the answer of a Fire step.
type FireResult struct {
	Status FireStatus  `json:"status,omitempty"` // "": the schedule was deleted
	Job    berth.JobID `json:"job,omitempty"`
}
