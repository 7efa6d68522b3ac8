package wire

import (
	"fmt"
	"time"

	"berth"
	"berth/failure"
	"berth/spec"
)

// The agent protocol: the calls of a machine's agent to the API over HTTPS. Each
// call but join and renew carries the machine's own token, which identifies the machine.

// Headers of calls with the content of an object or a log as their body. They name the
// session of the call; the server stores nothing for a session that has ended.
const (
	HeaderAgentBoot = "Berth-Agent-Boot"
	HeaderEpoch     = "Berth-Epoch"

	// HeaderRest is the number of bytes of a checkpoint that are still to be stored,
	// the object of the call included. The server refuses the first object of a
	// checkpoint that cannot fit as a whole.
	HeaderRest = "Berth-Rest"
)

// HeaderSources is set, to 1, in a claim by an agent that restores checkpoints of other jobs.
// Agents of earlier versions take such a checkpoint for a damaged one, so that the server
// refuses their claims of a job that needs it.
const HeaderSources = "Berth-Sources"

// HeaderParts is set, to 1, in a claim by an agent that restores RestorePoint.Parts. Agents of earlier versions take
// such a checkpoint for a damaged one, so the server refuses their claims of a job that needs it.
const HeaderParts = "Berth-Parts"

// HeaderSignatures is set, to 1, in a claim by an agent that verifies signatures of images. The server
// withholds work that needs a signature from other agents.
const HeaderSignatures = "Berth-Signatures"

// HeaderUsers is set, to 1, in a claim by an agent that obeys Claim.User, and a read-only root. The
// server withholds work that needs either from other agents.
const HeaderUsers = "Berth-Users"

// JoinRequest exchanges a join token for a machine's own token. The join token is the
// bearer token of the call, so that the server checks it before it reads the body.
type JoinRequest struct {
	// Token repeats the join token for servers that read it from the body alone. A server
	// that reads the header ignores Token.
	Token   string          `json:"token"`
	Machine berth.MachineID `json:"machine"`
	// Identity proves that this machine is the instance of its launch, where the bootstrap of the launch demands
	// it. A server of a previous version refuses a body with it.
	Identity *Identity `json:"identity,omitempty"`
}

// JoinResponse holds a machine's first credential. The token is shown once.
type JoinResponse struct {
	Token   string `json:"token"`
	Cluster string `json:"cluster"`
	// TTLSeconds is the time until the end of the token. 0: the token has no end and is bound to no
	// key, since the agent sent none or the server is older than keys.
	TTLSeconds int `json:"ttl_seconds,omitempty"`
}

// RegisterRequest opens an agent's session.
type RegisterRequest struct {
	HostBoot   string          `json:"host_boot"`  // the kernel's boot id; a new one: old containers are gone
	AgentBoot  string          `json:"agent_boot"` // random per process; only the latest registered one is accepted
	Inventory  Inventory       `json:"inventory"`
	Containers []ContainerSeen `json:"containers,omitempty"`

	Watermark StoredWatermark `json:"-"` // the highest that the machine has seen; sent as HeaderWatermark
}

// ContainerSeen is a container on the machine with the labels of this cluster and machine.
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
	Kill       []berth.AllocationID `json:"kill,omitempty"` // reported containers that the agent must remove

	// Quarantine lists reported containers without a row, as after the restore of a
	// backup. They continue to run and belong to no job.
	Quarantine []berth.AllocationID `json:"quarantine,omitempty"`

	// Watermark is the newest one at the time of Kill and Quarantine. If it is lower than
	// one that the agent has seen, the answer comes from a restored database and the agent
	// must not obey it. nil: the server has no watermark.
	Watermark *Watermark `json:"watermark,omitempty"`

	Sync SyncResponse `json:"sync"`
}

