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
	MachineLost     MachineState = "lost"     // silent past lost_after of its ranks
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

// Inventory is the equipment of a machine, as it reports it at its registration.
type Inventory struct {
	Capacity Capacity          `json:"capacity"`
	Region   string            `json:"region,omitempty"`
	Site     string            `json:"site,omitempty"` // on_prem or cloud
	Pool     string            `json:"pool,omitempty"`
	Labels   map[string]string `json:"labels,omitempty"`
	GPUs     []GPU             `json:"gpus,omitempty"`
	Declared bool              `json:"declared,omitempty"` // GPUs are declared by file, not read from hardware
	Engine   string            `json:"engine,omitempty"`   // such as docker 28.2.2
	Version  string            `json:"version,omitempty"`  // of the agent
	Address  string            `json:"address,omitempty"`  // under which other machines reach it
	Fence    Duration          `json:"fence,omitempty"`    // of at_most_one work; 0: the machine cannot fence
	Network  string            `json:"network,omitempty"`  // where members of gangs reach each other; see NetworkHost
	Ports    PortRange         `json:"ports,omitzero"`     // for members of gangs; zero: DefaultPorts
}

// Machine is a machine as users see it.
type Machine struct {
	ID       MachineID         `json:"id"`
	State    MachineState      `json:"state"`
	Reason   string            `json:"reason,omitempty"`
	Epoch    int64             `json:"epoch"`
	Pool     string            `json:"pool,omitempty"`
	Region   string            `json:"region,omitempty"`
	Site     string            `json:"site,omitempty"`
	Labels   map[string]string `json:"labels,omitempty"`
	Capacity Capacity          `json:"capacity"`
	Used     Capacity          `json:"used"`
	Free     Capacity          `json:"free"`
	Declared bool              `json:"declared,omitempty"`
	Engine   string            `json:"engine,omitempty"`
	Version  string            `json:"version,omitempty"`
	Fence    Duration          `json:"fence,omitempty"` // silence after which its deadman ends at_most_one work; 0: it cannot, and gets none
	SeenAt   *time.Time        `json:"seen_at,omitempty"`
	Deadline *time.Time        `json:"drain_deadline,omitempty"`
	GPUs     []MachineGPU      `json:"gpus,omitempty"`
	Jobs     []MachineJob      `json:"jobs,omitempty"`

	// EngineSilentSince is since when the container engine has not answered the
	// agent: the machine gets no new work, and Reason says so; nil: it answers.
	EngineSilentSince *time.Time `json:"engine_silent_since,omitempty"`
}

// MachineGPU is a device with its present use.
type MachineGPU struct {
	GPU
	UsedMilli int64   `json:"used_milli"`
	Jobs      []JobID `json:"jobs,omitempty"`
}

// MachineJob is one rank on a machine.
type MachineJob struct {
	Job     JobID           `json:"job"`
	Name    string          `json:"name"`
	Tenant  TenantID        `json:"tenant"`
	Attempt int             `json:"attempt"`
	Rank    int             `json:"rank"`
	State   AllocationState `json:"state"`
	Phase   Phase           `json:"phase,omitempty"`
}
