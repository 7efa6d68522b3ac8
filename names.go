package berth

import (
	"fmt"
	"strings"
	"time"
)

// Task queues.
const (
	QueueControl = "control" // workflows and control activities, in the control plane
	QueueWaiters = "waiters" // the activities that wait for members, in any control plane replica
)

// MachineQueue returns the task queue that agents polled up to the version in which
// waiters moved to QueueWaiters. No activity is scheduled on this queue now.
func MachineQueue(m MachineID) string { return "m-" + string(m) }

// Workflow types. Activities are in package wire, with the types of their payloads.
const (
	WorkflowJob   = "Job"
	WorkflowArray = "Array"

	WorkflowPipeline = "Pipeline"
	WorkflowFire     = "Fire"
)

// Signals of a job's workflow. They carry no data: the workflow reads the row.
const (
	SignalPoke   = "poke"   // the job's row has changed: read it
	SignalCancel = "cancel" // request a cancel on the row
)

// Search attributes, set when a workflow starts. Package wire has further ones.
const (
	AttributeTenant = "Tenant"
	AttributeKind   = "Kind"

	// AttributeScheduled is set by Temporal on a workflow that a schedule started: the
	// nominal time of the fire.
	AttributeScheduled = "TemporalScheduledStartTime"
)

// WorkflowOf returns the type of the workflow that drives a row of the kind. It panics on
// an unknown kind.
func WorkflowOf(k Kind) string {
	switch k {
	case KindJob:
		return WorkflowJob
	case KindArray:
		return WorkflowArray
	case KindPipeline:
		return WorkflowPipeline
	default:
		panic("unknown kind " + string(k))
	}
}

// JobWorkflowID returns the id of the workflow that drives a job, or a parent of jobs:
// every row of jobs has one workflow.
func JobWorkflowID(id JobID) string { return "job/" + string(id) }

// JobOfWorkflow is the inverse of JobWorkflowID. ok is false for other workflows.
func JobOfWorkflow(workflowID string) (JobID, bool) {
	s, ok := strings.CutPrefix(workflowID, "job/")
	if !ok {
		return "", false
	}
	id, err := ParseJobID(s)
	return id, err == nil
}

// TemporalScheduleID returns the id of the Temporal Schedule that is a schedule's clock.
func TemporalScheduleID(id ScheduleID) string { return "schedule/" + string(id) }

// ScheduleOfTemporal is the inverse of TemporalScheduleID. ok is false for other Temporal
// Schedules.
func ScheduleOfTemporal(s string) (ScheduleID, bool) {
	s, ok := strings.CutPrefix(s, "schedule/")
	if !ok {
		return "", false
	}
	id, err := parseScheduleID(s)
	return id, err == nil
}

// FireWorkflowID returns the prefix of the ids of the workflows that fire a schedule.
// Temporal appends the time.
func FireWorkflowID(id ScheduleID) string { return "fire/" + string(id) }

// ContainerName returns the name of a member's container. It serves as a local fence: an
// engine refuses a second container for the same job, rank and attempt.
func ContainerName(job JobID, rank, attempt int) string {
	return fmt.Sprintf("berth-%s-%d-%d", job, rank, attempt)
}

// Labels of every container that Berth creates.
const (
	LabelCluster  = "berth.cluster"
	LabelMachine  = "berth.machine"
	LabelJob      = "berth.job"
	LabelAttempt  = "berth.attempt"
	LabelAlloc    = "berth.alloc"
	LabelRank     = "berth.rank"
	LabelEpoch    = "berth.machine_epoch"
	LabelSpecHash = "berth.spec_hash"
	LabelNetwork  = "berth.network" // of a gang's container: the network created for the gang
)

// FireKey returns the idempotency key of a fire's job, so that a fire submits its job once.
func FireKey(id ScheduleID, at time.Time) string {
	return "schedule/" + string(id) + "/" + at.UTC().Format(time.RFC3339Nano)
}