// SyncRequest renews the machine's lease, reports changes and asks for orders.
type SyncRequest struct {
	AgentBoot string `json:"agent_boot"`
	Epoch     int64  `json:"epoch"`
	// Seq rises with each call of this agent; an older call is ignored.
	Seq     int64                `json:"seq"`
	WaitMS  int                  `json:"wait_ms,omitempty"` // longest wait for orders other than Digest
	Digest  string               `json:"digest,omitempty"`  // of the orders that the agent has
	Reports []RankReport         `json:"reports,omitempty"`
	GPUs    []berth.GPU          `json:"gpus,omitempty"`  // sent when health changed
	Gone    []berth.AllocationID `json:"gone,omitempty"`  // members without a container on this machine
	Cache   *CacheReport         `json:"cache,omitempty"` // sent when it changed, and once a session
	// Brief marks a call that only reports, while another call polls. The answer may leave
	// out the assignments.
	Brief bool `json:"brief,omitempty"`

	Watermark    StoredWatermark `json:"-"` // as in RegisterRequest
	EngineSilent time.Duration   `json:"-"` // a header, see internal/lib/enginesilence; 0: the container engine answers
	// Stuck lists members with containers that do not end on SIGKILL, sent as HeaderStuck.
	Stuck       []berth.AllocationID `json:"-"`
	CloudNotice *CloudNotice         `json:"-"` // sent as HeaderCloudNotice; nil: none, or a confirmed one
}

// CacheReport lists the job data on a machine: the largest entries of its cache and
// of the images that jobs have used, at most spec.MaxCachedData. It replaces all earlier
// reports. The worst effect of a lost or old report is that a job fetches data which some
// other machine has. A server of a version without cache reports refuses the call.
type CacheReport struct {
	Holds []spec.CachedData `json:"holds"`
}

// SyncResponse carries the machine's full set of assignments whenever it differs
// from the agent's: the allocations that the machine holds, and reservations for it
// to claim.
type SyncResponse struct {
	TTLSeconds int `json:"ttl_seconds"`
	// Renewed reports that the lease was renewed after this call arrived. Without it, the
	// server may have relied on a renewal of a moment ago.
	Renewed     bool         `json:"renewed,omitempty"`
	Changed     bool         `json:"changed"`
	Digest      string       `json:"digest,omitempty"`
	Assignments []Assignment `json:"assignments,omitempty"`
	// Sessions, with Changed, are the sessions of users that wait for this machine.
	Sessions []SessionOrder `json:"sessions,omitempty"`
	// Followed, with Changed, are the members whose unfinished lines the agent reads and sends in an UnfinishedReport,
	// until an answer leaves them out. An older agent ignores it.
	Followed []berth.AllocationID `json:"followed,omitempty"`
	// Started lists members on this machine that start by this call's reports: the last
	// member to be prepared starts all members.
	Started []berth.AllocationID `json:"started,omitempty"`
	// Stale lists members with a report of an attempt that is not current. The agent kills
	// their containers.
	Stale     []berth.AllocationID `json:"stale,omitempty"`
	Refused   []Refused            `json:"refused,omitempty"`
	Watermark *Watermark           `json:"watermark,omitempty"` // as in RegisterResponse
	// Noticed confirms that the CloudNotice of the call is stored, by its String.
	Noticed string `json:"noticed,omitempty"`
}

// Refused is a part of a call that the database rejects, such as a report that breaks a
// constraint; the other parts of the call are stored. A repetition fails as well, until
// an operator has removed the cause.
type Refused struct {
	Alloc  berth.AllocationID `json:"alloc,omitempty"` // 0: the part did not concern a member
	Detail string             `json:"detail"`
}

// Assignment is one member on this machine, with its orders.
type Assignment struct {
	Alloc   berth.AllocationID    `json:"alloc"`
	Job     berth.JobID           `json:"job"`
	Attempt int                   `json:"attempt"`
	Rank    int                   `json:"rank"`
	State   berth.AllocationState `json:"state"`
	Orders  berth.Orders          `json:"orders"`

	RunLimit spec.Duration `json:"run_limit,omitempty"` // present time_limit, which may change during a run
}

