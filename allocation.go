package berth

import "time"

// AllocationState is the state of one member's allocation on its machine. Every state except
// exited and released counts against the machine's capacity.
type AllocationState string

// The states of an allocation.
const (
	AllocReserved AllocationState = "reserved" // granted; the machine has not claimed it
	AllocActive   AllocationState = "active"   // claimed; a container may run
	AllocExited   AllocationState = "exited"   // the container is gone, its devices are free
	AllocOrphaned AllocationState = "orphaned" // its machine is silent; the container may still run
	AllocReleased AllocationState = "released" // given up; its capacity is free
)

// Phase is the progress of a member on its machine. A member passes the phases in order.
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

// Orders is the full set of instructions to a machine for one member. Orders are
// level-triggered: each sync carries the full set, and a repeated order has no
// further effect.
type Orders struct {
	Start      bool `json:"start,omitempty"`
	Checkpoint bool `json:"checkpoint,omitempty"` // send the checkpoint signal now, then stop
	Stop       bool `json:"stop,omitempty"`       // SIGTERM, then SIGKILL after GraceMS
	GraceMS    int  `json:"grace_ms,omitempty"`   // of Stop and Checkpoint
	Kill       bool `json:"kill,omitempty"`       // SIGKILL
	Forget     bool `json:"forget,omitempty"`     // settled: remove container and scratch files
	Stalled    bool `json:"stalled,omitempty"`    // the gang hangs: store evidence, then stop with grace
	Keep       bool `json:"keep,omitempty"`       // with Forget: keep the folder for a debug job

	// Save is the number of the latest order to write a checkpoint and continue; 0: none. A
	// member with checkpoint.interval gets the checkpoint signal once for each higher number.
	Save int64 `json:"save,omitempty"`
}

// Grace returns the time between SIGTERM and SIGKILL.
func (o Orders) Grace() time.Duration { return time.Duration(o.GraceMS) * time.Millisecond }

// Slot is the part of a member's allocation that workflows read.
type Slot struct {
	Alloc   AllocationID    `json:"alloc"`
	Rank    int             `json:"rank"`
	Machine MachineID       `json:"machine"`
	GPUs    []int           `json:"gpus,omitempty"` // device indexes
	State   AllocationState `json:"state"`
	Sealed  bool            `json:"sealed,omitempty"`
	Leads   bool            `json:"leads,omitempty"` // its group decides the success of the job
}

// Live reports whether the workflow must still wait for this member: its container may run,
// or its logs and checkpoints are not stored yet. An orphaned member is not live, since
// the report of its end may never arrive.
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
