package placement

import (
	"time"

	"berth"
)

// Running is a job that holds room. Its grants are part of what its machines
// have in use; the snapshot takes from it who holds what, and until when.
type Running struct {
	Job         berth.JobID
	Parent      berth.JobID // it is an element of; "": of none
	Tenant      berth.TenantID
	Class       string // need not be defined
	Version     int64
	Attempt     int
	Priority    int
	Preemptible bool
	SubmittedAt time.Time
	Ranks       []berth.Grant // what it still holds; epochs are not looked at

	StartedAt time.Time     // when its room was given
	TimeLimit time.Duration // it ends at the latest then; 0: nothing is known
	Remaining time.Duration // of work, known or declared, counted from StartedAt; 0: not known
	Done      time.Duration // it had run before this attempt
	Expected  time.Duration // see Job

	Checkpoint   time.Time     // last one verified in this attempt; zero: all it ran would be lost
	RestartCost  time.Duration // work that a start adds
	PreemptedFor []berth.JobID // whom it gave way to before; it does so once for each
	Stopping     bool          // told to stop: its room will be free soon
	StopBy       time.Time     // when, at the latest; zero: not known
}

// Earmark keeps room on one machine for one waiting job: room that was free, or
// that a victim gives up for it. Nobody else gets it, until the job is placed,
// waits no more, or the earmark expires.
type Earmark struct {
	For       berth.JobID
	Machine   berth.MachineID
	Capacity  berth.Capacity
	GPUs      []berth.DeviceShare
	Victim    berth.JobID // holds the room until it has stopped; "": it was free
	ExpiresAt time.Time   // zero: never
	Repair    bool        // room of the job's own, a gang: Victim is the job itself, or nobody
}
