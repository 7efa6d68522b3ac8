package berth

// Reason explains the status of a job or the result of a fire. Codes are stable, for
// programs; messages are for users and may change.
type Reason struct {
	Code    ReasonCode `json:"code"`
	Message string     `json:"message,omitempty"`
	Hint    string     `json:"hint,omitempty"` // advice for the user
	Rule    string     `json:"rule,omitempty"` // the row of the failure classification that decided
}

// ReasonCode is a stable code of a Reason.
type ReasonCode string

// The reason codes.
const (
	ReasonExitCode          ReasonCode = "exit_code"
	ReasonOOM               ReasonCode = "oom"
	ReasonTimeLimit         ReasonCode = "time_limit"
	ReasonDiskLimit         ReasonCode = "disk_limit" // the job used more disk space than it may
	ReasonQueueTimeout      ReasonCode = "queue_timeout"
	ReasonStalled           ReasonCode = "stalled"
	ReasonImageNotFound     ReasonCode = "image_not_found"
	ReasonImageUnavailable  ReasonCode = "image_unavailable"
	ReasonOutputLost        ReasonCode = "output_lost"
	ReasonStorageQuota      ReasonCode = "storage_quota" // an output does not fit in the tenant's storage quota
	ReasonMachineLost       ReasonCode = "machine_lost"
	ReasonMachineError      ReasonCode = "machine_error" // the engine or its host failed the container
	ReasonGPUError          ReasonCode = "gpu_error"
	ReasonCheckpointCorrupt ReasonCode = "checkpoint_corrupt"
	ReasonPreempted         ReasonCode = "preempted"
	ReasonSuspended         ReasonCode = "suspended" // stopped on request, and held until its release
	ReasonDrained           ReasonCode = "drained"
	ReasonUpstreamFailed    ReasonCode = "upstream_failed"
	ReasonCanceledByUser    ReasonCode = "canceled_by_user"
	ReasonBudgetSpent       ReasonCode = "budget_spent"
	ReasonUnclaimed         ReasonCode = "unclaimed"         // the machine did not claim its allocation
	ReasonImageNotAllowed   ReasonCode = "image_not_allowed" // by the cluster, the tenant or a tenant above
	ReasonImageUnsigned     ReasonCode = "image_unsigned"    // the image has no signature that a rule demands
	ReasonImageMismatch     ReasonCode = "image_mismatch"    // the content does not match the image's digest
	ReasonCommunication     ReasonCode = "communication"     // the members lost each other
	ReasonInputUnavailable  ReasonCode = "input_unavailable"
	ReasonInputInvalid      ReasonCode = "input_invalid"
	ReasonSecretMissing     ReasonCode = "secret_missing"
	ReasonSecretUnavailable ReasonCode = "secret_unavailable"
	ReasonPoison            ReasonCode = "poison"           // machines die, or are found unfit, under the job
	ReasonElementsFailed    ReasonCode = "elements_failed"  // of an array: not all elements succeeded
	ReasonStepsFailed       ReasonCode = "steps_failed"     // of a pipeline: not all of its steps succeeded
	ReasonOverlap           ReasonCode = "overlap"          // of a fire: an earlier job has not ended
	ReasonPaused            ReasonCode = "paused"           // of a fire: the schedule was paused
	ReasonAdmissionPaused   ReasonCode = "admission_paused" // of a waiting job: an operator has paused new starts
	ReasonTooLate           ReasonCode = "too_late"         // of a fire: later than catch_up allows
	ReasonUnknown           ReasonCode = "unknown"          // no rule of the classification matches
)
