package berth

import "time"

// Job is a job as users see it: the row and its dependent rows. Lists leave out
// Spec, Attempts, Checkpoints and Progress.
type Job struct {
	ID          JobID             `json:"id"`
	Kind        Kind              `json:"kind,omitempty" doc:"array or pipeline; absent for a job"`
	Name        string            `json:"name"`
	Tenant      TenantID          `json:"tenant"`
	Status      State             `json:"status"`
	Reason      *Reason           `json:"reason,omitempty"`
	DeadLetter  bool              `json:"dead_letter,omitempty"`
	Held        bool              `json:"held,omitempty"`
	Priority    Priority          `json:"priority"`
	Labels      map[string]string `json:"labels,omitempty"`
	Attempt     int               `json:"attempt"`               // the current one, 0 before the first
	Failures    int               `json:"failures,omitempty"`    // runs that ended by the user's own fault
	Losses      int               `json:"losses,omitempty"`      // attempts infrastructure spoiled
	Preemptions int               `json:"preemptions,omitempty"` // times it gave way
	RetryOf     *JobID            `json:"retry_of,omitempty"`
	RetriedBy   *JobID            `json:"retried_by,omitempty"`
	Parent      *JobID            `json:"parent,omitempty"`      // the array it is an element of
	ArrayIndex  *int              `json:"array_index,omitempty"` // which
	Tally       *Tally            `json:"tally,omitempty"`       // of an array: its elements by status
	Indexes     string            `json:"indexes,omitempty" doc:"of an array that runs only some elements of another again: which"`
	Step        string            `json:"step,omitempty"` // of a pipeline: which this job is
	CachedFrom  *JobID            `json:"cached_from,omitempty" doc:"of a step that was skipped: the job that did the same before, and whose outputs it has"`
	ImageDigest string            `json:"image_digest,omitempty"`
	ExitCode    *int              `json:"exit_code,omitempty"`

	SubmittedAt time.Time  `json:"submitted_at"`
	QueuedAt    *time.Time `json:"queued_at,omitempty"`
	ScheduledAt *time.Time `json:"scheduled_at,omitempty"` // of the current attempt
	StartedAt   *time.Time `json:"started_at,omitempty"`   // first running
	FinishedAt  *time.Time `json:"finished_at,omitempty"`
	EligibleAt  *time.Time `json:"eligible_at,omitempty"` // while waiting for a retry

	Spec        *JobSpec      `json:"spec,omitempty"`
	Pipeline    *PipelineSpec `json:"pipeline,omitempty"` // in place of spec
	Steps       []Step        `json:"steps,omitempty" doc:"of a pipeline, each after those it needs"`
	Progress    *Progress     `json:"progress,omitempty"`
	Attempts    []Attempt     `json:"attempts,omitempty"`
	Checkpoints []Checkpoint  `json:"checkpoints,omitempty"`
}

// Attempt is one run of a job. Attempts count from 1.
type Attempt struct {
	Number     int         `json:"number"`
	Machines   []MachineID `json:"machines"`
	GPUs       []string    `json:"gpus,omitempty"` // UUIDs
	PlacedAt   time.Time   `json:"placed_at"`
	StartedAt  *time.Time  `json:"started_at,omitempty"`
	EndedAt    *time.Time  `json:"ended_at,omitempty"`
	ResumeFrom *int64      `json:"resume_from,omitempty"` // the checkpoint step it started from; absent: from nothing
	LastStep   *int64      `json:"last_step,omitempty"`   // the last step that its progress reported
	Outcome    *Reason     `json:"outcome,omitempty"`
	// Lost work of an attempt with a successor: steps and GPU time that must be
	// repeated, since the checkpoint from which the next attempt started.
	LostSteps      *int64     `json:"lost_steps,omitempty"`
	LostGPUSeconds *float64   `json:"lost_gpu_seconds,omitempty"`
	Next           State      `json:"next,omitempty"` // the job's status after it
	ExitCode       *int       `json:"exit_code,omitempty"`
	Measured       []Measured `json:"measured,omitempty" doc:"what its members used, of those that were sampled and have ended"`
}

