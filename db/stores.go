package db

// DB is Berth's PostgreSQL database. Open connects it and Close ends it; the
// rows are read and written through its stores, one for each aggregate. The
// package documentation lists the files of each store. All methods of DB and of
// its stores may be called concurrently.
type DB struct {
	*core

	Jobs        *Jobs
	Attempts    *Attempts
	Parents     *Parents
	Retries     *Retries
	Schedules   *Schedules
	Queue       *Queue
	Machines    *Machines
	Pools       *Pools
	Launches    *Launches
	Scaling     *Scaling
	Burst       *Burst
	Offers      *Offers
	Spend       *Spend
	Maintenance *Maintenance
	Agents      *Agents
	Tenants     *Tenants
	Storage     *Storage
	Tokens      *Tokens
	JoinTokens  *JoinTokens
	Secrets     *Secrets
	Objects     *Objects
	Chunks      *Chunks
	Uploads     *Uploads
	Images      *Images
	Logs        *Logs
	Outbox      *Outbox
	Channels    *Channels
	Leader      *Leader
	Cluster     *Cluster
	Backups     *Backups

	JobSessions *JobSessions
	WebSessions *WebSessions
	Holds       *Holds
}

func newDB(c *core) *DB {
	return &DB{
		core: c,
		Jobs: &Jobs{c}, Attempts: &Attempts{c}, Parents: &Parents{c}, Retries: &Retries{c}, Schedules: &Schedules{c},
		Queue: &Queue{c}, Machines: &Machines{c}, Pools: &Pools{c}, Launches: &Launches{c}, Scaling: &Scaling{c},
		Burst: &Burst{c}, Offers: &Offers{c}, Spend: &Spend{c},
		Maintenance: &Maintenance{c}, Agents: &Agents{c},
		Tenants: &Tenants{c}, Storage: &Storage{c},
		Tokens: &Tokens{c}, JoinTokens: &JoinTokens{c}, Secrets: &Secrets{c},
		Objects: &Objects{c}, Chunks: &Chunks{c}, Uploads: &Uploads{c}, Images: &Images{c}, Logs: &Logs{c},
		Outbox: &Outbox{c}, Channels: &Channels{c}, Leader: &Leader{c}, Cluster: &Cluster{c}, Backups: &Backups{c},
		JobSessions: &JobSessions{c}, WebSessions: &WebSessions{c}, Holds: &Holds{c},
	}
}

// Jobs stores jobs of every kind: their rows, specifications, labels, needs and
// events, and the archive of jobs that have ended. A job is submitted, read,
// changed, canceled and archived here. Jobs never places a job: only Queue writes
// new attempts and allocations. A cancel releases or stops the allocations that
// exist.
type Jobs struct{ *core }

// Attempts stores the attempts of jobs from their start on: the members' allocations, the
// orders to stop them, and the outcome. Only Settle closes an attempt and moves its job to
// the next state. Attempts never creates an attempt or an allocation, and it never writes
// rows of pipelines and arrays.
type Attempts struct{ *core }

// Parents stores the progress of pipelines and arrays: which steps and elements
// exist, and the state of the parent, which follows from theirs. Only Parents ends
// a parent that has begun. It writes allocations only to stop jobs, and it never
// starts one.
type Parents struct{ *core }

// Retries submits the successors of ended jobs, with the spec of the original or another one,
// and chooses the checkpoints from which they resume. It links both jobs and changes nothing
// else of the original.
type Retries struct{ *core }

// Schedules stores schedules and their fires: each time of a schedule, with the resulting
// job, skip or failure. Fire submits a job in the transaction that records the fire.
// Schedules never changes a running job, except to cancel a job that the next fire
// replaces.
type Schedules struct{ *core }

// Queue is the scheduler's store. It reads the queue, the machines and their
// changes as a feed, and commits plans: new attempts with their allocations,
// device claims, and nominations of capacity for a job. It never ends an attempt
// and never changes a machine.
type Queue struct{ *core }

// Machines stores the view of operators and the leader on machines: state, drain, silence,
// faults and history. A verdict on a lost machine releases its allocations. Machines never
// renews a lease and never opens a session of an agent; Agents does.
type Machines struct{ *core }

// Pools stores the rules of pools of machines. It never writes rows of machines: a machine chooses
// its pool at its registration, see the trigger machines_choose_pool.
type Pools struct{ *core }

// Maintenance stores maintenance windows, and begins and ends them: it drains their machines and
// returns these to service. It never changes a drain that is not a window's own.
type Maintenance struct{ *core }

