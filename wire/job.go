package wire

import (
	"cmp"
	"slices"
	"time"

	"berth"
	"berth/failure"
	"berth/spec"
)

// Job is the API's document of a job: its row and the dependent rows. Lists leave out
// Spec, Attempts, Hangs, Checkpoints, Progress and Stage.
type Job struct {
	ID          berth.JobID       `json:"id"`
	Handle      string            `json:"handle,omitempty" doc:"shortest end of the id that no other job has now"`
	Kind        berth.Kind        `json:"kind,omitempty" doc:"array or pipeline; absent for a job"`
	Name        string            `json:"name"`
	Tenant      berth.TenantID    `json:"tenant"`
	Status      berth.State       `json:"status"`
	Reason      *berth.Reason     `json:"reason,omitempty"`
	DeadLetter  bool              `json:"dead_letter,omitempty"`
	Held        bool              `json:"held,omitempty"`
	Priority    spec.Priority     `json:"priority"`
	Labels      map[string]string `json:"labels,omitempty"`
	Attempt     int               `json:"attempt"`               // the current one, 0 before the first
	Failures    int               `json:"failures,omitempty"`    // runs that failed by the job's own fault
	Losses      int               `json:"losses,omitempty"`      // attempts that infrastructure ended
	Preemptions int               `json:"preemptions,omitempty"` // attempts that preemption ended
	RetryOf     *berth.JobID      `json:"retry_of,omitempty"`
	RetriedBy   *berth.JobID      `json:"retried_by,omitempty" doc:"newest retry of this job"`
	StartedFrom *StartPoint       `json:"started_from,omitempty" doc:"checkpoint of another job that it started from"`
	Parent      *berth.JobID      `json:"parent,omitempty"`      // the array or pipeline of this element or step
	ArrayIndex  *int              `json:"array_index,omitempty"` // index of the element in its array
	Variables   map[string]string `json:"variables,omitempty" doc:"an element's variables of array.each"`
	Tally       *Tally            `json:"tally,omitempty"` // children of a parent, by status
	Indexes     string            `json:"indexes,omitempty" doc:"array that repeats elements of another: their indexes"`
	Run         int               `json:"run,omitempty" doc:"in a merged list: the run of the array it is from, from 1"`
	Step        string            `json:"step,omitempty"` // name of the step in its pipeline
	CachedFrom  *berth.JobID      `json:"cached_from,omitempty" doc:"skipped step: the earlier job with its outputs"`
	SubmittedBy string            `json:"submitted_by,omitempty" doc:"user:NAME or schedule:NAME, if known"`
	Alternative *int              `json:"alternative,omitempty" doc:"hardware in force; 0: resources; absent: one only"`
	ImageDigest string            `json:"image_digest,omitempty" doc:"digest of all attempts; absent: not found yet"`
	ExitCode    *int              `json:"exit_code,omitempty"`

	ImageDigestBy DigestBy      `json:"image_digest_by,omitempty" doc:"source of the digest: submit, machine or retry"`
	ImageDigestAt *time.Time    `json:"image_digest_at,omitempty" doc:"when it was found; retry: by the retried job"`
	ImageRequest  *ImageRequest `json:"image_request,omitempty" doc:"resolution at submit that gave no digest yet"`

	RunsAs string `json:"runs_as,omitempty" doc:"user at next start: image, tenant or UID:GID; absent: ended, refused"`

	SubmittedAt time.Time  `json:"submitted_at"`
	QueuedAt    *time.Time `json:"queued_at,omitempty"`
	ScheduledAt *time.Time `json:"scheduled_at,omitempty"` // of the current attempt
	StartedAt   *time.Time `json:"started_at,omitempty"`   // first running
	FinishedAt  *time.Time `json:"finished_at,omitempty"`
	EligibleAt  *time.Time `json:"eligible_at,omitempty"` // while waiting for a retry

	Waiting *Waiting `json:"waiting,omitempty" doc:"while it waits: the reason in a few words"`

	Results *ArrayRuns `json:"results,omitempty" doc:"the latest result of each index, if it was retried"`

	Spec         *spec.Job          `json:"spec,omitempty"`
	Pipeline     *spec.Pipeline     `json:"pipeline,omitempty"` // in place of spec
	Steps        []Step             `json:"steps,omitempty" doc:"steps of a pipeline, each after the steps it needs"`
	Progress     *berth.Progress    `json:"progress,omitempty"`
	Stage        *JobStage          `json:"stage,omitempty" doc:"while scheduled: present step on the job's machines"`
	Attempts     []berth.Attempt    `json:"attempts,omitempty"`
	Cost         *float64           `json:"cost,omitempty" doc:"US dollars, of all attempts; absent: no cloud machine"`
	HeldAttempts []HeldAttempt      `json:"held_attempts,omitempty" doc:"failed attempts that debug jobs hold or held"`
	HoldOf       *HeldAttempt       `json:"hold_of,omitempty" doc:"debug job: the failed attempt that it holds"`
	Hangs        []failure.Hang     `json:"hangs,omitempty" doc:"attempts that ended by a hang, with the evidence"`
	Checkpoints  []berth.Checkpoint `json:"checkpoints,omitempty"`
}

