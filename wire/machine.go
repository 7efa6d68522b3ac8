package wire

import (
	"time"

	"berth"
	"berth/spec"
)

// Inventory is the equipment that a machine reports at its registration.
type Inventory struct {
	Capacity berth.Capacity    `json:"capacity"`
	Region   string            `json:"region,omitempty"`
	Site     string            `json:"site,omitempty"` // on_prem or cloud
	Pool     string            `json:"pool,omitempty"`
	Labels   map[string]string `json:"labels,omitempty"`
	GPUs     []berth.GPU       `json:"gpus,omitempty"`
	Declared bool              `json:"declared,omitempty"` // GPUs are declared by file, not read from hardware
	Engine   string            `json:"engine,omitempty"`   // such as docker 28.2.2
	Version  string            `json:"version,omitempty"`  // of the agent
	Address  string            `json:"address,omitempty"`  // for connections from other machines
	Fence    spec.Duration     `json:"fence,omitempty"`    // silence until its deadman acts; 0: cannot fence
	Network  string            `json:"network,omitempty"`  // connects members of gangs; see NetworkHost
	Ports    PortRange         `json:"ports,omitzero"`     // for members of gangs; zero: DefaultPorts
}

// Machine is the API's document of a machine.
type Machine struct {
	ID       berth.MachineID    `json:"id"`
	State    berth.MachineState `json:"state"`
	Reason   string             `json:"reason,omitempty"`
	Epoch    int64              `json:"epoch"`
	Pool     string             `json:"pool,omitempty"`
	Region   string             `json:"region,omitempty"`
	Site     string             `json:"site,omitempty"`
	Labels   map[string]string  `json:"labels,omitempty"`
	Capacity berth.Capacity     `json:"capacity"`
	Used     berth.Capacity     `json:"used"`
	Free     berth.Capacity     `json:"free"`
	Declared bool               `json:"declared,omitempty"`
	Engine   string             `json:"engine,omitempty"`
	Version  string             `json:"version,omitempty"`
	Fence    spec.Duration      `json:"fence,omitempty"` // of at_most_one work, see Inventory
	SeenAt   *time.Time         `json:"seen_at,omitempty"`
	Deadline *time.Time         `json:"drain_deadline,omitempty"`
	GPUs     []MachineGPU       `json:"gpus,omitempty"`
	Jobs     []MachineJob       `json:"jobs,omitempty"`

	// EngineSilentSince is the time since which the container engine has not answered the
	// agent; nil: it answers. Meanwhile the machine gets no new work, and Reason contains
	// this fact.
	EngineSilentSince *time.Time `json:"engine_silent_since,omitempty"`
}

// MachineGPU is a device with its present use.
type MachineGPU struct {
	berth.GPU
	UsedMilli int64         `json:"used_milli"`
	Jobs      []berth.JobID `json:"jobs,omitempty"`
}

// MachineJob is one member on a machine.
type MachineJob struct {
	Job     berth.JobID           `json:"job"`
	Handle  string                `json:"handle,omitempty" doc:"of job; only where one machine is shown"`
	Name    string                `json:"name"`
	Tenant  berth.TenantID        `json:"tenant"`
	Attempt int                   `json:"attempt"`
	Rank    int                   `json:"rank"`
	State   berth.AllocationState `json:"state"`
	Phase   berth.Phase           `json:"phase,omitempty"`
}

// DrainRequest is the body of a call that drains a machine: the machine gets no new work.
type DrainRequest struct {
	Reason   string     `json:"reason,omitempty"`
	Deadline *time.Time `json:"deadline,omitempty" doc:"time when running jobs are moved away; unset: never"`
}

// ConfirmedDead lists the jobs with capacity that an operator's confirmation released.
type ConfirmedDead struct {
	Machine Machine       `json:"machine"`
	Jobs    []berth.JobID `json:"jobs" doc:"jobs that held capacity there"`
}
