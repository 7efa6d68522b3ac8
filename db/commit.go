package db

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/internal/lib/failpoint"
	"berth/lifecycle"
)

// Refusal is a decision that no longer held when it was to be committed.
type Refusal struct {
	Start berth.Start
	Why   string // human-readable, for logs
}

// Committed is the outcome of a batch of decisions.
type Committed struct {
	Started []berth.Start
	Refused []Refusal // the planner must read their rows again
}

// CommitStarts commits decisions of the leader: it creates attempts, allocations and GPU
// claims and makes the jobs scheduled, in one transaction. A decision is refused, a gang as a
// whole, if its job, its parent, a machine or the free capacity has changed since it was
// planned. The other decisions of the batch are committed. The error is ErrStaleEpoch if the
// term is over.
//
// The batch takes two round trips regardless of its size: one locks and reads, one writes and
// commits.
func (d *Queue) CommitStarts(ctx context.Context, term Term, starts []berth.Start) (Committed, error) {
	if len(starts) == 0 {
		return Committed{}, nil
	}
	c, err := d.commitStarts(ctx, term, starts)
	if !isRefusal(err) {
		return c, mapError(err, "commit of placements")
	}
	// A constraint of the database has refused a decision that passed all checks. Halve the
	// batch until the offending decision is alone.
	if len(starts) == 1 {
		return Committed{Refused: []Refusal{{starts[0], err.Error()}}}, nil
	}
	d.log.Error("placement refused by a constraint", "starts", len(starts), "err", err)
	first, err := d.CommitStarts(ctx, term, starts[:len(starts)/2])
	if err != nil {
		return first, err
	}
	second, err := d.CommitStarts(ctx, term, starts[len(starts)/2:])
	return Committed{
		Started: append(first.Started, second.Started...),
		Refused: append(first.Refused, second.Refused...),
	}, err
}

// commitStarts runs the transaction of one batch. BEGIN and COMMIT travel inside its two
// batches of statements; pgx.Tx would need a round trip for each.
func (d *Queue) commitStarts(ctx context.Context, term Term, starts []berth.Start) (c Committed, err error) {
	conn, err := d.pool.Acquire(ctx)
	if err != nil {
		return c, err
	}
	defer conn.Release()
	now, err := lockForStarts(ctx, conn.Conn(), term, starts)
	if err == nil {
		c = now.admit(starts)
		if repairs(c.Started) {
			// Both points of a repair lie between statements and hints of one commit, and only the
			// commit knows that it begins a gang again.
			err = failpoint.Hit("leader.repair.before")
		}
	}
	if err == nil {
		err = d.writeStarts(ctx, conn.Conn(), term, c.Started, now)
	}
	if err != nil {
		rollback(ctx, conn.Conn())
		return Committed{}, err
	}
	if repairs(c.Started) {
		if err := failpoint.Hit("leader.repair.after"); err != nil {
			return c, err
		}
	}
	conn.Release() // notifyParents takes a connection: a leader never waits for one while it holds another
	notifyParents(ctx, d.core, now.begunSteps()...)
	return c, nil
}

// repairs reports whether one of the decisions is a new attempt of a gang.
func repairs(starts []berth.Start) bool {
	return slices.ContainsFunc(starts, func(s berth.Start) bool { return len(s.Ranks) > 1 && s.Attempt > 1 })
}

// rollback ends the transaction even if ctx is over. A connection returned to the pool with
// an open transaction would be closed.
func rollback(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_, _ = conn.Exec(ctx, "ROLLBACK")
}