// Progress is the content of /workspace/.berth/progress, which the job itself writes.
type Progress struct {
	Step    int64     `json:"step"`
	Total   int64     `json:"total,omitempty"`
	Message string    `json:"message,omitempty"`
	At      time.Time `json:"at,omitzero"`
}

// CheckpointState is how far a checkpoint may be trusted.
type CheckpointState string

// The states of a checkpoint.
const (
	CheckpointPartial  CheckpointState = "partial"  // some ranks' shards are in
	CheckpointVerified CheckpointState = "verified" // every shard is stored and hashed
	CheckpointBad      CheckpointState = "bad"      // a restore found it damaged
	CheckpointPruned   CheckpointState = "pruned"   // older than keep; its objects are gone
)

// Checkpoint is one saved step of a job.
type Checkpoint struct {
	Step      int64           `json:"step"`
	Attempt   int             `json:"attempt"`
	State     CheckpointState `json:"state"`
	SHA256    string          `json:"manifest_sha256,omitempty"`
	Bytes     int64           `json:"bytes"`
	CreatedAt time.Time       `json:"created_at"`
	Detail    string          `json:"detail,omitempty"` // why it is bad
}

// EventKind is the kind of an event.
type EventKind string

// The kinds of events. A state event changes the job's status; the others record
// facts in between.
const (
	EventState              EventKind = "state"
	EventCancelRequested    EventKind = "cancel_requested"
	EventClaimed            EventKind = "claimed"
	EventImagePulled        EventKind = "image_pulled"
	EventFetched            EventKind = "fetched"             // code or data was put in place, from the store or the machine's cache
	EventRestored           EventKind = "restored"            // a checkpoint was verified and put in place
	EventCheckpoint         EventKind = "checkpoint"          // a checkpoint was verified and registered
	EventCheckpointRejected EventKind = "checkpoint_rejected" // a restore found it damaged
	EventCheckpointRefused  EventKind = "checkpoint_refused"  // exceeds a storage quota; reported once per attempt
	EventLogCut             EventKind = "log_cut"             // exceeds a storage quota; reported once per attempt
	EventExited             EventKind = "exited"              // a rank's container ended
	EventOrphaned           EventKind = "orphaned"            // a rank's machine fell silent
	EventReleased           EventKind = "released"            // capacity that was held is free
	EventOrdered            EventKind = "ordered"             // a stop, kill or checkpoint order was given
	EventUpdated            EventKind = "updated"             // priority, labels, time limit, hold
	EventCached             EventKind = "cached"              // a step is not run: an earlier job did the same
	EventWarning            EventKind = "warning"
)

// Event is one entry of a job's history. Seq has no gaps within a job.
type Event struct {
	Seq     int64     `json:"seq"`
	At      time.Time `json:"at"`
	Kind    EventKind `json:"kind"`
	From    State     `json:"from,omitempty"`
	To      State     `json:"to,omitempty"`
	Attempt int       `json:"attempt"`
	Actor   string    `json:"actor"` // who: user:NAME, workflow, leader, agent:MACHINE, operator:NAME
	Reason  *Reason   `json:"reason,omitempty"`
	Detail  string    `json:"detail,omitempty"`

	// Facts are the figures in Detail, for programs, which must not parse Detail. Nil
	// means that the kind has none, or that an older berthd wrote the event.
	Facts *EventFacts `json:"facts,omitempty"`
}

// EventFacts are the figures of an event. Each kind of event sets only some of them.
type EventFacts struct {
	Rank    *int      `json:"rank,omitempty"`    // of the attempt
	Machine MachineID `json:"machine,omitempty"` // where the rank was
	Step    *int64    `json:"step,omitempty"`    // of the checkpoint
	Bytes   *int64    `json:"bytes,omitempty"`   // size of the checkpoint, all ranks together
}
