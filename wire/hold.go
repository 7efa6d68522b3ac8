package wire

import (
	"time"

	"berth"
)

// HeldAttempt is a failed attempt whose files a debug job keeps, with a shell in the job's image.
type HeldAttempt struct {
	Job     berth.JobID     `json:"job" doc:"the debug job; in a debug job: the job that failed"`
	Attempt int             `json:"attempt" doc:"of the job that failed"`
	Member  int             `json:"member" doc:"of that attempt"`
	Machine berth.MachineID `json:"machine"`
	Status  berth.State     `json:"status" doc:"of the debug job; the files are there while it is running"`
	Seconds int64           `json:"seconds" doc:"time of the hold, from the start of the debug job"`
	Until   *time.Time      `json:"until,omitempty" doc:"end of the hold; absent before its start"`
}

// ReasonHoldEnded is the code of the reason of a debug job that ended before its time: another job needed
// its capacity or its quota, or its machine is drained.
const ReasonHoldEnded berth.ReasonCode = "hold_ended"

// EventHoldBegins is for a failed attempt that a debug job is to hold.
const EventHoldBegins EventKind = "hold_begins"

// HeldFiles names the folder of a failed member that the agent has kept, in the claim of the debug job
// that takes it.
type HeldFiles struct {
	Alloc      berth.AllocationID `json:"alloc"`                // of the failed member
	Checkpoint string             `json:"checkpoint,omitempty"` // folder of checkpoints in the container; "": none
}

// HeaderHolds is set, to 1, in a claim by an agent that keeps the folders of failed members for debug jobs. The
// server refuses the claims of debug jobs by other agents, which would start them with empty folders.
const HeaderHolds = "Berth-Holds"
