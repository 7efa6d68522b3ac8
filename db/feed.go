package db

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/spec"
	"berth/wire"
)

// QueueJob is the part of a job's row that placement needs.
type QueueJob struct {
	ID            berth.JobID
	Tenant        berth.TenantID
	Class         string
	Priority      int
	Preemptible   bool
	State         berth.State
	Version       int64
	Attempt       int
	Held          bool
	EligibleAt    time.Time
	QueueDeadline *time.Time
	SubmittedAt   time.Time
	Avoid         []berth.MachineID
	RunLimit      time.Duration // 0: none
	Grace         time.Duration // from the order to stop to the kill
	Ran           time.Duration // run time of its earlier attempts
	Unaged        time.Duration // time in which it did not age: it held capacity, was held or not ready
	Stalled       time.Duration // the tenant's stalled time at submission; it does not age in later one
	GaveWayTo     []berth.JobID // jobs that it was preempted for; the same job does not preempt it again
	Parent        berth.JobID   // "": none
	Parallel      int           // most elements of its parent that may hold capacity at once; 0: no limit
	Name          string
	Step          string         // its step name in the pipeline Parent; "": not a step
	Data          []spec.DataKey // keys of its code, its inputs and its image
	VerifiedAt    *time.Time     // time of its newest verified checkpoint, of any attempt
	XID           uint64         // of the transaction that wrote it last

	// Alternatives are the classes of the hardware that the job may take, in order, and Opens the times
	// from which on it may; both are nil for a job without alternatives. InForce is the index of Class.
	Alternatives []string
	InForce      int
	Opens        []time.Time

	// Expected is the job's estimated total run time; 0: unknown. ExpectedBy names the jobs
	// that the estimate is based on. Neither is a column: see internal/control/runtimes.
	Expected   time.Duration
	ExpectedBy string

	Debug bool // it holds a failed attempt, and gives way to every other job
}

// Holder is the capacity that one attempt of a job holds. It is read when the job's row
// changes, so the end of a single member shows only with the job's next change.
type Holder struct {
	Job       berth.JobID
	Attempt   int // of these allocations; a silent machine may hold an older one
	PlacedAt  time.Time
	StartedAt *time.Time // when the first container started
	StopBy    *time.Time // when the last member must have stopped; nil unless all members have an order to stop
	Ranks     []berth.Grant
}

// Nomination is capacity that is kept for a waiting job.
type Nomination struct {
	Beneficiary berth.JobID
	Machine     berth.MachineID
	Capacity    berth.Capacity
	GPUs        []berth.DeviceShare
	Victim      berth.JobID // the preempted job; "": the capacity was free
	Attempt     int         // the victim's
	Asleep      bool        // the victim still holds the capacity, so nothing is kept yet
	ExpiresAt   time.Time   // zero: never
}

// PoolMachine is the part of a machine's row that placement needs.
type PoolMachine struct {
	ID      berth.MachineID
	Epoch   int64
	State   berth.MachineState
	Pool    string
	Region  string
	Site    string
	Labels  map[string]string
	Taints  []string // of the machine and of its pool
	Total   berth.Capacity
	Used    berth.Capacity
	Fences  bool   // it can run at_most_one jobs
	Network string // the network on which members of a gang reach each other
	Reason  string // why it has this state, for people
	GPUs    []PoolGPU
	XID     uint64 // of the transaction that wrote it last

	Unmet    string // why it does not meet the security floors; "": it meets them
	Unjudged bool   // nothing is known about the present process of its agent

	EngineSilentSince *time.Time // when its container engine stopped responding; nil: it responds

	Market string  // of its launch: on_demand or spot; "": Berth did not launch it
	Price  float64 // of its launch, US dollars an hour; 0: unknown
}

// PoolGPU is a device with its current use.
type PoolGPU struct {
	Index     int
	Model     string
	MemoryMiB int64
	Healthy   bool
	UsedMilli int64 // thousandths of the device
}

// Cursor is the position up to which a feed has been read: a transaction id. Rows written by
// this transaction or a later one come with the next read.
type Cursor uint64

// Changes is the result of a read of the feed: rows with their current content, in any state.
// A row may come more than once.
type Changes struct {
	Next        Cursor    // cursor of the next read
	End         Cursor    // the position of Next without open transactions
	Now         time.Time // the database's clock
	Jobs        []QueueJob
	Holders     []Holder // for each entry of Jobs that holds capacity, all its holders
	Machines    []PoolMachine
	Nominations []Nomination // all nominations, changed or not
	Caches      []MachineCache
}

// Hinted names rows to read even if the feed does not have them yet. The feed waits for older
// transactions to end; a hinted row does not.
type Hinted struct {
	Jobs     []berth.JobID
	Machines []berth.MachineID
}