// RankReport is the state of a member on its machine, sent after a change. Reports are
// idempotent and carry the whole present state, so that the next report repairs the loss
// of an earlier one.
type RankReport struct {
	Alloc       berth.AllocationID `json:"alloc"`
	Job         berth.JobID        `json:"job"`
	Attempt     int                `json:"attempt"`
	Rank        int                `json:"rank"`
	Phase       berth.Phase        `json:"phase"`
	Exit        *failure.Exit      `json:"exit,omitempty"` // with exited and sealed
	Progress    *berth.Progress    `json:"progress,omitempty"`
	ImageDigest string             `json:"image_digest,omitempty"`
	Restored    *int64             `json:"restored,omitempty"` // step of the checkpoint that was verified and restored
	Fetched     []Fetched          `json:"fetched,omitempty"`  // data that the machine has provided to the member
	Warning     string             `json:"warning,omitempty"`  // shown as an event, once per text
	// Unwaited reports a sealed member without a waiter on the machine. Servers ignore it
	// since ADR 0030; servers of the version before read it.
	Unwaited bool `json:"unwaited,omitempty"`
}

// Fetched is content that the machine has provided to a member.
type Fetched struct {
	What    string        `json:"what"` // the field of the spec, such as workdir
	Address berth.Address `json:"address"`
	Files   int           `json:"files"`
	Bytes   int64         `json:"bytes"`
	Cached  bool          `json:"cached,omitempty"` // the content was in the machine's cache
}

// Mounted is the address of a mounted folder. The folder has no version: its files may change at
// any time, so attempts and members that read it are never compared.
const Mounted berth.Address = "unversioned"

// String describes the data for users.
func (f Fetched) String() string {
	if f.Address == Mounted {
		return "mounted " + f.What + " read-only, unversioned"
	}
	how := "fetched"
	if f.Cached {
		how = "reused cached"
	}
	files := "files"
	if f.Files == 1 {
		files = "file"
	}
	return fmt.Sprintf("%s %s (%d %s, %s) %s", how, f.What, f.Files, files, berth.BytesText(f.Bytes), f.Address.Short())
}

// ClaimRequest asks for the work of one allocation.
type ClaimRequest struct {
	AgentBoot string             `json:"agent_boot"`
	Epoch     int64              `json:"epoch"`
	Alloc     berth.AllocationID `json:"alloc"`
	Job       berth.JobID        `json:"job"`
	Attempt   int                `json:"attempt"`

	Watermark StoredWatermark `json:"-"` // as in RegisterRequest
	Sources   bool            `json:"-"` // sent as HeaderSources
	Parts     bool            `json:"-"` // sent as HeaderParts
	Chunks    bool            `json:"-"` // sent as HeaderChunks
	Holds     bool            `json:"-"` // sent as HeaderHolds
}

