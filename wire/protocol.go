package wire

import (
	"fmt"
	"time"

	"berth"
	"berth/failure"
	"berth/spec"
)

// The agent protocol: the calls of a machine's agent to the API over HTTPS. Each
// call carries the machine's own token, which identifies the machine.

// Headers of the calls whose body is an object's or a log's content: the
// session they are made in. A writer whose session is over stores nothing.
const (
	HeaderAgentBoot = "Berth-Agent-Boot"
	HeaderEpoch     = "Berth-Epoch"

	// HeaderRest is the number of bytes of a checkpoint that are still to be stored,
	// the object of the call included. The server refuses the first object of a
	// checkpoint that cannot fit as a whole.
	HeaderRest = "Berth-Rest"
)

// JoinRequest trades a join token for a machine's own token. The join token
// travels as the bearer token of the call, so that it is judged before the body is
// read.
type JoinRequest struct {
	// Token is the join token again, for servers that look for it here alone; the header wins.
	Token   string          `json:"token"`
	Machine berth.MachineID `json:"machine"`
}

// JoinResponse holds a machine's permanent credentials. The token is shown once.
type JoinResponse struct {
	Token   string `json:"token"`
	Cluster string `json:"cluster"`
}

// RegisterRequest opens an agent's session.
type RegisterRequest struct {
	HostBoot   string          `json:"host_boot"`  // the kernel's boot id: a new one proves that no old container lives
	AgentBoot  string          `json:"agent_boot"` // random per process: only the latest registered one is accepted
	Inventory  Inventory       `json:"inventory"`
	Containers []ContainerSeen `json:"containers,omitempty"`

	Watermark StoredWatermark `json:"-"` // the highest that the machine saw; sent as HeaderWatermark
}

// ContainerSeen is a container with this cluster's and machine's labels.
type ContainerSeen struct {
	Alloc   berth.AllocationID `json:"alloc"`
	Job     berth.JobID        `json:"job"`
	Rank    int                `json:"rank"`
	Attempt int                `json:"attempt"`
	Running bool               `json:"running"`
}

// RegisterResponse answers with the session's terms.
type RegisterResponse struct {
	Cluster    string               `json:"cluster"` // random id of the database, a label of every container
	Epoch      int64                `json:"epoch"`
	TTLSeconds int                  `json:"ttl_seconds"`
	Kill       []berth.AllocationID `json:"kill,omitempty"` // seen containers that must go

	// Quarantine lists seen containers without a row, as after the restore of a
	// backup: they run on and belong to no job.
	Quarantine []berth.AllocationID `json:"quarantine,omitempty"`

	// Watermark is the newest as of Kill and Quarantine. Where it is lower than one
	// that the agent has seen, the answer is of a restored database and not to be
	// obeyed. nil: the server has none.
	Watermark *Watermark `json:"watermark,omitempty"`

	Sync SyncResponse `json:"sync"`
}

// SyncRequest renews the machine's lease, reports changes and asks for orders.
type SyncRequest struct {
	AgentBoot string `json:"agent_boot"`
	Epoch     int64  `json:"epoch"`
	// Seq rises with each call of this agent; an older call is ignored.
	Seq     int64                `json:"seq"`
	WaitMS  int                  `json:"wait_ms,omitempty"` // long-poll until orders differ from Digest
	Digest  string               `json:"digest,omitempty"`  // of the set of orders the agent has
	Reports []RankReport         `json:"reports,omitempty"`
	GPUs    []berth.GPU          `json:"gpus,omitempty"`  // sent when health changed
	Gone    []berth.AllocationID `json:"gone,omitempty"`  // members without a container on this machine
	Cache   *CacheReport         `json:"cache,omitempty"` // sent when it changed, and once a session
	Brief   bool                 `json:"brief,omitempty"` // of a call that reports: another one polls, so the set of assignments may be left out

	Watermark    StoredWatermark `json:"-"` // as in RegisterRequest
	EngineSilent time.Duration   `json:"-"` // a header, see internal/lib/enginesilence; 0: the container engine answers
}

// CacheReport lists the job data on a machine: the largest entries of its cache and
// of the images that jobs have used, at most spec.MaxCachedData. It replaces all earlier
// reports. With a lost or old report, a job may fetch data that it could have found,
// and nothing worse. A server that does not know it refuses the call.
type CacheReport struct {
	Holds []spec.CachedData `json:"holds"`
}

