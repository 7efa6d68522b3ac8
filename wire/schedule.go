package wire

import (
	"time"

	"berth"
	"berth/spec"
)

// Schedule is the API's document of a schedule.
type Schedule struct {
	ID     berth.ScheduleID `json:"id"`
	Tenant berth.TenantID   `json:"tenant"`
	spec.Schedule
	Note      string    `json:"note,omitempty" doc:"why it was paused or resumed"`
	CreatedBy string    `json:"created_by"`
	CreatedAt time.Time `json:"created_at"`
	UpdatedAt time.Time `json:"updated_at"`
	// ChangedAt is the time of the last apply that has changed the schedule; nil: none has.
	ChangedAt *time.Time  `json:"changed_at,omitempty" doc:"last change by an apply; absent: never"`
	Next      []time.Time `json:"next" doc:"next fires, without jitter; none while paused or after the last"`
	Fires     []Fire      `json:"fires" doc:"the last fires, newest first; of a list, at most one"`
	Pending   bool        `json:"pending,omitempty" doc:"the clock has not taken over the last change yet"`
}

// AppliedSchedule is the answer to an apply.
type AppliedSchedule struct {
	Schedule
	Result  ApplyResult   `json:"result" doc:"created, updated or unchanged"`
	Changes []spec.Change `json:"changes,omitempty" doc:"changes of an update, ordered by field"`
}

// ApplyResult is the effect of an apply.
type ApplyResult string

// The results.
const (
	ScheduleCreated   ApplyResult = "created"
	ScheduleUpdated   ApplyResult = "updated"
	ScheduleUnchanged ApplyResult = "unchanged"
)

// Fire is one time of a schedule, with its result.
type Fire struct {
	At        time.Time     `json:"at" doc:"the time it stands for; a schedule has one fire for each time"`
	Source    FireSource    `json:"source"`
	Status    FireStatus    `json:"status"`
	Job       *berth.JobID  `json:"job,omitempty"`
	JobHandle string        `json:"job_handle,omitempty"`
	JobStatus berth.State   `json:"job_status,omitempty"`
	Reason    *berth.Reason `json:"reason,omitempty" doc:"why it made no job, or waits"`
	DecidedAt *time.Time    `json:"decided_at,omitempty"`
}

// FireSource is the cause of a fire.
type FireSource string

// The sources.
const (
	FireByClock    FireSource = "clock"
	FireByBackfill FireSource = "backfill"
	FireByHand     FireSource = "run"
)

// FireStatus is the result of a fire.
type FireStatus string

// The statuses. Due and buffered fires are not decided yet.
const (
	FireDue       FireStatus = "due"       // about to be submitted
	FireBuffered  FireStatus = "buffered"  // will be submitted when the jobs before it have ended
	FireSubmitted FireStatus = "submitted" // the fire has created a job
	FireSkipped   FireStatus = "skipped"   // by the overlap policy, or for a pause
	FireRefused   FireStatus = "refused"   // admission refused the job or pipeline
	FireMissed    FireStatus = "missed"    // the fire came later than catch_up allows
)

// Decided reports whether the status is final. Only a backfill may try a decided fire again.
func (s FireStatus) Decided() bool {
	switch s {
	case FireDue, FireBuffered:
		return false
	case FireSubmitted, FireSkipped, FireRefused, FireMissed:
		return true
	default:
		panic("unknown fire status " + string(s))
	}
}

// BackfillResult is the answer to a backfill.
type BackfillResult struct {
	Times int `json:"times" doc:"number of its times in the range"`
	Fires int `json:"fires" doc:"number of these times that had created no job yet and are fired now"`
}