// queueJobColumns are the columns of a job j, in the order of collectJobs.
const queueJobColumns = `
	j.id, j.tenant, j.class, j.priority, j.preemptible, j.state, j.version, j.attempt,
	j.held, j.eligible_at, j.queue_deadline, j.submitted_at, j.avoid,
	j.run_limit_ms, j.grace_ms, j.ran_ms, j.unaged_ms, j.stalled_ms, j.gave_way_to::text[], j.verified_at, j.xid,
	coalesce(j.parent::text, ''), coalesce((SELECT p.parallel FROM jobs p WHERE p.id = j.parent), 0), j.name,
		coalesce(j.step, ''), j.debug, ` + dataColumn + `, ` + alternativesColumns

// fedJobs selects the jobs for which Feed reads holders.
const fedJobs = `
	SELECT j.id FROM jobs j
	WHERE j.xid >= @cursor AND j.xid < pg_snapshot_xmin(pg_current_snapshot())
		AND j.state IN ('scheduled', 'running', 'preempting', 'canceling')
	UNION
	SELECT j.id FROM jobs j
	WHERE j.id = ANY(@jobs::uuid[]) AND j.state IN ('scheduled', 'running', 'preempting', 'canceling')`

// readHolders returns the query for the capacity that jobs hold. A member has one row per
// device, or one row if it has no device; see collectHolders.
func readHolders(jobs string) string {
	return `
	SELECT a.job::text, a.attempt, t.placed_at, t.started_at, a.stop_by, a.id, a.machine_id, a.machine_epoch,
		a.cpu_m, a.mem_mb, a.disk_mb, a.gpu_milli, coalesce(c.idx, -1), coalesce(c.milli, 0)
	FROM allocations a
	JOIN attempts t ON t.job = a.job AND t.attempt = a.attempt
	LEFT JOIN device_allocations c ON c.alloc_id = a.id
	WHERE a.job IN (` + jobs + `) AND a.state IN ('reserved', 'active', 'orphaned')
	ORDER BY a.job, a.attempt, a.id, c.idx`
}

// readNominations selects all nominations, sorted for collectNominations.
const readNominations = `
	SELECT e.beneficiary::text, e.machine_id, e.gpu_idx, e.milli, e.cpu_m, e.memory_mib, e.disk_mib,
		coalesce(e.victim::text, ''), coalesce(e.victim_attempt, 0), ` + asleep + `, nullif(e.expires_at, 'infinity')
	FROM nominations e
	ORDER BY e.beneficiary, e.machine_id, e.victim, e.victim_attempt, e.gpu_idx`

// asleep is true for a nomination e while the victim still holds the capacity: nothing is
// kept yet.
const asleep = `
	(e.victim IS NOT NULL AND EXISTS (
		SELECT 1 FROM allocations v
		WHERE v.job = e.victim AND v.attempt = e.victim_attempt AND v.machine_id = e.machine_id
		  AND v.state IN ('reserved', 'active', 'orphaned')))`

// poolMachineColumns are the columns of a machine m, in the order of collectMachines. The launch of a machine exists
// before the machine joins, and its market and price do not change afterwards, so changes of the machine's row suffice.
const poolMachineColumns = `
	m.id, m.epoch, m.state, m.pool, m.region, m.site, machine_labels(m), m.taints || m.pool_taints,
	m.cpu_m, m.mem_mb, m.disk_mb, m.gpu_milli, m.cpu_m_used, m.mem_mb_used, m.disk_mb_used, m.gpu_milli_used,
	m.fence_ms > 0, m.network, m.reason, m.engine_silent_since, m.xid,
	CASE WHEN meets_floors(m) THEN NULL
		WHEN m.floor_boot = m.agent_boot THEN coalesce(m.floor_findings, '[]') ELSE '[]' END,
	m.floor_findings IS NULL OR m.floor_boot <> m.agent_boot,
	coalesce((SELECT l.market FROM launches l WHERE l.machine = m.id AND l.state NOT IN ('gone', 'failed')
		ORDER BY l.n DESC LIMIT 1), ''),
	coalesce((SELECT l.price FROM launches l WHERE l.machine = m.id AND l.state NOT IN ('gone', 'failed')
		ORDER BY l.n DESC LIMIT 1), 0)`

// feedPosition selects Changes.Next, End and Now.
const feedPosition = `
	SELECT pg_snapshot_xmin(pg_current_snapshot()), pg_snapshot_xmax(pg_current_snapshot()), clock_timestamp()`