// Resources returns the resources of a member, with the defaults. They are the ones of the alternative in force,
// if the job has alternatives. Without a spec it returns the zero value.
func (j Job) Resources() spec.Resources {
	if j.Spec == nil {
		return spec.Resources{}
	}
	number := 0
	if j.Alternative != nil {
		number = *j.Alternative
	}
	return j.Spec.WithDefaults().ResourcesOf(number)
}

// ReasonSkipped is the code of the reason of a canceled step that did not run because its
// condition did not hold.
const ReasonSkipped berth.ReasonCode = "skipped"

// ReasonListInvalid is the code of the reason of an array step whose list, an output of another
// step, cannot become its elements.
const ReasonListInvalid berth.ReasonCode = "list_invalid"

// StartPoint is a checkpoint of another job, from which a job starts.
type StartPoint struct {
	Job     berth.JobID `json:"job"`
	Attempt int         `json:"attempt" doc:"attempt of that job that saved the step"`
	Step    int64       `json:"step"`
	Members int         `json:"-"` // whose parts the checkpoint has
	Bytes   int64       `json:"-"` // of all parts

	// Parts is Members if each member of the job gets the parts of all of them, and 0 if each gets its own part.
	Parts int `json:"parts,omitempty" doc:"members that saved the step, if each member here gets all their parts"`
}

// AddCost sets Cost to the sum of the costs of the attempts, if any has one.
func (j *Job) AddCost() {
	for _, a := range j.Attempts {
		if a.Cost == nil {
			continue
		}
		if j.Cost == nil {
			j.Cost = new(float64)
		}
		*j.Cost += *a.Cost
	}
}

// RankBest sets Best on the checkpoints that checkpoint.keep_best keeps.
func (j *Job) RankBest() {
	if j.Spec == nil || j.Spec.Checkpoint == nil || j.Spec.Checkpoint.Best == nil {
		return
	}
	policy := j.Spec.Checkpoint.Best
	var measured []*berth.Checkpoint
	for i, c := range j.Checkpoints {
		if c.State == berth.CheckpointVerified && c.Metric != nil {
			measured = append(measured, &j.Checkpoints[i])
		}
	}
	slices.SortStableFunc(measured, func(x, y *berth.Checkpoint) int { // of equal values, the newest stays first
		if policy.Mode == spec.BestIsMax {
			x, y = y, x
		}
		return cmp.Compare(*x.Metric, *y.Metric)
	})
	for i, c := range measured[:min(max(policy.Count, 1), len(measured))] {
		c.Best = i + 1
	}
}

// Tally counts the elements of a parent by status.
type Tally struct {
	Total    int                 `json:"total"`
	Unmade   int                 `json:"unmade,omitempty" doc:"elements without a job; after the end: never started"`
	ByStatus map[berth.State]int `json:"by_status"`
}

// ArrayRuns is an array and its retries, merged by index: the result of an index is the
// result of the latest run that has it.
type ArrayRuns struct {
	Run   int        `json:"run" doc:"number of this array among the runs, from 1"`
	Runs  []ArrayRun `json:"runs" doc:"the array that was submitted first, and its retries"`
	Tally Tally      `json:"tally" doc:"latest results by status"`
}

// ArrayRun is an array as one run of its elements.
type ArrayRun struct {
	Job     berth.JobID `json:"job"`
	Handle  string      `json:"handle,omitempty"`
	Status  berth.State `json:"status"`
	Indexes string      `json:"indexes,omitempty" doc:"indexes of its elements; absent: all"`
	Results int         `json:"results" doc:"number of indexes whose latest result is from this run"`
}

// Ended returns the number of elements that have ended.
func (t Tally) Ended() int {
	return t.ByStatus[berth.Succeeded] + t.ByStatus[berth.Failed] + t.ByStatus[berth.Canceled]
}

// Holding returns the number of elements that hold capacity.
func (t Tally) Holding() int {
	n := 0
	for s, count := range t.ByStatus {
		if s.HoldsCapacity() {
			n += count
		}
	}
	return n
}

// Step is the API's document of a step in its pipeline.
type Step struct {
	Name    string        `json:"name"`
	Job     berth.JobID   `json:"job"`
	Handle  string        `json:"handle,omitempty" doc:"short form of the job id"`
	Kind    berth.Kind    `json:"kind,omitempty" doc:"array or pipeline; absent for a job"`
	Status  berth.State   `json:"status"`
	Tally   *Tally        `json:"tally,omitempty" doc:"elements of an array, or steps of a pipeline, by status"`
	Needs   []string      `json:"needs,omitempty"`
	When    string        `json:"when,omitempty" doc:"failure or always; absent: success, and for a final step always"`
	Final   bool          `json:"final,omitempty" doc:"starts after all other steps"`
	Reason  *berth.Reason `json:"reason,omitempty"`
	Waiting *Waiting      `json:"waiting,omitempty" doc:"while it waits: the reason in a few words"`
	// CachedFrom is the earlier job with the same work, for a step that was skipped.
	CachedFrom *berth.JobID `json:"cached_from,omitempty"`
	QueuedAt   *time.Time   `json:"queued_at,omitempty"`  // its needs had succeeded, and it joined the queue
	StartedAt  *time.Time   `json:"started_at,omitempty"` // first running
	FinishedAt *time.Time   `json:"finished_at,omitempty"`
}