// Claim contains all data that a machine needs to run one member.
type Claim struct {
	Alloc         berth.AllocationID `json:"alloc"`
	Job           berth.JobID        `json:"job"`
	Tenant        berth.TenantID     `json:"tenant"`
	Attempt       int                `json:"attempt"`
	Rank          int                `json:"rank"`
	Members       int                `json:"members"`
	Spec          spec.Job           `json:"spec"` // with defaults filled in
	SpecHash      string             `json:"spec_hash"`
	ImageDigest   string             `json:"image_digest,omitempty"` // digest that the job must run; "": not fixed yet
	FixImage      bool               `json:"fix_image,omitempty"`    // send an ImageReport before creating a container
	ImageDigestBy DigestBy           `json:"image_digest_by,omitempty"`
	ImageDigestAt *time.Time         `json:"image_digest_at,omitempty"` // when the digest was found; nil: unknown
	CPUMilli      int64              `json:"cpu_milli"`
	MemoryMiB     int64              `json:"memory_mib"`          // grown after an OOM, if the policy says so
	GPUs          []string           `json:"gpus,omitempty"`      // UUIDs
	Restore       []RestorePoint     `json:"restore,omitempty"`   // newest first; empty: a fresh start
	LogOffset     int64              `json:"log_offset"`          // bytes of this member's log already stored
	RunLimit      spec.Duration      `json:"run_limit,omitempty"` // time_limit, counted from the container's start
	Orders        berth.Orders       `json:"orders"`
	HadCheckpoint bool               `json:"had_checkpoint,omitempty"` // never start fresh silently
	Secrets       []spec.SecretValue `json:"secrets,omitempty"`        // for the container; only before the work starts
	ImageLogin    *Login             `json:"image_login,omitempty"`    // only to pull
	Inputs        []ClaimInput       `json:"inputs,omitempty"`         // content of inputs that are outputs of jobs
	InputLogins   []spec.SecretValue `json:"input_logins,omitempty"`   // only to fetch inputs
	Volumes       []spec.Volume      `json:"volumes,omitempty"`        // that the tenant may read, if the job reads any
	Signatures    []SignatureDemand  `json:"signatures,omitempty"`     // of the image; all must be fulfilled
	User          string             `json:"user,omitempty"`           // image or UID:GID; "" is image
	Withheld      *Withheld          `json:"withheld,omitempty"`       // reason why the work cannot start
	Held          *HeldFiles         `json:"held,omitempty"`           // debug jobs: the folder to take over
	Phase         berth.Phase        `json:"phase,omitempty"`          // the last recorded one, for a restarted agent
	Peers         []Peer             `json:"peers,omitempty"`          // members of a gang by rank, this one included
}

// ClaimInput is the content of one input.
type ClaimInput struct {
	Input   int           `json:"input"` // index in Spec.Inputs
	Address berth.Address `json:"address"`
}

// Login is a login to an image registry.
type Login struct {
	Username spec.Sensitive `json:"username"`
	Password spec.Sensitive `json:"password"`
}

// SignatureDemand asks for a signature of a job's image. One signature by one of the keys fulfils it.
type SignatureDemand struct {
	Whose string   `json:"whose"` // author of the demand: the cluster, or a tenant
	Keys  []string `json:"keys"`  // in PEM, see spec.ParseSignatureKey
}

// Withheld is the reason for a claim without the secrets that its job names. An agent starts no
// container for such a claim.
type Withheld struct {
	Missing bool `json:"missing,omitempty"` // permanent: a repetition cannot succeed
	// Image, with Missing, means that the tenant may not run the image at present. An agent of the
	// previous version ignores Image and reports a missing secret, which ends the job as well.
	Image bool `json:"image,omitempty"`
	// User, with Missing, means that the tenant may not have the user of the job at present. Agents of
	// earlier versions ignore User, too.
	User    bool   `json:"user,omitempty"`
	Message string `json:"message"`
}

// RestorePoint is a checkpoint from which a member may be restored.
type RestorePoint struct {
	// Job is the job that saved the checkpoint, if it is not the member's own. The server
	// sends such a point only to an agent whose claim has HeaderSources.
	Job      berth.JobID `json:"job,omitempty"`
	Step     int64       `json:"step"`
	Attempt  int         `json:"attempt"`
	Manifest string      `json:"manifest"` // object key; "" with Parts
	SHA256   string      `json:"sha256"`   // of the manifest

	// Parts are the parts of all members that saved the checkpoint, by rank, if the member gets all of them
	// (docs/adr/0118-each-member-may-get-all-parts.md). The server sends such a point only to an agent whose claim
	// has HeaderParts.
	Parts []RestorePart `json:"parts,omitempty"`

	// FailedRestores is the number of reports that the store did not return the checkpoint.
	FailedRestores int `json:"failed_restores,omitempty"`
}

