package berth

import "time"

// JobView is what a workflow reads of its job's row: ids and positions only, so
// that no spec and no secret enters a history.
type JobView struct {
	State      State     `json:"state"`
	Attempt    int       `json:"attempt"`
	Slots      []Slot    `json:"slots,omitempty"` // of the current attempt
	HasParent  bool      `json:"has_parent,omitempty"`
	ResumeStep int64     `json:"resume_step,omitempty"` // where the attempt starts from
	StopBy     time.Time `json:"stop_by,omitzero"`      // after it, Escalate
	RunLimit   Duration  `json:"run_limit,omitempty"`   // with grace: bounds the Run activity
	CancelSeen bool      `json:"cancel_seen,omitempty"` // a cancel request stands on the row
	Placeable  bool      `json:"-"`                     // waits, is not held, and its backoff is over
}

// JobInput is what a job's workflow starts from: the row says the rest.
type JobInput struct {
	Job JobID `json:"job"`
}

// SettleResult is the answer of a Settle step.
type SettleResult struct {
	NotReady  bool  `json:"not_ready,omitempty"` // some rank is neither sealed nor orphaned
	Next      State `json:"next,omitempty"`
	HasParent bool  `json:"has_parent,omitempty"`
}

// RunRequest is the input of the Run activity.
type RunRequest struct {
	Job     JobID        `json:"job"`
	Attempt int          `json:"attempt"`
	Alloc   AllocationID `json:"alloc"`
}

// RunProgress is a heartbeat's detail.
type RunProgress struct {
	Phase     Phase `json:"phase"`
	Step      int64 `json:"step,omitempty"`
	LogOffset int64 `json:"log_offset,omitempty"`
}

// RunResult is the value a Run activity ends with. A bad exit is a value too:
// activities fail only when the machine could not say what happened.
type RunResult struct {
	Phase Phase `json:"phase"`
	Exit  *Exit `json:"exit,omitempty"`
}
