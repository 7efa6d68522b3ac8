package berth

import "time"

// MachineState is how a machine stands with the control plane.
type MachineState string

// The states of a machine. Only ready ones are given work, and of these only
// machines whose container engine answers.
const (
	MachineJoining  MachineState = "joining" // registered; leftovers are not confirmed gone
	MachineReady    MachineState = "ready"
	MachineSuspect  MachineState = "suspect"  // silent for more than its lease
	MachineDraining MachineState = "draining" // gets no new work
	MachineLost     MachineState = "lost"     // silent past lost_after of its members
	MachineRetired  MachineState = "retired"  // gone for good
)

// Lease arithmetic of machines: the server counts from the arrival of a sync,
// the agent from its sending, so that the agent's deadline is never later.
const (
	MachineLeaseTTL = 20 * time.Second
	SyncWait        = 4 * time.Second // longest long-poll
)

// Fences of at_most_one work. The deadman of a machine ends it once the last
// sync that the control plane accepted was sent DefaultFence ago, or another time
// in the machine's settings. The job may run elsewhere FenceMargin after that and
// after the job's stop grace, counted from the arrival of that sync.
const (
	DefaultFence = 15 * time.Minute
	FenceMargin  = time.Minute
)

// Capacity is an amount of every resource that reservations add up in.
type Capacity struct {
	CPUMilli  int64 `json:"cpu_milli"`
	MemoryMiB int64 `json:"memory_mib"`
	DiskMiB   int64 `json:"disk_mib"`
	GPUMilli  int64 `json:"gpu_milli"`
}

// Add returns c + d.
func (c Capacity) Add(d Capacity) Capacity {
	return Capacity{c.CPUMilli + d.CPUMilli, c.MemoryMiB + d.MemoryMiB, c.DiskMiB + d.DiskMiB, c.GPUMilli + d.GPUMilli}
}

// Sub returns c - d.
func (c Capacity) Sub(d Capacity) Capacity {
	return Capacity{c.CPUMilli - d.CPUMilli, c.MemoryMiB - d.MemoryMiB, c.DiskMiB - d.DiskMiB, c.GPUMilli - d.GPUMilli}
}