// fedMachines selects the machines that changed. The feed ends before the oldest open
// transaction: every row that is committed later has the xid at which the next read begins,
// or a higher one. A sequence would miss rows, since transactions do not commit in the order
// of their numbers.
const fedMachines = `
	SELECT id FROM machines
	WHERE xid >= @cursor AND xid < pg_snapshot_xmin(pg_current_snapshot())
	UNION
	SELECT unnest(@machines::text[])`

// Feed returns the rows that have changed since cursor, and the hinted rows.
func (d *Queue) Feed(ctx context.Context, cursor Cursor, hinted Hinted) (Changes, error) {
	args := namedArgs{"cursor": uint64(cursor), "jobs": hinted.Jobs, "machines": hinted.Machines}
	var batch pgx.Batch
	var c Changes
	// One snapshot, in one round trip: a job without its holders, or a start without the
	// capacity that it took, would mislead a plan.
	batch.Queue(`BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY`)
	batch.Queue(feedPosition).QueryRow(func(row pgx.Row) error {
		return row.Scan((*uint64)(&c.Next), (*uint64)(&c.End), &c.Now)
	})
	batch.Queue(`
		SELECT `+queueJobColumns+`
		FROM jobs j
		WHERE j.xid >= @cursor AND j.xid < pg_snapshot_xmin(pg_current_snapshot()) AND j.kind = 'job'`,
		args).Query(func(rows pgx.Rows) error {
		return collectJobs(rows, &c.Jobs)
	})
	if len(hinted.Jobs) > 0 {
		batch.Queue(`
			SELECT `+queueJobColumns+`
			FROM jobs j
			WHERE j.id = ANY(@jobs::uuid[]) AND j.kind = 'job'`, args).Query(func(rows pgx.Rows) error {
			return collectJobs(rows, &c.Jobs)
		})
	}
	batch.Queue(readHolders(fedJobs), args).Query(func(rows pgx.Rows) error {
		return collectHolders(rows, &c.Holders)
	})
	batch.Queue(readNominations).Query(func(rows pgx.Rows) error {
		return collectNominations(rows, &c.Nominations)
	})
	batch.Queue(`
		SELECT `+poolMachineColumns+`
		FROM machines m
		WHERE m.id IN (`+fedMachines+`)`, args).Query(func(rows pgx.Rows) error {
		return collectMachines(rows, &c.Machines)
	})
	batch.Queue(`
		SELECT machine_id, idx, model, mem_mb, healthy, milli_used
		FROM gpu_devices
		WHERE machine_id IN (`+fedMachines+`)
		ORDER BY machine_id, idx`, args).Query(func(rows pgx.Rows) error {
		return collectGPUs(rows, c.Machines)
	})
	batch.Queue(fedCaches, args).Query(func(rows pgx.Rows) error {
		return collectCaches(rows, &c.Caches)
	})
	batch.Queue(`COMMIT`)
	if err := d.pool.SendBatch(ctx, &batch).Close(); err != nil {
		return Changes{}, mapError(err, "feed")
	}
	return c, nil
}

// Load returns every job that waits or holds capacity and every machine that is not retired,
// in one snapshot, with the cursor at which Feed continues.
func (d *Queue) Load(ctx context.Context) (Changes, error) {
	var c Changes
	err := d.readTx(ctx, func(tx pgx.Tx) error {
		var err error
		if c, err = loadMachines(ctx, tx); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `
			SELECT `+queueJobColumns+`
			FROM jobs j
			WHERE j.kind = 'job'
			  AND j.state IN ('queued', 'retrying', 'scheduled', 'running', 'preempting', 'canceling')`)
		if err != nil {
			return err
		}
		if err := collectJobs(rows, &c.Jobs); err != nil {
			return err
		}
		rows, err = tx.Query(ctx, readHolders(`
			SELECT j.id FROM jobs j WHERE j.state IN ('scheduled', 'running', 'preempting', 'canceling')`))
		if err != nil {
			return err
		}
		if err := collectHolders(rows, &c.Holders); err != nil {
			return err
		}
		rows, err = tx.Query(ctx, readNominations)
		if err != nil {
			return err
		}
		if err := collectNominations(rows, &c.Nominations); err != nil {
			return err
		}
		rows, err = tx.Query(ctx, allCaches)
		if err != nil {
			return err
		}
		return collectCaches(rows, &c.Caches)
	})
	return c, mapError(err, "load queue")
}

// LoadMachines is Load without the jobs.
func (d *Queue) LoadMachines(ctx context.Context) (Changes, error) {
	var c Changes
	err := d.readTx(ctx, func(tx pgx.Tx) error {
		var err error
		c, err = loadMachines(ctx, tx)
		return err
	})
	return c, mapError(err, "load machines")
}