// RestorePart is one member's part of a checkpoint.
type RestorePart struct {
	Manifest string `json:"manifest"` // object key
	SHA256   string `json:"sha256"`   // of the manifest
}

// CheckpointReport registers one member's shard of a checkpoint or, with Bad set, reports
// a damaged one.
type CheckpointReport struct {
	AgentBoot string             `json:"agent_boot"`
	Epoch     int64              `json:"epoch"`
	Alloc     berth.AllocationID `json:"alloc"`
	Job       berth.JobID        `json:"job"`
	Attempt   int                `json:"attempt"` // the reporter's
	Rank      int                `json:"rank"`
	Step      int64              `json:"step"`
	OfAttempt int                `json:"of_attempt"`       // writer of the checkpoint; equals Attempt when registering
	OfJob     berth.JobID        `json:"of_job,omitempty"` // with Bad: that saved the checkpoint, if not Job
	Manifest  string             `json:"manifest,omitempty"`
	SHA256    string             `json:"sha256,omitempty"`
	Bytes     int64              `json:"bytes,omitempty"`
	Bad       string             `json:"bad,omitempty"` // the damage that the restore found
	// Failed, with Bad, reports a failed restore without proof of damage. It is recorded, and the
	// checkpoint stays verified.
	Failed bool `json:"failed,omitempty"`
	// MetricValue is the value of checkpoint.keep_best.metric for the step; nil: none. It is sent as
	// HeaderMetricValue, since servers of the version before reject fields that they do not know.
	MetricValue *float64 `json:"-"`
	// PassedOverFor and PassedOverForAttempt, with Failed, name another checkpoint of the job, which the store returned
	// in the same restore; nil: none. The restores after this one prefer that checkpoint. They are sent as
	// HeaderPassedOverFor and HeaderPassedOverForAttempt; a report with the first one alone passes over nothing.
	PassedOverFor        *int64 `json:"-"`
	PassedOverForAttempt int    `json:"-"`
	// WriteTime and StoreTime are the times that the job took to write the step, and the agent to store it; nil: not
	// measured. They are sent as HeaderWriteTime and HeaderStoreTime, in milliseconds.
	WriteTime *time.Duration `json:"-"`
	StoreTime *time.Duration `json:"-"`

	// Chunks are the distinct chunks of the files in the manifest, and Chunked the bytes of these files, as the server
	// has read them.
	Chunks  []Chunk `json:"-"`
	Chunked int64   `json:"-"`
}

// HeaderPassedOverFor and HeaderPassedOverForAttempt carry CheckpointReport.PassedOverFor and PassedOverForAttempt.
const (
	HeaderPassedOverFor        = "Berth-Passed-Over-For"
	HeaderPassedOverForAttempt = "Berth-Passed-Over-For-Attempt"
)

// HeaderMetricValue carries CheckpointReport.MetricValue, as strconv formats it.
const HeaderMetricValue = "Berth-Metric-Value"

// HeaderWriteTime and HeaderStoreTime carry CheckpointReport.WriteTime and StoreTime, in whole milliseconds.
const (
	HeaderWriteTime = "Berth-Write-Time"
	HeaderStoreTime = "Berth-Store-Time"
)

// LogAck answers an append to a member's log with the end of the stored part. If this
// is not the sender's own end, the sender continues from there.
type LogAck struct {
	End int64 `json:"end"`
}

// CheckpointManifest lists the files of a shard. It is written after all of them, so that
// a shard with a manifest is complete.
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
	Path   string `json:"path"`   // relative to step-N/, slash-separated, no ..
	Object string `json:"object"` // "": the file consists of Chunks
	SHA256 string `json:"sha256"`
	Bytes  int64  `json:"bytes"`
	Mode   uint32 `json:"mode"`

	Chunks []Chunk `json:"chunks,omitempty"` // in the order of the content
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
