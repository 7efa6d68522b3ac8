package berth

import "time"

// AllocationState is where one member's reservation stands. Every state but
// exited and released counts against the machine's capacity.
type AllocationState string

// The states of an allocation.
const (
	AllocReserved AllocationState = "reserved" // granted; the machine has not claimed it
	AllocActive   AllocationState = "active"   // claimed; a container may live
	AllocExited   AllocationState = "exited"   // the container is gone, its devices are free
	AllocOrphaned AllocationState = "orphaned" // its machine is silent; it may live on
	AllocReleased AllocationState = "released"
)

// Phase is how far the machine has come with a member, in order.
type Phase string

// The phases of a member on its machine.
const (
	PhaseNone      Phase = ""
	PhaseClaimed   Phase = "claimed"
	PhasePulling   Phase = "pulling"
	PhaseRestoring Phase = "restoring"
	PhasePrepared  Phase = "prepared" // container created, waits for start
	PhaseRunning   Phase = "running"
	PhaseExited    Phase = "exited" // container ended
	PhaseSealed    Phase = "sealed" // logs, checkpoints and outputs are stored
)

// Orders are all instructions to a machine about one member. They are
// level-triggered: each sync carries the full set, and a repeated order has no
// further effect.
type Orders struct {
	Start      bool `json:"start,omitempty"`
	Checkpoint bool `json:"checkpoint,omitempty"` // send the checkpoint signal now, then stop
	Stop       bool `json:"stop,omitempty"`       // SIGTERM, then SIGKILL after GraceMS
	GraceMS    int  `json:"grace_ms,omitempty"`   // of Stop and Checkpoint
	Kill       bool `json:"kill,omitempty"`       // SIGKILL
	Forget     bool `json:"forget,omitempty"`     // settled: remove container and scratch files
}

// Grace is the time between SIGTERM and SIGKILL.
func (o Orders) Grace() time.Duration { return time.Duration(o.GraceMS) * time.Millisecond }

// Slot is one member of a grant, as workflows see it.
type Slot struct {
	Alloc   AllocationID    `json:"alloc"`
	Rank    int             `json:"rank"`
	Machine MachineID       `json:"machine"`
	GPUs    []int           `json:"gpus,omitempty"` // device indexes
	State   AllocationState `json:"state"`
	Sealed  bool            `json:"sealed,omitempty"`
}

// Live reports whether the workflow must still wait for this member.
func (s Slot) Live() bool {
	switch s.State {
	case AllocReserved, AllocActive:
		return true
	case AllocExited:
		return !s.Sealed
	case AllocOrphaned, AllocReleased:
		return false
	default:
		panic("unknown allocation state " + string(s.State))
	}
}
