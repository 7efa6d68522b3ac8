// Package history holds the history in the rows of a Berth database: plain
// records, which internal/check reads. Package db fills them, from one snapshot
// and without taking a lock.
//
// The one rule to know: a record holds the values of columns, and no conclusion
// from them. JSON fields have the names of the columns.
package history

import (
	"time"

	"berth"
	"berth/failure"
	"berth/spec"
	"berth/wire"
)

// Cluster holds the records that belong to no single job or machine.
type Cluster struct {
	ID      string      `json:"id"`
	ReadAt  time.Time   `json:"read_at"` // the database's clock when its snapshot was taken
	SameKey []SharedKey `json:"same_key"`
	Stored  []Stored    `json:"stored"`

	Tenants []TenantChange `json:"tenants"` // by number of the ledger

	Incarnation int64        `json:"incarnation"` // of the database
	Spent       []Spent      `json:"spent"`
	Limits      []SpendLimit `json:"limits"`
	Breakers    []Breaker    `json:"breakers"`

	Miscounted []MiscountedChunk `json:"miscounted"` // chunks of checkpoints, a hundred at most
}

// MiscountedChunk is a chunk whose row has another number of references than there are.
type MiscountedChunk struct {
	Tenant berth.TenantID `json:"tenant"`
	SHA256 string         `json:"sha256"`
	Refs   *int64         `json:"refs"` // of its row; nil: it has none
	Rows   int64          `json:"rows"` // of chunk_refs
}

// TenantChange is a row of tenant_log: the parent and the limits of a tenant from that
// number of the ledger on. A nil limit binds nothing.
type TenantChange struct {
	Seq        int64          `json:"seq"`
	At         time.Time      `json:"at"`
	Tenant     berth.TenantID `json:"tenant"`
	Parent     berth.TenantID `json:"parent"` // "": none
	CPUMilli   *int64         `json:"limit_cpu_m"`
	MemoryMiB  *int64         `json:"limit_mem_mb"`
	GPUMilli   *int64         `json:"limit_gpu_milli"`
	MaxRunning *int64         `json:"max_running"` // jobs that hold capacity at once
	Deleted    bool           `json:"deleted"`
}

// Holding is the begin or the end of an allocation's share in its tenant's usage, at one
// number of the ledger.
type Holding struct {
	Seq       int64              `json:"seq"`
	Begins    bool               `json:"begins"` // else it ends
	Tenant    berth.TenantID     `json:"tenant"`
	Alloc     berth.AllocationID `json:"id"`
	Job       berth.JobID        `json:"job"`
	Attempt   int                `json:"attempt"`
	Machine   berth.MachineID    `json:"machine_id"`
	CPUMilli  int64              `json:"cpu_m"`
	MemoryMiB int64              `json:"mem_mb"`
	GPUMilli  int64              `json:"gpu_milli"`
	At        time.Time          `json:"reserved_at"`
}

// Stored is the data of one kind that a tenant stores: as counted, and as its rows come
// to.
type Stored struct {
	Tenant  berth.TenantID `json:"tenant"`
	Kind    string         `json:"kind"`
	Counted int64          `json:"counted"`
	Rows    int64          `json:"rows"`
}

// SharedKey is an idempotency key that more than one job carries.
type SharedKey struct {
	Tenant berth.TenantID `json:"tenant"`
	Key    string         `json:"key"`
	Jobs   []berth.JobID  `json:"jobs"`
}