// present is the state of a batch's rows, read under lock. admit subtracts the capacity of
// each admitted decision.
type present struct {
	jobs     map[berth.JobID]presentJob
	machines map[berth.MachineID]*presentMachine
	parents  map[berth.JobID]*lifecycle.Starting
	resume   map[berth.JobID]int64             // highest verified checkpoint
	keeping  map[berth.JobID][]*presentMachine // machines with capacity nominated for the job
	ports    map[berth.JobID][]int             // assigned by takePorts, by rank
	former   map[berth.JobID][]berth.MachineID // by rank: the gang's machines in the previous attempt
	closed   map[poolSite]string               // pools that do not accept the job's tenant
	tainted  map[poolSite]bool                 // the job does not tolerate a taint of the machine
	exposed  map[poolSite]string               // of an untrusted tenant: why the machine does not meet the floors
	distrust map[berth.JobID]bool              // jobs of untrusted tenants
	hardware map[berth.JobID]presentHardware
}

// presentJob holds the columns of a job that decide whether it may start.
type presentJob struct {
	version   int64 // must equal the version that the plan was made from
	state     berth.State
	tenant    berth.TenantID
	attempt   int
	held      bool
	eligible  bool
	atMostOne bool        // needs machines that can fence
	parent    berth.JobID // "": none
}

// presentHardware is the alternative of a job that is in force.
type presentHardware struct {
	number int
	waited int64 // seconds since the present wait began; 0 without alternatives
}

// presentMachine is a machine with the capacity that is left for the rest of the batch.
type presentMachine struct {
	epoch        int64
	state        berth.MachineState
	fences       bool // it can run at_most_one jobs
	engineSilent bool // its container engine does not respond
	free         berth.Capacity
	healed       map[int]int64    // by index: free thousandths of each healthy device; nil: no GPU asked for
	sharers      sharers          // of its devices; nil: no decision asks for a share that is one tenant's
	window       *presentWindow   // in which the machine gets no work; nil: none
	kept         []Nomination     // nominations on this machine whose room is free already
	oneTenant    bool             // it is used by one tenant at a time
	tenants      []berth.TenantID // of its allocations, with repetitions; nil without oneTenant
	ports        ports
}

// lockForStarts begins the transaction, checks the term, and locks rows in the order that the
// package requires: lease, parents, jobs, machines, devices, each in order of id. One round
// trip does all of it. It fails with ErrStaleEpoch if the term is over. The caller rolls back
// after an error.
func lockForStarts(ctx context.Context, conn *pgx.Conn, term Term, starts []berth.Start) (*present, error) {
	p, ids := newPresent(starts)
	var batch pgx.Batch
	batch.Queue("BEGIN")
	// No row from fence: the term is over. The statements behind it run all the same; the
	// caller rolls them back.
	leads := false
	batch.Queue(fence, term.args()).Query(func(rows pgx.Rows) error {
		leads = rows.Next()
		rows.Close()
		return rows.Err()
	})
	queueParentLocks(&batch, ids.jobs)
	p.queueJobs(&batch, ids.jobs)
	// The parents' children are counted only now, under the parents' locks.
	p.queueParents(&batch, ids.jobs)
	p.queueMachines(&batch, ids.machines)
	if len(ids.withGPUs) > 0 {
		p.queueDevices(&batch, ids.withGPUs)
	}
	if len(ids.withShares) > 0 {
		p.queueSharers(&batch, ids.withShares)
	}
	p.queuePools(&batch, starts)
	p.queueTenants(&batch, ids.machines)
	p.queueTaints(&batch, starts)
	p.queueFloors(&batch, starts)
	p.queueWindows(&batch, ids.machines)
	// After the machines: a writer of a nomination holds the lock of its machine.
	p.queueNominations(&batch, ids.machines)
	p.queuePorts(&batch, starts)
	p.queueFormer(&batch, starts)
	p.queueResume(&batch, ids)
	if err := conn.SendBatch(ctx, &batch).Close(); err != nil {
		return nil, err
	}
	if !leads {
		return nil, term.errDeposed()
	}
	return p, nil
}

// startRows are the ids of the rows that a batch of decisions refers to. A job is listed
// twice if two decisions name it; the second decision is refused.
type startRows struct {
	jobs     []berth.JobID
	repeated []berth.JobID // of jobs: not at their first attempt, so they may have checkpoints
	machines []berth.MachineID
	withGPUs []berth.MachineID // of machines: with devices to lock
	// withShares lists those of them on which a share of a device must be one tenant's.
	withShares []berth.MachineID
}