// SyncResponse carries the machine's full set of assignments whenever it differs
// from the agent's: the allocations that the machine holds, and reservations for it
// to claim.
type SyncResponse struct {
	TTLSeconds  int                  `json:"ttl_seconds"`
	Renewed     bool                 `json:"renewed,omitempty"` // the lease was, after this call arrived; one of a moment ago may do for the server
	Changed     bool                 `json:"changed"`
	Digest      string               `json:"digest,omitempty"`
	Assignments []Assignment         `json:"assignments,omitempty"`
	Started     []berth.AllocationID `json:"started,omitempty"` // this machine's members that this call's reports ordered to start
	Stale       []berth.AllocationID `json:"stale,omitempty"`   // reports refused because their attempt is not current: kill them
	Refused     []Refused            `json:"refused,omitempty"`
	Watermark   *Watermark           `json:"watermark,omitempty"` // as in RegisterResponse
}

// Refused is a part of a call that the database cannot take as it is, such as a
// report that breaks a constraint; the call's other parts were taken. Sending
// the same again is of no use before somebody has looked.
type Refused struct {
	Alloc  berth.AllocationID `json:"alloc,omitempty"` // 0: it was not about a member
	Detail string             `json:"detail"`
}

// Assignment is one member this machine is concerned with, and its orders.
type Assignment struct {
	Alloc   berth.AllocationID    `json:"alloc"`
	Job     berth.JobID           `json:"job"`
	Attempt int                   `json:"attempt"`
	Rank    int                   `json:"rank"`
	State   berth.AllocationState `json:"state"`
	Orders  berth.Orders          `json:"orders"`

	RunLimit spec.Duration `json:"run_limit,omitempty"` // present time_limit, which may change while it runs
}

// RankReport is a change on the machine. Reports are idempotent and carry the
// whole present state of the member, so that losing one is repaired by the next.
type RankReport struct {
	Alloc       berth.AllocationID `json:"alloc"`
	Job         berth.JobID        `json:"job"`
	Attempt     int                `json:"attempt"`
	Rank        int                `json:"rank"`
	Phase       berth.Phase        `json:"phase"`
	Exit        *failure.Exit      `json:"exit,omitempty"` // with exited and sealed
	Progress    *berth.Progress    `json:"progress,omitempty"`
	ImageDigest string             `json:"image_digest,omitempty"`
	Restored    *int64             `json:"restored,omitempty"` // the step that was verified and put in place
	Fetched     []Fetched          `json:"fetched,omitempty"`  // the data put in place for it
	Warning     string             `json:"warning,omitempty"`  // shown as an event, once per text
	Unwaited    bool               `json:"unwaited,omitempty"` // sealed, and without a waiter on the machine; ignored (ADR 0030), read by servers of the version before
}

// Fetched is content that was put in place for a member.
type Fetched struct {
	What    string        `json:"what"` // the field that names it, such as workdir
	Address berth.Address `json:"address"`
	Files   int           `json:"files"`
	Bytes   int64         `json:"bytes"`
	Cached  bool          `json:"cached,omitempty"` // the machine had it already
}

// String describes the data for users.
func (f Fetched) String() string {
	how := "fetched"
	if f.Cached {
		how = "was cached on the machine"
	}
	return fmt.Sprintf("%s %s (%d files, %s) %s", f.What, f.Address.Short(), f.Files, berth.BytesText(f.Bytes), how)
}

// ClaimRequest asks for the work of one allocation.
type ClaimRequest struct {
	AgentBoot string             `json:"agent_boot"`
	Epoch     int64              `json:"epoch"`
	Alloc     berth.AllocationID `json:"alloc"`
	Job       berth.JobID        `json:"job"`
	Attempt   int                `json:"attempt"`

	Watermark StoredWatermark `json:"-"` // as in RegisterRequest
}