// Job is one job's row and its dependent rows, each list in the order of writing unless
// the field says otherwise.
type Job struct {
	ID                berth.JobID    `json:"id"`
	Tenant            berth.TenantID `json:"tenant"`
	Kind              string         `json:"kind"`
	State             berth.State    `json:"state"`
	StateAt           time.Time      `json:"state_at"`
	Version           int64          `json:"version"`
	EventSeq          int64          `json:"event_seq"`
	Attempt           int            `json:"attempt"`
	Failures          int            `json:"failures"`
	Losses            int            `json:"losses"`
	Preemptions       int            `json:"preemptions"`
	Execution         string         `json:"execution"` // at_least_once or at_most_one
	Blocked           bool           `json:"blocked"`   // a step that waits for others
	GraceMS           int64          `json:"grace_ms"`
	LostAfterMS       int64          `json:"lost_after_ms"`
	CancelRequestedAt *time.Time     `json:"cancel_requested_at"`
	GaveWayTo         []berth.JobID  `json:"gave_way_to"` // in order
	SubmittedAt       time.Time      `json:"submitted_at"`
	UnagedMS          int64          `json:"unaged_ms"` // time that adds no age: held, blocked, or with capacity
	FinishedAt        *time.Time     `json:"finished_at"`

	Class        string   `json:"class"`
	Alternatives []string `json:"alternatives"` // classes; null: the job has none
	Alternative  int      `json:"alternative"`  // in force
	// Request is the request of the class, of a job with alternatives or groups; null: unknown.
	Request *spec.Request `json:"alternative_request"`

	Grouped   bool `json:"grouped"`
	LeadFirst *int `json:"lead_first"` // first member of the leading group; null: no group leads
	LeadLast  *int `json:"lead_last"`

	Debug bool  `json:"debug"` // it holds a failed attempt of another job
	Hold  *Hold `json:"hold"`  // of a debug job; null: none

	HasSpec     bool         `json:"has_spec"`
	Members     int          `json:"members"` // members of an attempt
	Events      []Event      `json:"events"`
	Attempts    []Attempt    `json:"attempts"`
	Allocations []Allocation `json:"allocations"` // by attempt and rank
	Checkpoints []Checkpoint `json:"checkpoints"`
	Start       *StartPoint  `json:"source"`  // nil: it started from its beginning
	Repairs     []Repair     `json:"repairs"` // by time
}

// Hold is a row of holds: the failed member whose files a debug job has.
type Hold struct {
	Job      berth.JobID     `json:"job"`
	Attempt  int             `json:"attempt"`
	Rank     int             `json:"rank"`
	Machine  berth.MachineID `json:"machine_id"`
	FreedSeq int64           `json:"freed_seq"` // of the failed member; 0: unknown
}

// Repair is a row of nomination_log: capacity of a gang on a machine, kept for the gang's
// next attempt.
type Repair struct {
	Machine berth.MachineID `json:"machine_id"`
	Attempt int             `json:"victim_attempt"` // attempt that had the capacity before
	MadeAt  time.Time       `json:"made_at"`
	GoneAt  *time.Time      `json:"gone_at"` // nil: still kept
}

// Family is a parent's row with the state of its children.
type Family struct {
	ID         berth.JobID `json:"id"`
	Kind       string      `json:"kind"`
	State      berth.State `json:"state"`
	StateAt    time.Time   `json:"state_at"`
	Held       bool        `json:"held"` // the job, or a parent above it
	Total      int         `json:"total"`
	Parallel   int         `json:"parallel"`
	Indexes    []int       `json:"indexes"` // null: from 0 on
	FinishedAt *time.Time  `json:"finished_at"`
	Children   []Child     `json:"children"`
	Archived   int         `json:"archived"` // number of children in the archive
}

// Child is an element of an array or a step of a pipeline.
type Child struct {
	ID         berth.JobID   `json:"id"`
	Index      int           `json:"array_index"`
	Step       string        `json:"step"`     // name in the pipeline; "": an element, which has an index
	Needs      []berth.JobID `json:"needs"`    // of a step
	When       string        `json:"run_when"` // condition of a step: success, failure or always
	Final      bool          `json:"final"`    // the step starts after all others
	Skipped    bool          `json:"skipped"`  // canceled, since the condition did not hold
	State      berth.State   `json:"state"`
	Blocked    bool          `json:"blocked"` // a step that waits for its needs
	Held       bool          `json:"held"`
	UpdatedAt  *time.Time    `json:"updated_at"` // blocked step: last change, or release, of step or pipeline
	FinishedAt *time.Time    `json:"finished_at"`
	Spans      []Span        `json:"spans"` // of a step that is a parent: of all jobs inside
}

// Span is the range of ledger numbers in which an allocation held capacity of a
// reachable machine.
type Span struct {
	Taken int64 `json:"taken"`
	Until int64 `json:"until"` // 0: until now
}