// newPresent returns the empty rows of a batch and the ids to read them by.
func newPresent(starts []berth.Start) (*present, startRows) {
	p := &present{
		jobs:     make(map[berth.JobID]presentJob, len(starts)),
		parents:  map[berth.JobID]*lifecycle.Starting{},
		machines: map[berth.MachineID]*presentMachine{},
		resume:   map[berth.JobID]int64{},
		keeping:  map[berth.JobID][]*presentMachine{},
		ports:    map[berth.JobID][]int{},
		former:   map[berth.JobID][]berth.MachineID{},
		closed:   map[poolSite]string{},
		tainted:  map[poolSite]bool{},
		exposed:  map[poolSite]string{}, distrust: map[berth.JobID]bool{},
		hardware: make(map[berth.JobID]presentHardware, len(starts)),
	}
	n := startRows{jobs: make([]berth.JobID, 0, len(starts))}
	for _, s := range starts {
		n.jobs = append(n.jobs, s.Job)
		if s.Attempt > 1 {
			n.repeated = append(n.repeated, s.Job)
		}
		for _, r := range s.Ranks {
			m := p.machines[r.Machine]
			if m == nil {
				m = &presentMachine{}
				p.machines[r.Machine] = m
				n.machines = append(n.machines, r.Machine)
			}
			if len(r.GPUs) > 0 && m.healed == nil {
				m.healed = map[int]int64{}
				n.withGPUs = append(n.withGPUs, r.Machine)
			}
			if m.sharers == nil && slices.ContainsFunc(r.GPUs, oneTenants) {
				m.sharers = sharers{}
				n.withShares = append(n.withShares, r.Machine)
			}
		}
	}
	return p, n
}

// queueJobs locks the jobs and reads their state.
func (p *present) queueJobs(batch *pgx.Batch, jobs []berth.JobID) {
	batch.Queue(`
		SELECT id, version, state, attempt, held, eligible_at <= clock_timestamp(), execution = 'at_most_one',
			coalesce(parent::text, ''), tenant, alternative,
			coalesce(extract(epoch FROM greatest(clock_timestamp() - alternatives_from, '0')), 0)::bigint
		FROM jobs
		WHERE id = ANY($1::uuid[])
		ORDER BY id
		FOR NO KEY UPDATE`, jobs).Query(func(rows pgx.Rows) error {
		var id berth.JobID
		var j presentJob
		var h presentHardware
		_, err := pgx.ForEachRow(rows, []any{&id, &j.version, &j.state, &j.attempt, &j.held, &j.eligible, &j.atMostOne,
			&j.parent, &j.tenant, &h.number, &h.waited}, func() error {
			p.jobs[id], p.hardware[id] = j, h
			return nil
		})
		return err
	})
}

// queueMachines locks the machines and reads their free capacity.
func (p *present) queueMachines(batch *pgx.Batch, machines []berth.MachineID) {
	batch.Queue(`
		SELECT id, epoch, state, fence_ms > 0, engine_silent_since IS NOT NULL, cpu_m - cpu_m_used,
			mem_mb - mem_mb_used, disk_mb - disk_mb_used, gpu_milli - gpu_milli_used,
		       port_first, port_last
		FROM machines
		WHERE id = ANY($1)
		ORDER BY id
		FOR NO KEY UPDATE`, machines).Query(func(rows pgx.Rows) error {
		var id berth.MachineID
		var m presentMachine
		_, err := pgx.ForEachRow(rows, []any{&id, &m.epoch, &m.state, &m.fences, &m.engineSilent, &m.free.CPUMilli,
			&m.free.MemoryMiB, &m.free.DiskMiB, &m.free.GPUMilli,
			&m.ports.First, &m.ports.Last}, func() error {
			// Keep the maps made above: they mark machines whose devices are read.
			m.healed, m.sharers = p.machines[id].healed, p.machines[id].sharers
			*p.machines[id] = m
			return nil
		})
		return err
	})
}

