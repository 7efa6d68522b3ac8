package berth

import (
	"fmt"
	"strings"
)

// Task queues.
const (
	QueueControl = "control" // workflows and control activities, beside the database
)

// MachineQueue is the task queue that only this machine's agent polls.
func MachineQueue(m MachineID) string { return "m-" + string(m) }

// Workflow types and activity names. Activities carry a version in their name:
// agents are not versioned workers.
const (
	WorkflowJob = "Job"

	ActivityRun           = "Run.v1"
	ActivityLoad          = "Load.v1"
	ActivityReserve       = "Reserve.v1"
	ActivitySettle        = "Settle.v1"
	ActivityStopAttempt   = "StopAttempt.v1"
	ActivityEscalate      = "Escalate.v1"
	ActivityRequestCancel = "RequestCancel.v1"
	ActivityPokeParent    = "PokeParent.v1"
)

// Signals of a job's workflow. Neither carries anything.
const (
	SignalPoke   = "poke"   // something changed in your row: read it
	SignalCancel = "cancel" // request a cancel on the row
)

// Search attributes, set when a workflow starts.
const (
	AttributeTenant = "Tenant"
	AttributePool   = "Pool"
	AttributeKind   = "Kind"
)

// JobWorkflowID is the workflow that drives a job.
func JobWorkflowID(id JobID) string { return "job/" + string(id) }

// JobOfWorkflow is the inverse of JobWorkflowID; false for other workflows.
func JobOfWorkflow(workflowID string) (JobID, bool) {
	s, ok := strings.CutPrefix(workflowID, "job/")
	if !ok {
		return "", false
	}
	id, err := ParseJobID(s)
	return id, err == nil
}

// ContainerName is the local fence: an engine refuses a second container of the
// same job, rank and attempt.
func ContainerName(job JobID, rank, attempt int) string {
	return fmt.Sprintf("berth-%s-%d-%d", job, rank, attempt)
}

// Labels of every container Berth makes.
const (
	LabelCluster  = "berth.cluster"
	LabelMachine  = "berth.machine"
	LabelJob      = "berth.job"
	LabelAttempt  = "berth.attempt"
	LabelAlloc    = "berth.alloc"
	LabelRank     = "berth.rank"
	LabelEpoch    = "berth.machine_epoch"
	LabelSpecHash = "berth.spec_hash"
)