// Event is a row of job_events.
type Event struct {
	Seq     int64          `json:"seq"`
	At      time.Time      `json:"at"`
	Kind    wire.EventKind `json:"kind"`
	From    berth.State    `json:"from_state"`
	To      berth.State    `json:"to_state"`
	Attempt int            `json:"attempt"`
	Actor   string         `json:"actor"`
	Reason  *berth.Reason  `json:"reason"`
	Detail  string         `json:"detail"`

	Facts *wire.EventFacts `json:"facts"` // nil where an older berthd wrote the row
}

// Attempt is a row of attempts.
type Attempt struct {
	Attempt     int            `json:"attempt"`
	LeaderEpoch int64          `json:"leader_epoch"`
	PlacedAt    time.Time      `json:"placed_at"`
	StartedAt   *time.Time     `json:"started_at"`
	EndedAt     *time.Time     `json:"ended_at"`
	Outcome     *berth.Reason  `json:"outcome"`
	NextState   berth.State    `json:"next_state"`
	Budget      failure.Budget `json:"budget"` // "" while not settled, and before budgets were recorded
	ResumeFrom  *int64         `json:"resume_from"`
	Alternative *int           `json:"alternative"` // that it got; null: an older berthd started it
}

// Allocation is a row of allocations with its devices. The ledger numbers order the
// events on a machine; 0 means not yet, or not recorded.
type Allocation struct {
	ID           berth.AllocationID    `json:"id"`
	Job          berth.JobID           `json:"job"`
	Attempt      int                   `json:"attempt"`
	Rank         int                   `json:"rank"`
	Machine      berth.MachineID       `json:"machine_id"`
	MachineEpoch int64                 `json:"machine_epoch"`
	CPUMilli     int64                 `json:"cpu_m"`
	MemoryMiB    int64                 `json:"mem_mb"`
	DiskMiB      int64                 `json:"disk_mb"`
	GPUMilli     int64                 `json:"gpu_milli"`
	State        berth.AllocationState `json:"state"`
	Orders       berth.Orders          `json:"orders"`
	StopBy       *time.Time            `json:"stop_by"`
	Exit         *failure.Exit         `json:"exit"`
	Port         int                   `json:"port"` // 0: none
	PreparedAt   *time.Time            `json:"prepared_at"`
	ReservedAt   time.Time             `json:"reserved_at"`
	ClaimedAt    *time.Time            `json:"claimed_at"`
	StartedAt    *time.Time            `json:"started_at"`
	ExitedAt     *time.Time            `json:"exited_at"`
	SealedAt     *time.Time            `json:"sealed_at"`
	OrphanedAt   *time.Time            `json:"orphaned_at"`
	ReleasedAt   *time.Time            `json:"released_at"`
	ForgottenAt  *time.Time            `json:"forgotten_at"`
	TakenSeq     int64                 `json:"taken_seq"`
	OrphanedSeq  int64                 `json:"orphaned_seq"`
	FreedSeq     int64                 `json:"freed_seq"`
	FreedFrom    berth.AllocationState `json:"freed_from"`
	FreedBy      string                `json:"freed_by"` // agent, boot, provider, operator, unclaimed, hold
	GPUs         []DeviceAllocation    `json:"gpus"`
	Tenant       berth.TenantID        `json:"tenant"`     // of the job
	OneTenant    bool                  `json:"one_tenant"` // committed for a machine used by one tenant at a time
	Untrusted    bool                  `json:"untrusted"`  // the tenant was untrusted at the commit
}

// Counts reports whether the allocation counts against its machine now.
func (a Allocation) Counts() bool {
	switch a.State {
	case berth.AllocReserved, berth.AllocActive, berth.AllocOrphaned:
		return true
	case berth.AllocExited, berth.AllocReleased:
		return false
	default:
		panic("unknown allocation state " + string(a.State))
	}
}

// DeviceAllocation is a row of device_allocations.
type DeviceAllocation struct {
	Index int   `json:"idx"`
	Milli int64 `json:"milli"` // 1000 is the whole device
	// Tenant is set if the reservation may share the device with this tenant only.
	Tenant berth.TenantID `json:"tenant"`
}