// Claim is all that a machine needs to run one member.
type Claim struct {
	Alloc         berth.AllocationID `json:"alloc"`
	Job           berth.JobID        `json:"job"`
	Tenant        berth.TenantID     `json:"tenant"`
	Attempt       int                `json:"attempt"`
	Rank          int                `json:"rank"`
	Members       int                `json:"members"`
	Spec          spec.Job           `json:"spec"` // with defaults filled in
	SpecHash      string             `json:"spec_hash"`
	ImageDigest   string             `json:"image_digest,omitempty"` // resolved by an earlier attempt
	CPUMilli      int64              `json:"cpu_milli"`
	MemoryMiB     int64              `json:"memory_mib"`          // grown after an OOM, if the policy says so
	GPUs          []string           `json:"gpus,omitempty"`      // UUIDs
	Restore       []RestorePoint     `json:"restore,omitempty"`   // newest first; empty: a fresh start
	LogOffset     int64              `json:"log_offset"`          // bytes of this member's log already stored
	RunLimit      spec.Duration      `json:"run_limit,omitempty"` // time_limit, counted from the container's start
	Orders        berth.Orders       `json:"orders"`
	HadCheckpoint bool               `json:"had_checkpoint,omitempty"` // never start fresh silently
	Secrets       []spec.SecretValue `json:"secrets,omitempty"`        // that the job names; of work that has not begun
	ImageLogin    *Login             `json:"image_login,omitempty"`    // only to pull
	Inputs        []ClaimInput       `json:"inputs,omitempty"`         // outputs of other jobs, named by inputs
	InputLogins   []spec.SecretValue `json:"input_logins,omitempty"`   // only to fetch inputs
	Volumes       []spec.Volume      `json:"volumes,omitempty"`        // that the tenant's jobs may read, of a job that names some
	Withheld      *Withheld          `json:"withheld,omitempty"`       // why secrets are not here: it cannot begin
	Phase         berth.Phase        `json:"phase,omitempty"`          // the last one on record, for an agent that was restarted
	Peers         []Peer             `json:"peers,omitempty"`          // of a gang: its members in order, with this one
}

// ClaimInput says which content an input is.
type ClaimInput struct {
	Input   int           `json:"input"` // its place among the inputs of the spec
	Address berth.Address `json:"address"`
}

// Login is a registry's.
type Login struct {
	Username spec.Sensitive `json:"username"`
	Password spec.Sensitive `json:"password"`
}

// Withheld says why a claim comes without the secrets that its job names.
type Withheld struct {
	Missing bool   `json:"missing,omitempty"` // for good: trying again cannot help
	Message string `json:"message"`
}

// RestorePoint is a checkpoint a member may be restored from.
type RestorePoint struct {
	Step     int64  `json:"step"`
	Attempt  int    `json:"attempt"`
	Manifest string `json:"manifest"` // object key
	SHA256   string `json:"sha256"`   // of the manifest
}

// CheckpointReport registers one member's shard of a checkpoint, or says that
// one was found damaged (Bad not empty).
type CheckpointReport struct {
	AgentBoot string             `json:"agent_boot"`
	Epoch     int64              `json:"epoch"`
	Alloc     berth.AllocationID `json:"alloc"`
	Job       berth.JobID        `json:"job"`
	Attempt   int                `json:"attempt"` // the reporter's
	Rank      int                `json:"rank"`
	Step      int64              `json:"step"`
	OfAttempt int                `json:"of_attempt"` // that wrote the checkpoint; equals Attempt when registering
	Manifest  string             `json:"manifest,omitempty"`
	SHA256    string             `json:"sha256,omitempty"`
	Bytes     int64              `json:"bytes,omitempty"`
	Bad       string             `json:"bad,omitempty"`    // the damage that the restore found
	Failed    bool               `json:"failed,omitempty"` // with Bad: the restore failed without proof of damage; the second time counts as one
}

// LogAck answers an append to a member's log with the end of the stored part. If this
// is not the sender's own end, the sender continues from there.
type LogAck struct {
	End int64 `json:"end"`
}

// CheckpointManifest is the object written last: it makes a shard whole.
type CheckpointManifest struct {
	Job     berth.JobID      `json:"job"`
	Attempt int              `json:"attempt"`
	Rank    int              `json:"rank"`
	Step    int64            `json:"step"`
	Files   []CheckpointFile `json:"files"`
	At      time.Time        `json:"at"`
}

// CheckpointFile is one file of a shard.
type CheckpointFile struct {
	Path   string `json:"path"` // relative to step-N/, slash-separated, no ..
	Object string `json:"object"`
	SHA256 string `json:"sha256"`
	Bytes  int64  `json:"bytes"`
	Mode   uint32 `json:"mode"`
}

// OutputReport registers an output of one member.
type OutputReport struct {
	AgentBoot string             `json:"agent_boot"`
	Epoch     int64              `json:"epoch"`
	Alloc     berth.AllocationID `json:"alloc"`
	Job       berth.JobID        `json:"job"`
	Attempt   int                `json:"attempt"`
	Rank      int                `json:"rank"`
	Output    StoredOutput       `json:"output"`
}