func loadMachines(ctx context.Context, tx pgx.Tx) (Changes, error) {
	var c Changes
	err := tx.QueryRow(ctx, feedPosition).Scan((*uint64)(&c.Next), (*uint64)(&c.End), &c.Now)
	if err != nil {
		return c, err
	}
	rows, err := tx.Query(ctx, `
		SELECT `+poolMachineColumns+`
		FROM machines m
		WHERE m.state <> 'retired'
		ORDER BY m.id`)
	if err != nil {
		return c, err
	}
	if err := collectMachines(rows, &c.Machines); err != nil {
		return c, err
	}
	rows, err = tx.Query(ctx, `
		SELECT machine_id, idx, model, mem_mb, healthy, milli_used
		FROM gpu_devices
		ORDER BY machine_id, idx`)
	if err != nil {
		return c, err
	}
	return c, collectGPUs(rows, c.Machines)
}

// Requests returns the placement requests of classes. A class without a row is
// left out.
func (d *Queue) Requests(ctx context.Context, classes []string) (map[string]spec.Request, error) {
	rows, err := d.pool.Query(ctx, `
		SELECT class, request
		FROM classes
		WHERE class = ANY(@classes)`, namedArgs{"classes": classes})
	if err != nil {
		return nil, mapError(err, "classes")
	}
	requests := make(map[string]spec.Request, len(classes))
	var class string
	var request spec.Request
	_, err = pgx.ForEachRow(rows, []any{&class, &request}, func() error {
		requests[class] = request
		request = spec.Request{} // maps and slices are not shared between rows
		return nil
	})
	return requests, mapError(err, "classes")
}

func collectJobs(rows pgx.Rows, into *[]QueueJob) error {
	defer rows.Close()
	for rows.Next() {
		var j QueueJob
		var limitMS, graceMS, ranMS, unagedMS, stalledMS int64
		if err := rows.Scan(&j.ID, &j.Tenant, &j.Class, &j.Priority, &j.Preemptible, &j.State, &j.Version, &j.Attempt,
			&j.Held, &j.EligibleAt, &j.QueueDeadline, &j.SubmittedAt, &j.Avoid,
			&limitMS, &graceMS, &ranMS, &unagedMS, &stalledMS, &j.GaveWayTo, &j.VerifiedAt, &j.XID, &j.Parent,
			&j.Parallel, &j.Name, &j.Step, &j.Debug, &j.Data, &j.Alternatives, &j.InForce, &j.Opens); err != nil {
			return fmt.Errorf("read job: %w", err)
		}
		j.RunLimit, j.Grace, j.Ran = milliseconds(limitMS), milliseconds(graceMS), milliseconds(ranMS)
		j.Unaged, j.Stalled = milliseconds(unagedMS), milliseconds(stalledMS)
		*into = append(*into, j)
	}
	return rows.Err()
}

func collectMachines(rows pgx.Rows, into *[]PoolMachine) error {
	defer rows.Close()
	for rows.Next() {
		var m PoolMachine
		var unmet []wire.HostFinding // nil: the floors are met; empty: no verdict
		if err := rows.Scan(&m.ID, &m.Epoch, &m.State, &m.Pool, &m.Region, &m.Site, &m.Labels,
			&m.Taints, &m.Total.CPUMilli, &m.Total.MemoryMiB, &m.Total.DiskMiB, &m.Total.GPUMilli,
			&m.Used.CPUMilli, &m.Used.MemoryMiB, &m.Used.DiskMiB, &m.Used.GPUMilli, &m.Fences, &m.Network,
			&m.Reason, &m.EngineSilentSince, &m.XID, &unmet, &m.Unjudged, &m.Market, &m.Price); err != nil {
			return fmt.Errorf("read machine: %w", err)
		}
		if unmet != nil {
			m.Unmet = unmetText(unmet)
		}
		*into = append(*into, m)
	}
	return rows.Err()
}

// collectGPUs adds devices to their machines. Devices of other machines are skipped.
func collectGPUs(rows pgx.Rows, machines []PoolMachine) error {
	defer rows.Close()
	byID := make(map[berth.MachineID]*PoolMachine, len(machines))
	for i := range machines {
		byID[machines[i].ID] = &machines[i]
	}
	for rows.Next() {
		var id berth.MachineID
		var g PoolGPU
		if err := rows.Scan(&id, &g.Index, &g.Model, &g.MemoryMiB, &g.Healthy, &g.UsedMilli); err != nil {
			return fmt.Errorf("read gpu: %w", err)
		}
		if m := byID[id]; m != nil {
			m.GPUs = append(m.GPUs, g)
		}
	}
	return rows.Err()
}

// milliseconds converts a column in milliseconds.
func milliseconds(n int64) time.Duration { return time.Duration(n) * time.Millisecond }