// queueDevices locks the GPUs of the machines. An unhealthy GPU has no free capacity, so it
// gets no entry.
func (p *present) queueDevices(batch *pgx.Batch, machines []berth.MachineID) {
	batch.Queue(`
		SELECT machine_id, idx, healthy, 1000 - milli_used
		FROM gpu_devices
		WHERE machine_id = ANY($1)
		ORDER BY machine_id, idx
		FOR NO KEY UPDATE`, machines).Query(func(rows pgx.Rows) error {
		var id berth.MachineID
		var idx int
		var healthy bool
		var free int64
		_, err := pgx.ForEachRow(rows, []any{&id, &idx, &healthy, &free}, func() error {
			if healthy {
				p.machines[id].healed[idx] = free
			}
			return nil
		})
		return err
	})
}

// queueSharers reads the tenants of the devices. The locks of the machines keep other commits away.
func (p *present) queueSharers(batch *pgx.Batch, machines []berth.MachineID) {
	batch.Queue(`
		SELECT a.machine_id, c.idx, j.tenant
		FROM allocations a
		JOIN device_allocations c ON c.alloc_id = a.id
		JOIN jobs j ON j.id = a.job
		WHERE a.machine_id = ANY($1) AND a.forgotten_at IS NULL AND counts(a.state)`, machines).Query(
		func(rows pgx.Rows) error {
			var id berth.MachineID
			var idx int
			var tenant berth.TenantID
			_, err := pgx.ForEachRow(rows, []any{&id, &idx, &tenant}, func() error {
				p.machines[id].sharers.add(idx, tenant)
				return nil
			})
			return err
		})
}

// queueNominations reads the capacity of the machines that is nominated for jobs and already
// free.
func (p *present) queueNominations(batch *pgx.Batch, machines []berth.MachineID) {
	batch.Queue(`
		SELECT e.beneficiary::text, e.machine_id, e.gpu_idx, e.milli, e.cpu_m, e.memory_mib, e.disk_mib, '', 0, false,
			NULL::timestamptz
		FROM nominations e
		WHERE e.machine_id = ANY($1) AND NOT `+asleep+`
		ORDER BY e.machine_id, e.beneficiary, e.victim, e.gpu_idx`, machines).Query(func(rows pgx.Rows) error {
		var kept []Nomination
		if err := collectNominations(rows, &kept); err != nil {
			return err
		}
		for _, e := range kept {
			m := p.machines[e.Machine]
			m.kept = append(m.kept, e)
			p.keeping[e.Beneficiary] = append(p.keeping[e.Beneficiary], m)
		}
		return nil
	})
}

// queueResume reads the step that each job resumes from: its highest verified checkpoint, one
// that no restore passed over if there is any, or, without one, the checkpoint of another job from which it started.
func (p *present) queueResume(batch *pgx.Batch, ids startRows) {
	batch.Queue(`
		SELECT job, coalesce(max(step) FILTER (WHERE NOT passed_over), max(step))
		FROM checkpoints
		WHERE job = ANY($1::uuid[]) AND state = 'verified'
		GROUP BY job
		UNION ALL
		SELECT o.job, o.step
		FROM job_sources o
		JOIN checkpoints c ON c.job = o.source AND c.step = o.step AND c.attempt = o.attempt AND c.state = 'verified'
		WHERE o.job = ANY($2::uuid[]) AND o.array_index = -1
		  AND NOT EXISTS (SELECT 1 FROM checkpoints v WHERE v.job = o.job AND v.state = 'verified')`,
		ids.repeated, ids.jobs).Query(func(rows pgx.Rows) error {
		var id berth.JobID
		var step int64
		_, err := pgx.ForEachRow(rows, []any{&id, &step}, func() error {
			p.resume[id] = step
			return nil
		})
		return err
	})
}

