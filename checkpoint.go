package berth

import "time"

// CheckpointState is the degree to which a checkpoint can be trusted.
type CheckpointState string

// The states of a checkpoint.
const (
	CheckpointPartial  CheckpointState = "partial"  // the shards of some members are stored
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
	Stored    *int64          `json:"stored_bytes,omitempty" doc:"new content when it was saved; absent: all bytes"`
	CreatedAt time.Time       `json:"created_at"`
	Detail    string          `json:"detail,omitempty"` // the damage, or the last failed restore
	Write     *float64        `json:"write_seconds,omitempty" doc:"from the step's folder to DONE; slowest member"`
	Store     *float64        `json:"store_seconds,omitempty" doc:"from the first hash to the record; slowest member"`
	Metric    *float64        `json:"metric_value,omitempty" doc:"value of keep_best.metric when it was saved"`
	Best      int             `json:"best,omitempty" doc:"kept for its value, as keep_best ranks it; 1 is the best"`
	Pinned    bool            `json:"pinned,omitempty"` // kept by a user, whatever checkpoint.keep says
	Used      bool            `json:"used,omitempty"`   // kept for a live job that started from it
	// PassedOver is for a verified checkpoint that restores take last.
	PassedOver bool `json:"passed_over,omitempty" doc:"restores take it last: the store returned others and not it"`
}
