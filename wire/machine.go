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

// MachineDrained is the shown state of a draining machine that holds no work: no container may
// run there, and all logs and outputs are stored. It is derived from the rows at each read and
// never stored (docs/adr/0043-drained-is-derived.md).
const MachineDrained berth.MachineState = "drained"

// Machine is the API's document of a machine.
type Machine struct {
	ID       berth.MachineID    `json:"id"`
	State    berth.MachineState `json:"state" doc:"joining, pending, ready, suspect, draining, drained, lost, retired"`
	StateAt  *time.Time         `json:"state_at,omitempty" doc:"start of the state; of drained: of the drain"`
	Reason   string             `json:"reason,omitempty"`
	Epoch    int64              `json:"epoch"`
	Pool     string             `json:"pool,omitempty"`
	Region   string             `json:"region,omitempty"`
	Site     string             `json:"site,omitempty"`
	Labels   map[string]string  `json:"labels,omitempty"`
	Taints   []string           `json:"taints,omitempty" doc:"of the machine and of its pool"`
	Capacity berth.Capacity     `json:"capacity"`
	Used     berth.Capacity     `json:"used"`
	Free     berth.Capacity     `json:"free"`
	Declared bool               `json:"declared,omitempty"`
	Engine   string             `json:"engine,omitempty"`
	Version  string             `json:"version,omitempty"`
	Fence    spec.Duration      `json:"fence,omitempty"` // of at_most_one work, see Inventory
	SeenAt   *time.Time         `json:"seen_at,omitempty"`
	Deadline *time.Time         `json:"drain_deadline,omitempty"`
	DrainBy  string             `json:"drain_actor,omitempty" doc:"author of the drain, such as operator:NAME"`
	GPUs     []MachineGPU       `json:"gpus,omitempty"`
	Jobs     []MachineJob       `json:"jobs,omitempty"`

	// Measured is the last measured use, next to Used, which is reserved; nil: none is known.
	Measured *MeasuredUse `json:"measured,omitempty"`

	// EngineSilentSince is the time since which the container engine has not answered the
	// agent; nil: it answers. Meanwhile the machine gets no new work, and Reason contains
	// this fact.
	EngineSilentSince *time.Time `json:"engine_silent_since,omitempty"`

	// Security describes how the machine stands to the security floors; nil: it has never registered.
	Security *MachineSecurity `json:"security,omitempty"`

	// Maintenance is the next or present maintenance window; nil: none.
	Maintenance *MachineMaintenance `json:"maintenance,omitempty"`

	// Approval describes the equipment of a machine that waits or waited for an approval; nil: the
	// machine never needed one.
	Approval *Approval `json:"approval,omitempty"`

	// Images are container images in the machine's store, largest first, as far as recent jobs
	// of the caller name them. Set only where one machine is shown.
	Images []MachineImage `json:"images,omitempty"`
}

// MachineImage is a container image that a machine holds.
type MachineImage struct {
	Image  string         `json:"image"`
	Tenant berth.TenantID `json:"tenant" doc:"tenant whose jobs used the image there"`
	MiB    int64          `json:"mib"`
}

// MachineEvent is one entry of a machine's history. Seq rises within a machine, with gaps.
type MachineEvent struct {
	Seq      int64      `json:"seq"`
	At       time.Time  `json:"at"`
	GPU      *int       `json:"gpu,omitempty" doc:"index of the GPU that the event concerns; unset: the machine"`
	State    string     `json:"state" doc:"state of the machine; of a GPU healthy or unhealthy"`
	Reason   string     `json:"reason,omitempty"`
	Actor    string     `json:"actor,omitempty" doc:"operator:NAME, leader or agent:MACHINE; unset: not known"`
	Deadline *time.Time `json:"drain_deadline,omitempty"`
	Epoch    int64      `json:"epoch,omitempty" doc:"registration of the agent"`
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
	Handle  string                `json:"handle,omitempty" doc:"short form of the job id; only for a single machine"`
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
