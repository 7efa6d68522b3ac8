package wire

import (
	"fmt"
	"time"

	"berth"
	"berth/failure"
	"berth/spec"
)

// EventKind is the kind of an event.
type EventKind string

// The kinds of events. A state event changes the job's status; the others record
// facts in between.
const (
	EventState              EventKind = "state"
	EventCancelRequested    EventKind = "cancel_requested"
	EventClaimed            EventKind = "claimed"
	EventImagePulled        EventKind = "image_pulled"
	EventImageResolved      EventKind = "image_resolved"      // the control plane has found the digest of the tag
	EventImageUnresolved    EventKind = "image_unresolved"    // it found none: the first machine decides
	EventFetched            EventKind = "fetched"             // code or data is in place, from store or cache
	EventRestored           EventKind = "restored"            // a checkpoint was verified and put in place
	EventCheckpoint         EventKind = "checkpoint"          // a checkpoint was verified and registered
	EventCheckpointRejected EventKind = "checkpoint_rejected" // a restore found it damaged
	EventCheckpointRefused  EventKind = "checkpoint_refused"  // exceeds a storage quota; reported once per attempt
	EventLogCut             EventKind = "log_cut"             // exceeds a storage quota; reported once per attempt
	EventStartsFrom         EventKind = "starts_from"         // the job starts from a checkpoint of another job
	EventExited             EventKind = "exited"              // a member's container ended
	EventOrphaned           EventKind = "orphaned"            // a member's machine fell silent
	EventReleased           EventKind = "released"            // capacity that was held is free
	EventOrdered            EventKind = "ordered"             // a stop, kill or checkpoint order was given
	EventDraining           EventKind = "draining"            // a member's machine is drained, with the deadline
	EventUpdated            EventKind = "updated"             // priority, labels, time limit, hold
	EventCached             EventKind = "cached"              // a step is not run: an earlier job did the same
	EventStage              EventKind = "stage"               // a member's preparation takes long, or is being repeated
	EventHung               EventKind = "hung"                // evidence about a member of an attempt that hangs
	EventOddMember          EventKind = "odd_member"          // which member of a hung gang holds up the others
	EventEntered            EventKind = "entered"             // a user opened a session in a member
	EventLeft               EventKind = "left"                // that session ended
	EventAlternative        EventKind = "alternative"         // the attempt got other hardware than the job had before
	EventWarning            EventKind = "warning"
)

// EventCheckpointPassedOver is for a checkpoint that the store did not return while it returned another one.
const EventCheckpointPassedOver EventKind = "checkpoint_passed_over"

// Event is one entry of a job's history. Seq has no gaps within a job.
type Event struct {
	Seq     int64         `json:"seq"`
	At      time.Time     `json:"at"`
	Kind    EventKind     `json:"kind"`
	From    berth.State   `json:"from,omitempty"` // of a state event, as To
	To      berth.State   `json:"to,omitempty"`
	Attempt int           `json:"attempt"`
	Actor   string        `json:"actor"` // user:NAME, workflow, leader, agent:MACHINE or operator:NAME
	Reason  *berth.Reason `json:"reason,omitempty"`
	Detail  string        `json:"detail,omitempty"`

	// Facts are the figures in Detail, for programs, which must not parse Detail. Nil
	// means that the kind has none, or that an older berthd wrote the event.
	Facts *EventFacts `json:"facts,omitempty"`
}

// EventFacts are the figures of an event. Each kind of event sets only some of them.
type EventFacts struct {
	Rank    *int            `json:"rank,omitempty"`    // of the member, in the attempt
	Machine berth.MachineID `json:"machine,omitempty"` // of the member
	Step    *int64          `json:"step,omitempty"`    // of the checkpoint
	Bytes   *int64          `json:"bytes,omitempty"`   // size of the checkpoint, all members together
	Stage   *Stage          `json:"stage,omitempty"`   // of a member that is being prepared
	Job     berth.JobID     `json:"job,omitempty"`     // that saved the checkpoint or, in that job, that found it bad

	Odd *failure.OddMember `json:"odd,omitempty"` // of a hung gang

	Digest string `json:"digest,omitempty"` // of the image

	Alternative *AlternativeChange `json:"alternative,omitempty"`

	// Deadline is the time when the job is moved away from the draining machine; nil: never.
	Deadline *time.Time `json:"deadline,omitempty"`
}

// AlternativeChange is the change of the hardware of a job with alternatives, at a start. The numbers are
// 0 for resources and from 1 for the alternatives.
type AlternativeChange struct {
	From          int   `json:"from"`
	To            int   `json:"to"`
	WaitedSeconds int64 `json:"waited_seconds"` // length of the wait that ends
}

// String describes the change. A job takes an alternative only if none before it has room.
func (c AlternativeChange) String() string {
	waited := spec.Duration(time.Duration(c.WaitedSeconds) * time.Second)
	if c.To == 0 {
		return fmt.Sprintf("starts on resources, which have room again, after a wait of %s", waited)
	}
	return fmt.Sprintf("starts on alternative %d after a wait of %s: nothing before it has room", c.To, waited)
}