// Agents answers the agents of machines. It stores their sessions and leases,
// devices and caches, takes up allocations for them, and records the reports of
// members in the rows of allocations, attempts and jobs. It writes only rows of
// the machine that calls, in the session that is current, and never settles an
// attempt.
type Agents struct{ *core }

// Tenants stores the tree of tenants with quotas, decayed use and submit rates.
// It deletes a tenant only if no job, schedule, good token or tenant below refers to
// it, and then with its secrets and uploads. It never writes rows of jobs.
type Tenants struct{ *core }

// Storage stores the amounts of data that tenants keep and holds tenants to their
// storage quotas. It never writes or deletes the data that it counts.
//
// Counters are tenant_storage and, on top, the rows of storage_changes that the
// leader has not added yet: one statement that reads both sees each change once.
type Storage struct{ *core }

// Tokens stores the tokens of users and machines, by the hash of their secret. A secret is
// returned only when its token is created.
type Tokens struct{ *core }

// JoinTokens stores the tokens with which new machines join. Join uses up a token and
// creates the machine and the machine's own token. JoinTokens writes no rows of other
// machines.
type JoinTokens struct{ *core }

// Images stores which tags of images are to be resolved to digests by the control plane, and the digests
// in the rows of the jobs. Submits add the requests. A job that has a digest keeps it.
type Images struct{ *core }

// Secrets stores the sealed secrets of tenants. It never sees a secret in the
// clear and holds no key.
type Secrets struct{ *core }

// Objects stores which objects of jobs lie in the object store: checkpoints,
// outputs, results of steps, and prefixes that are to be deleted. It never touches
// the object store. A verified checkpoint is noted in the row of its job; nothing
// else of a job is written here.
type Objects struct{ *core }

// Chunks stores which content the checkpoints of a tenant share: chunks, the checkpoints that
// name them, and the members that store them. Objects registers and prunes checkpoints, and
// with them their chunks.
type Chunks struct{ *core }

// Uploads stores the folders that users upload as inputs. A folder that a job
// needs is never marked for deletion here.
type Uploads struct{ *core }

// Logs stores which objects make up the logs of members. It extends the log of an
// allocation and never changes another column of the allocation's row.
type Logs struct{ *core }

// Outbox stores notices to webhooks until they are delivered or given up. The
// triggers of the schema create notices as jobs change; Outbox never does.
type Outbox struct{ *core }

// Channels stores the notification channels of tenants and the messages to them. The triggers of the schema create
// notifications as jobs, machines and spend change; Channels adds the notifications of tests alone.
type Channels struct{ *core }

// Leader stores the rows that coordinate the control plane: named leases and their terms,
// the beacon of the API replicas, the incarnation of the database, and the watermarks that
// prove that no backup was restored. After a restore Leap ends every session and holds jobs
// that must not run twice; Leader writes no other rows of jobs and machines.
type Leader struct{ *core }

// Cluster stores settings of the whole cluster, such as paused admission, and
// counts rows for metrics and self-checks. It maintains partitions and planner
// statistics. It never writes rows of jobs and machines.
type Cluster struct{ *core }

// Backups stores the runs of backups. A running backup has a lease, by which it holds back the deletion of
// objects and of old rows. Backups deletes nothing.
type Backups struct{ *core }

// JobSessions stores the sessions of users in running containers, and the record of them in
// acts. A session is paired, renewed and ended here. JobSessions adds events to jobs and makes
// the result of an entered step unusable for others; it writes nothing else of a job.
type JobSessions struct{ *core }

// Launches stores the requests for instances of clouds, from the request to the proof of the end.
// Package cloud decides each change; Launches calls its functions under the lock of the row. It
// creates and revokes the join tokens of launches, and writes no rows of machines.
type Launches struct{ *core }

// Scaling stores the decisions of the leader's scaler, each fenced by the term: launches for tenants, the probes
// of breakers, drains of machines without use with their ends, and the notes in burst_notes. It changes no
// launch and no machine of another author.
type Scaling struct{ *core }

// Burst stores the policies of tenants for machines of clouds. It never changes a launch: a launch that
// exists is not touched by a later policy.
type Burst struct{ *core }

// Offers stores the machine types of clouds with their dated prices.
type Offers struct{ *core }

// Spend stores the settled costs of launches and reads the reservations of open ones. Launches reserves
// money as it creates a launch; triggers of the schema settle it.
type Spend struct{ *core }

// WebSessions stores the sessions of browsers that are signed in to the dashboard. A session refers to a token
// and has its rights at each look-up. WebSessions never changes a token.
type WebSessions struct{ *core }

// Holds ends the debug jobs that hold failed attempts. Settlements create them, see newHold; from then on they are
// jobs like others.
type Holds struct{ *core }
