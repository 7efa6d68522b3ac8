package wire

import (
	"berth"
	"berth/failure"
)

// StallReport carries news about the signs of life of one member, of a job with spec.stall. It
// is a call of its own, since servers refuse unknown fields in other reports: a server of the
// version before answers 404 to this call alone, and then judges no gang.
//
// A report without evidence says whether the member has been quiet for stall.after. Of the reports
// of one agent process, only the one with the highest Seq counts. A report with evidence follows
// the verdict, and is stored once.
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