// writeStarts writes the admitted decisions and commits, in one batch. Each statement writes
// the rows of all decisions. Without decisions it ends the transaction only.
func (d *Queue) writeStarts(ctx context.Context, conn *pgx.Conn, term Term, starts []berth.Start, p *present) error {
	if len(starts) == 0 {
		_, err := conn.Exec(ctx, "ROLLBACK")
		return err
	}
	a, r, g := columnsOf(starts, p)
	var batch pgx.Batch
	// Parents before jobs, as in the lock order: a first element moves its parent to running.
	queueParentStarts(&batch, p.begun())
	batch.Queue(`
		UPDATE jobs j
		SET state = 'scheduled', version = j.version + 1, attempt = s.attempt, actor = 'leader', reason = NULL,
			class = coalesce(j.alternatives[s.number + 1], j.class), alternative = s.number
		FROM unnest($1::uuid[], $2::int[], $3::int[]) AS s(job, attempt, number)
		WHERE j.id = s.job`, a.job, a.attempt, a.number)
	queueAlternatives(&batch, starts, p)
	batch.Queue(`
		INSERT INTO attempts (job, attempt, leader_epoch, resume_from, alternative)
		SELECT s.job, s.attempt, $3, s.resume, s.number
		FROM unnest($1::uuid[], $2::int[], $4::bigint[], $5::int[]) AS s(job, attempt, resume, number)`, a.job,
		a.attempt, term.Epoch, a.resume, a.number)
	batch.Queue(`
		INSERT INTO allocations (job, attempt, rank, machine_id, machine_epoch, cpu_m, mem_mb, disk_mb, gpu_milli, port,
			one_tenant, untrusted)
		SELECT *
		FROM unnest($1::uuid[], $2::int[], $3::int[], $4::text[], $5::bigint[], $6::bigint[], $7::bigint[],
			$8::bigint[], $9::bigint[], $10::int[], $11::boolean[], $12::boolean[])`,
		r.job, r.attempt, r.rank, r.machine, r.epoch, r.cpu, r.mem, r.disk, r.gpu, r.port, r.oneTenant, r.untrusted)
	// A statement of its own, since the ids of the allocations exist only now.
	if len(g.job) > 0 {
		batch.Queue(`
			INSERT INTO device_allocations (alloc_id, machine_id, idx, milli, tenant)
			SELECT a.id, a.machine_id, s.idx, s.milli, nullif(s.tenant, '')
			FROM unnest($1::uuid[], $2::int[], $3::int[], $4::int[], $5::bigint[], $6::text[])
			     AS s(job, attempt, rank, idx, milli, tenant)
			JOIN allocations a ON a.job = s.job AND a.attempt = s.attempt AND a.rank = s.rank`,
			g.job, g.attempt, g.rank, g.idx, g.milli, g.tenant)
	}
	if d.entry > 0 {
		queueEntry(&batch, a, d.entry)
	}
	// A started job needs no nomination. Leftovers would keep capacity from other jobs.
	batch.Queue(`DELETE FROM nominations WHERE beneficiary = ANY($1::uuid[])`, a.job)
	batch.Queue("COMMIT")
	return conn.SendBatch(ctx, &batch).Close()
}

// queueEntry charges the entry penalty: one charge without a duration for each allocation.
func queueEntry(batch *pgx.Batch, a attemptColumns, entry time.Duration) {
	batch.Queue(`
		INSERT INTO usage_charges (alloc_id, entry_ms, tenant, cpu_m, mem_mb, gpu_milli, from_at, to_at)
		SELECT a.id, $3, j.tenant, a.cpu_m, a.mem_mb, a.gpu_milli, now(), now()
		FROM unnest($1::uuid[], $2::int[]) AS s(job, attempt)
		JOIN allocations a ON a.job = s.job AND a.attempt = s.attempt
		JOIN jobs j ON j.id = s.job`, a.job, a.attempt, entry.Milliseconds())
}
