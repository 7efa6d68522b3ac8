package wire

import "time"

// Waiting is the reason for which a job waits, in a few words, and its position. It comes
// from the server's latest reading of the queue, so that the job may have changed since;
// Explanation is more exact and has every reason.
type Waiting struct {
	Code           string     `json:"code" doc:"code of a blocker in explain, or needs, ready, unknown"`
	Quota          string     `json:"quota,omitempty" doc:"with code quota: limit, max_running, borrow or budget"`
	Message        string     `json:"message" doc:"the reason in a few words"`
	Position       int        `json:"position,omitempty" doc:"place in the queue, from 1; absent: not queued"`
	EstimatedStart *time.Time `json:"estimated_start,omitempty" doc:"expected start; absent: unknown"`
	Reserved       bool       `json:"reserved,omitempty" doc:"its start is reserved: no later job delays it"`
	EstimatedBy    EstimateBy `json:"estimated_by,omitempty" doc:"source of estimated_start: limits or run_times"`
	AsOf           *time.Time `json:"as_of,omitempty" doc:"time of the reading of the queue; absent: no reading used"`
	Cloud          *CloudNote `json:"cloud,omitempty" doc:"its machines of clouds; absent: none, nor a policy for them"`
}

// EstimateBy is the source of an estimated start.
type EstimateBy string

// The sources of estimates.
const (
	ByLimits   EstimateBy = "limits"    // time limits; the job starts by then unless another job comes first
	ByRunTimes EstimateBy = "run_times" // also run times of similar jobs; the job may start earlier or later
)

// RunTime predicts the run time of a job without a time limit, over all attempts, from similar
// jobs that have ended.
type RunTime struct {
	MedianSeconds float64 `json:"median_seconds" doc:"half of the similar jobs ended within this run time"`
	P90Seconds    float64 `json:"p90_seconds" doc:"nine of ten similar jobs ended within this run time"`
	Jobs          int     `json:"jobs" doc:"number of similar jobs"`
	Like          string  `json:"like" doc:"likeness: near (name, GPUs, hour), name, data, shape, tenant or all"`
	Confidence    string  `json:"confidence" doc:"high, medium or low"`
}

// Queue is a page of the waiting jobs in the order in which they would start, from one
// reading of the queue.
type Queue struct {
	AsOf       time.Time   `json:"as_of" doc:"time of the reading of the queue"`
	Total      int         `json:"total" doc:"waiting jobs that match the query, on all pages"`
	Items      []QueuedJob `json:"items" doc:"the queue in its order, then jobs outside of it: held, in backoff"`
	NextCursor string      `json:"next_cursor,omitempty"`
}

// QueuedJob is a waiting job as in a list of jobs, with the values that decide its order.
type QueuedJob struct {
	Job
	Band  int      `json:"band" doc:"band of its priority; the highest goes first"`
	Share float64  `json:"share" doc:"part of the cluster that its tenant uses now, 0 to 1"`
	Pools []string `json:"pools,omitempty" doc:"pools with a machine that could run it; absent: none"`
}
