package history

import (
	"time"

	"berth"
	"berth/spec"
)

// A recording is the part of the rows that a replay of the queue needs: capacity, requests, times, quotas and
// prices. It has no specs, so neither images, commands, variables nor secrets. Its fields are the fields of the
// file of berth-sim snapshot.

// RecordedCluster holds the records of which there are few.
type RecordedCluster struct {
	Archived int              `json:"archived"` // jobs of the period whose rows are in the archive
	Tenants  []RecordedTenant `json:"tenants"`
	Pools    []RecordedPool   `json:"pools"`
	Bursts   []RecordedBurst  `json:"bursts"`
	Offers   []RecordedOffer  `json:"offers"`
	Classes  []RecordedClass  `json:"classes"`
}

// RecordedTenant is a tenant with its present quota. A nil amount sets no guarantee and no limit.
type RecordedTenant struct {
	ID         berth.TenantID  `json:"id"`
	Parent     berth.TenantID  `json:"parent,omitempty"`
	Weight     float64         `json:"weight"`
	Guarantee  RecordedAmounts `json:"guarantee"`
	Limit      RecordedAmounts `json:"limit"`
	Borrow     spec.Borrow     `json:"borrow"`
	MaxRunning *int            `json:"max_running,omitempty"`
	GPUHours   *float64        `json:"budget_gpu_hours,omitempty"` // of a period of its budget
}

// RecordedAmounts are the amounts of a quota.
type RecordedAmounts struct {
	CPUMilli  *int64 `json:"cpu_milli,omitempty"`
	MemoryMiB *int64 `json:"memory_mib,omitempty"`
	GPUMilli  *int64 `json:"gpu_milli,omitempty"`
}

// RecordedPool is a pool with rules about tenants.
type RecordedPool struct {
	Name      string           `json:"name"`
	Tenants   []berth.TenantID `json:"tenants"` // whose jobs it admits; nil: all
	OneTenant bool             `json:"one_tenant,omitempty"`
}

// RecordedBurst is the burst policy of one tenant, without the policies above.
type RecordedBurst struct {
	Tenant berth.TenantID `json:"tenant"`
	Policy spec.Burst     `json:"policy"`
}

// RecordedOffer is a machine type of a cloud with its price.
type RecordedOffer struct {
	Provider  string  `json:"provider"`
	Region    string  `json:"region"`
	Zone      string  `json:"zone,omitempty"`
	Type      string  `json:"type"`
	Market    string  `json:"market"`
	CPUs      int     `json:"cpus"`
	MemoryMiB int64   `json:"memory_mib"`
	GPUs      int     `json:"gpus,omitempty"`
	GPUType   string  `json:"gpu_type,omitempty"`
	Price     float64 `json:"price_per_hour"` // US dollars; 0: unknown
	AsOf      string  `json:"as_of"`          // date of the price
}

// RecordedClass is the request of jobs.
type RecordedClass struct {
	Class   string       `json:"class"`
	Request spec.Request `json:"request"`
}

// RecordedMachine is a machine that was in service during the period.
type RecordedMachine struct {
	ID      berth.MachineID   `json:"id"`
	Pool    string            `json:"pool"`
	Region  string            `json:"region"`
	Site    string            `json:"site"`
	Network string            `json:"network"`
	Fences  bool              `json:"fences"`
	Labels  map[string]string `json:"labels"`
	GPUs    []RecordedGPU     `json:"gpus"`   // by index
	States  []RecordedState   `json:"states"` // by time; the first may be from before the period
	Health  []RecordedHealth  `json:"health"` // of devices, by time
}

// RecordedGPU is a device of a machine.
type RecordedGPU struct {
	Index     int    `json:"index"`
	Model     string `json:"model"`
	MemoryMiB int64  `json:"memory_mib"`
}

// RecordedState is the state of a machine, and its capacity, from a time on.
type RecordedState struct {
	At    time.Time          `json:"at"`
	State berth.MachineState `json:"state"`
	berth.Capacity
}

// RecordedHealth is the condition of a device from a time on.
type RecordedHealth struct {
	At      time.Time `json:"at"`
	GPU     int       `json:"gpu"`
	Healthy bool      `json:"healthy"`
}

// RecordedLaunch is a launch of a machine of a cloud.
type RecordedLaunch struct {
	Machine   berth.MachineID `json:"machine"`
	N         int             `json:"n"`
	Tenant    berth.TenantID  `json:"tenant,omitempty"` // that pays; "": launched by hand
	Provider  string          `json:"provider"`
	Region    string          `json:"region"`
	Zone      string          `json:"zone,omitempty"`
	Type      string          `json:"type"`
	Market    string          `json:"market"`
	Price     float64         `json:"price_per_hour"` // US dollars; 0: unknown
	State     string          `json:"state"`
	CreatedAt time.Time       `json:"created_at"`
	JoinedAt  *time.Time      `json:"joined_at,omitempty"`
	EndedAt   *time.Time      `json:"ended_at,omitempty"`
	Settled   int64           `json:"settled"` // micro-dollars, for the time up to SettledTo
	SettledTo *time.Time      `json:"settled_to,omitempty"`
}

// RecordedJob is a job that had not ended at the begin of the period.
type RecordedJob struct {
	ID           berth.JobID       `json:"id"`
	Tenant       berth.TenantID    `json:"tenant"`
	Class        string            `json:"class"`
	Like         string            `json:"like"`             // equal for jobs of one name and step
	Parent       berth.JobID       `json:"parent,omitempty"` // array or pipeline
	Parallel     int               `json:"parallel,omitempty"`
	Priority     int               `json:"priority"`
	Preemptible  bool              `json:"preemptible"`
	State        berth.State       `json:"state"`
	SubmittedAt  time.Time         `json:"submitted_at"`
	ReadyAt      *time.Time        `json:"ready_at,omitempty"` // nil: it still waits for other jobs or is held
	FinishedAt   *time.Time        `json:"finished_at,omitempty"`
	RunLimitMS   int64             `json:"run_limit_ms,omitempty"`
	GraceMS      int64             `json:"grace_ms"`
	CheckpointMS int64             `json:"checkpoint_ms,omitempty"` // interval; 0: none, or chosen by the job
	Attempts     []RecordedAttempt `json:"attempts"`
}

// RecordedAttempt is one run of a job, from its placement to the release of its capacity.
type RecordedAttempt struct {
	Attempt   int              `json:"attempt"`
	PlacedAt  time.Time        `json:"placed_at"`
	StartedAt *time.Time       `json:"started_at,omitempty"` // nil: no container ran
	FreedAt   *time.Time       `json:"freed_at,omitempty"`   // nil: it holds capacity
	KeptTo    *time.Time       `json:"kept_to,omitempty"`    // its last verified checkpoint
	Outcome   berth.ReasonCode `json:"outcome,omitempty"`
	Budget    string           `json:"budget,omitempty"` // none, user or infra; "": not settled
	// Members are the places of an attempt that held capacity at the begin of the period. Other attempts have none.
	Members []RecordedMember `json:"members,omitempty"`
}

// RecordedMember is the place of one member.
type RecordedMember struct {
	Machine berth.MachineID `json:"machine"`
	berth.Capacity
	GPUs []RecordedShare `json:"gpus,omitempty"`
}

// RecordedShare is a share of one device.
type RecordedShare struct {
	Index int   `json:"index"`
	Milli int64 `json:"milli"` // 1000: the whole device
}
