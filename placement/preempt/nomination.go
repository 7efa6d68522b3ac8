package preempt

import (
	"time"

	"berth"
)

// Nomination keeps capacity of one machine for one waiting job: capacity that was free,
// or that a victim releases for it. No other job gets it until the job is placed or
// leaves the queue, or the nomination expires.
type Nomination struct {
	For       berth.JobID
	Machine   berth.MachineID
	Capacity  berth.Capacity
	GPUs      []berth.DeviceShare
	Victim    berth.JobID // holds the room until it has stopped; "": it was free
	ExpiresAt time.Time   // zero: never
	Repair    bool        // room of the job's own, a gang: Victim is the job itself, or nobody
}
