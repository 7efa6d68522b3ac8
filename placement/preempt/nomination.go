package preempt

import (
	"time"

	"berth"
)

// Nomination keeps capacity of one machine for one waiting job. The capacity was free, or a
// victim releases it for the job. No other job gets it until the job is placed or leaves
// the queue, or the nomination expires. Nominations are rows, so that a new leader keeps
// them.
type Nomination struct {
	For       berth.JobID // the waiting job
	Machine   berth.MachineID
	Capacity  berth.Capacity
	GPUs      []berth.DeviceShare // the part of Capacity on each device
	Victim    berth.JobID         // holds the capacity until it has stopped; "": it was free
	ExpiresAt time.Time           // zero: never
	Repair    bool                // the gang's own capacity: Victim is the gang, or ""
}
