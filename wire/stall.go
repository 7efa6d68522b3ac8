package wire

import (
	"berth"
	"berth/failure"
)

// StallReport reports the signs of life of one member of a job with spec.stall. It has a separate
// API call, since servers refuse unknown fields in other reports. A server of the version before
// answers this call with 404, and judges no gang.
//
// A report without evidence says whether the member has been quiet for stall.after. Only the
// report with the highest Seq of one agent process counts. A report with evidence follows the
// verdict, and is stored once.
type StallReport struct {
	AgentBoot string             `json:"agent_boot"`
	Epoch     int64              `json:"epoch"`
	Alloc     berth.AllocationID `json:"alloc"`
	Job       berth.JobID        `json:"job"`
	Attempt   int                `json:"attempt"`
	Seq       int64              `json:"seq,omitempty"`
	Quiet     bool               `json:"quiet,omitempty"`

	Evidence *failure.HangEvidence `json:"evidence,omitempty"`
}
