package berth

import "time"

// MachineState is the state of a machine in the control plane.
type MachineState string

// The states of a machine. Only a ready machine gets work, and only while its container
// engine answers.
const (
	MachineJoining  MachineState = "joining" // registered; old containers may still be left
	MachineReady    MachineState = "ready"
	MachineSuspect  MachineState = "suspect"  // silent for longer than its lease
	MachineDraining MachineState = "draining" // gets no new work
	MachineLost     MachineState = "lost"     // silent for longer than lost_after of its members
	MachineRetired  MachineState = "retired"  // removed permanently
)

// Leases of machines. The server counts from the arrival of a sync, the agent from its
// sending, so that the agent's deadline is never later.
const (
	MachineLeaseTTL = 20 * time.Second
	SyncWait        = 4 * time.Second // longest wait of a sync call for news
)

// Fences of at_most_one work. The deadman of a machine stops such work DefaultFence, or
// another time in the machine's settings, after the last sync that the control plane
// accepted was sent. The job may run elsewhere FenceMargin after this time and the job's
// stop grace, counted from the arrival of that sync.
const (
	DefaultFence = 15 * time.Minute
	FenceMargin  = time.Minute
)

// Capacity is an amount of each resource that reservations count.
type Capacity struct {
	CPUMilli  int64 `json:"cpu_milli"` // thousandths of a core
	MemoryMiB int64 `json:"memory_mib"`
	DiskMiB   int64 `json:"disk_mib"`
	GPUMilli  int64 `json:"gpu_milli"` // thousandths of a device
}

// Add returns c + d.
func (c Capacity) Add(d Capacity) Capacity {
	return Capacity{c.CPUMilli + d.CPUMilli, c.MemoryMiB + d.MemoryMiB, c.DiskMiB + d.DiskMiB, c.GPUMilli + d.GPUMilli}
}

// Sub returns c - d.
func (c Capacity) Sub(d Capacity) Capacity {
	return Capacity{c.CPUMilli - d.CPUMilli, c.MemoryMiB - d.MemoryMiB, c.DiskMiB - d.DiskMiB, c.GPUMilli - d.GPUMilli}
}