// Checkpoint is a row of checkpoints with the number of registered shards.
type Checkpoint struct {
	Step           int64                 `json:"step"`
	Attempt        int                   `json:"attempt"`
	Ranks          int                   `json:"ranks"`
	State          berth.CheckpointState `json:"state"`
	FailedRestores int                   `json:"failed_restores"`
	Shards         int                   `json:"shards"`
	Pinned         bool                  `json:"pinned"`
	ChunkedBytes   int64                 `json:"chunked_bytes"` // in files that consist of chunks
	ChunkRefs      int64                 `json:"chunk_refs"`    // rows
}

// StartPoint is a row of job_sources with the checkpoint that it refers to.
type StartPoint struct {
	Job     berth.JobID           `json:"job"`
	Attempt int                   `json:"attempt"`
	Step    int64                 `json:"step"`
	State   berth.CheckpointState `json:"state"` // "": there is no such checkpoint
	Ranks   int                   `json:"ranks"`
	Shards  int                   `json:"shards"`
	Parts   int                   `json:"parts"` // that each member of the job gets; 0: the part of its number
}

// Whole reports whether every member's shard was registered. A whole checkpoint was
// verified once, even if a later state says otherwise.
func (c Checkpoint) Whole() bool { return c.Shards >= c.Ranks }

// Machine is one machine's row with its events and all its allocations, past and present.
type Machine struct {
	ID       berth.MachineID    `json:"id"`
	State    berth.MachineState `json:"state"`
	Epoch    int64              `json:"epoch"`
	CPUUsed  int64              `json:"cpu_m_used"`
	MemUsed  int64              `json:"mem_mb_used"`
	DiskUsed int64              `json:"disk_mb_used"`
	GPUUsed  int64              `json:"gpu_milli_used"`

	GPUs        []GPU          `json:"gpus"`
	Events      []MachineEvent `json:"events"`      // by number of the ledger
	Allocations []Allocation   `json:"allocations"` // by number of the ledger
	Nominations []Nomination   `json:"nominations"` // of its devices, by number of the ledger
	Windows     []Window       `json:"windows"`     // by id, without canceled ones
}

// Window is a maintenance window of a machine.
type Window struct {
	ID        int64     `json:"id"`
	ClosesAt  time.Time `json:"closes_at"` // nothing is placed on the machine from then on
	EndsAt    time.Time `json:"ends_at"`
	UpdatedAt time.Time `json:"updated_at"` // time of the latest change to these times
}

// Nomination is a row of nomination_log: between two ledger numbers, a part of a device was
// kept for a job, which could use the part once the victim had released the device.
type Nomination struct {
	Beneficiary   berth.JobID `json:"beneficiary"`
	Index         int         `json:"gpu_idx"`
	Milli         int64       `json:"milli"`
	Victim        berth.JobID `json:"victim"` // "": the device was free
	VictimAttempt int         `json:"victim_attempt"`
	FromSeq       int64       `json:"from_seq"`
	UntilSeq      int64       `json:"until_seq"` // 0: still kept
}

// GPU is a row of gpu_devices.
type GPU struct {
	Index     int    `json:"idx"`
	UUID      string `json:"uuid"`
	MilliUsed int64  `json:"milli_used"`
}

// MachineEvent is a row of machine_events: the state of a machine or of one device from
// ledger number Seq on.
type MachineEvent struct {
	Seq       int64     `json:"seq"`
	At        time.Time `json:"at"`
	GPU       *int      `json:"gpu"`   // nil: the machine itself
	State     string    `json:"state"` // of the machine; healthy or unhealthy of a device
	Reason    string    `json:"reason"`
	Epoch     int64     `json:"epoch"`
	HostBoot  string    `json:"host_boot"`
	CPUMilli  int64     `json:"cpu_m"`
	MemoryMiB int64     `json:"mem_mb"`
	DiskMiB   int64     `json:"disk_mb"`
	GPUMilli  int64     `json:"gpu_milli"`

	MeetsFloors bool `json:"meets_floors"` // the security floors; false in rows of versions without them
}
