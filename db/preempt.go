package db

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/lifecycle"
)

// Victim is a job to preempt, in the state that the leader's decision was based on.
type Victim struct {
	Job     berth.JobID
	Version int64
	Attempt int
	Why     string // why the job may be preempted; text for users
}

// Preemption is a decision of the leader: the victims that stop for one waiting job, and
// the nominations that keep the capacity for that job.
type Preemption struct {
	For         berth.JobID // the waiting job, the beneficiary
	Victims     []Victim
	Nominations []Nomination // capacity of the victims, and free capacity needed as well
}

// CommitPreemption commits a preemption in one transaction, as a whole or not at all: the
// victims are ordered to save a checkpoint and stop within their grace period, and their
// capacity is nominated for the waiting job, together with the free capacity that the job
// needs as well. CommitPreemption refuses the decision, with the reason in why, if the job
// no longer waits, if a victim differs from the decision (it has changed, or one of its
// members has ended by itself), or if a nomination counts on capacity that its holder does not
// release for others: see unstopped. A term that is over is an error.
//
// A job never stops twice for the same beneficiary, because its row keeps all of its
// beneficiaries (gave_way_to).
func (d *Queue) CommitPreemption(ctx context.Context, term Term, p Preemption) (why string, err error) {
	var hints []touched
	err = d.leaderTx(ctx, term, func(tx pgx.Tx) error {
		// The transaction may run several times: see core.tx.
		hints = nil
		tenant, err := lockForPreemption(ctx, tx, p)
		if err != nil {
			return err
		}
		if tenant == "" {
			why = fmt.Sprintf("job %s waits no more", p.For)
			return nil
		}
		// All victims are checked before the first one is changed: a refusal commits
		// nothing.
		jobs := make([]lockedJob, len(p.Victims))
		for i, v := range p.Victims {
			if jobs[i], why, err = lockVictim(ctx, tx, v, p.For); err != nil || why != "" {
				return err
			}
		}
		if why, err = unstopped(ctx, tx, p); err != nil || why != "" {
			return err
		}
		for i, v := range p.Victims {
			h, err := preempt(ctx, tx, jobs[i], p.For,
				fmt.Sprintf("preempted by job %s of tenant %s: %s", p.For, tenant, v.Why))
			if err != nil {
				return err
			}
			hints = append(hints, h)
		}
		if err := dropNominations(ctx, tx, p.For); err != nil {
			return err
		}
		return insertNominations(ctx, tx, p)
	})
	if err != nil {
		return "", mapError(err, "preemption for job "+string(p.For))
	}
	for _, h := range hints {
		h.publish(d.hub)
	}
	return why, nil
}

// lockForPreemption locks all rows of the preemption in lock order: the jobs, their
// allocations, and the machines of the allocations and of the nominations. The machine
// locks keep other transactions from committing a start on these machines meanwhile.
// lockForPreemption returns the tenant of the waiting job, or "" if the job no longer
// waits.
func lockForPreemption(ctx context.Context, tx pgx.Tx, p Preemption) (berth.TenantID, error) {
	jobs, on := []berth.JobID{p.For}, []berth.MachineID{}
	for _, v := range p.Victims {
		jobs = append(jobs, v.Job)
	}
	for _, e := range p.Nominations {
		on = append(on, e.Machine)
	}
	args := namedArgs{"for": p.For, "jobs": jobs, "machines": on}
	var tenant berth.TenantID
	batch := &pgx.Batch{}
	batch.Queue(`
		SELECT 1
		FROM jobs
		WHERE id = ANY(@jobs::uuid[])
		ORDER BY id
		FOR NO KEY UPDATE`, args)
	batch.Queue(`
		SELECT 1
		FROM allocations a
		JOIN jobs j ON j.id = a.job AND j.attempt = a.attempt
		WHERE a.job = ANY(@jobs::uuid[])
		ORDER BY a.id
		FOR NO KEY UPDATE OF a`, args)
	batch.Queue(`
		SELECT 1
		FROM machines
		WHERE id = ANY(@machines::text[]) OR id IN (
			SELECT a.machine_id
			FROM allocations a
			JOIN jobs j ON j.id = a.job AND j.attempt = a.attempt
			WHERE a.job = ANY(@jobs::uuid[]))
		ORDER BY id
		FOR NO KEY UPDATE`, args)
	batch.Queue(`
		SELECT coalesce((
			SELECT tenant
			FROM jobs
			WHERE id = @for AND state IN ('queued', 'retrying') AND NOT held),
				'')`, args).QueryRow(func(row pgx.Row) error {
		return row.Scan(&tenant)
	})
	return tenant, tx.SendBatch(ctx, batch).Close()
}

// lockVictim reads a victim whose rows are already locked. why is the reason for which the
// victim must not be preempted, "" if there is none.
func lockVictim(ctx context.Context, tx pgx.Tx, v Victim,
	beneficiary berth.JobID) (job lockedJob, why string, err error) {
	if job, err = lockJob(ctx, tx, "", v.Job, v.Attempt); err != nil {
		return job, "", err
	}
	var version int64
	var preemptible bool
	var before []berth.JobID
	err = tx.QueryRow(ctx, `SELECT version, preemptible, gave_way_to::text[] FROM jobs
		WHERE id = $1`, v.Job).Scan(&version, &preemptible, &before)
	if err != nil {
		return job, "", err
	}
	// A victim with a member that has ended settles soon and frees its capacity without an
	// order.
	ended := func(m lifecycle.Member) bool {
		return m.State != berth.AllocReserved && m.State != berth.AllocActive
	}
	switch {
	case job.State != berth.Scheduled && job.State != berth.Running:
		why = fmt.Sprintf("job %s is %s", v.Job, job.State)
	case job.Attempt != v.Attempt || version != v.Version:
		why = fmt.Sprintf("job %s is at attempt %d, version %d, not %d, %d", v.Job, job.Attempt, version,
			v.Attempt, v.Version)
	case !preemptible:
		why = fmt.Sprintf("job %s is not preemptible", v.Job)
	case slices.Contains(before, beneficiary):
		why = fmt.Sprintf("job %s was already preempted for this job", v.Job)
	case slices.ContainsFunc(job.Members, ended):
		why = fmt.Sprintf("a member of job %s has ended", v.Job)
	}
	return job, why, nil
}

// promised holds parts of nominations as columns for unnest: one element for each device, or one with device -1 for a
// nomination without devices.
type promised struct {
	job    []berth.JobID // holders of the capacity
	on     []berth.MachineID
	device []int
}

// unstopped returns the reason for which the nominations of a preemption must not stand, "" if there is none. Either
// they name a job that holds capacity of the machine, is no victim, and is not ordered to stop. The order of an
// earlier preemption of the same plan may have been refused. A kill counts as such an order, since a plan counts on a
// killed member as well; without it, the plan would be made and refused again until the member has ended. Or they name
// a gang that keeps the capacity for its repair: a member may have ended since the plan. The rows need no locks of
// their own: no order is ever taken back, and only the leader starts a further attempt.
func unstopped(ctx context.Context, tx pgx.Tx, p Preemption) (why string, err error) {
	var s promised
	for _, m := range p.Nominations {
		if m.Victim == "" || slices.ContainsFunc(p.Victims, func(v Victim) bool { return v.Job == m.Victim }) {
			continue
		}
		devices := []int{-1}
		if len(m.GPUs) > 0 {
			devices = devices[:0]
		}
		for _, g := range m.GPUs {
			devices = append(devices, g.Index)
		}
		for _, d := range devices {
			s.job, s.on, s.device = append(s.job, m.Victim), append(s.on, m.Machine), append(s.device, d)
		}
	}
	if len(s.job) == 0 {
		return "", nil
	}
	var runs, kept berth.JobID
	err = tx.QueryRow(ctx, `
		SELECT coalesce((
			SELECT v.job::text
			FROM unnest($1::uuid[], $2::text[]) AS s(job, machine)
			JOIN allocations v ON v.job = s.job AND v.machine_id = s.machine
			WHERE v.state IN ('reserved', 'active', 'orphaned') AND NOT coalesce(v.orders ?| '{stop,kill}', false)
			ORDER BY v.job
			LIMIT 1), ''), coalesce((
			SELECT e.victim::text
			FROM unnest($1::uuid[], $2::text[], $3::int[]) AS s(job, machine, idx)
			JOIN nominations e ON e.victim = s.job AND e.beneficiary = s.job AND e.machine_id = s.machine
				AND e.gpu_idx = s.idx AND e.expires_at > clock_timestamp()
			WHERE NOT EXISTS (
				SELECT 1 -- the gang keeps only the rest of a part nominated for the job before
				FROM nominations o
				WHERE o.beneficiary = $4 AND o.victim = e.victim AND o.machine_id = e.machine_id
					AND o.gpu_idx = e.gpu_idx)
			ORDER BY e.victim
			LIMIT 1), '')`, s.job, s.on, s.device, p.For).Scan(&runs, &kept)
	switch {
	case runs != "":
		why = fmt.Sprintf("job %s holds nominated capacity and is not ordered to stop", runs)
	case kept != "":
		why = fmt.Sprintf("job %s keeps nominated capacity for its repair", kept)
	}
	return why, err
}

// preempt moves a job to preempting and orders its members to save and stop. Members that
// no machine has claimed are released at once. The caller holds the job's locks and
// publishes the returned hints after the commit.
//
// A debug job is canceled in place of that: it runs once, so it has no queue to return to.
func preempt(ctx context.Context, tx pgx.Tx, job lockedJob, beneficiary berth.JobID, message string) (touched, error) {
	if job.Debug {
		told, _, err := cancelHolding(ctx, tx, job, "leader", holdEnded(message))
		return touched{job.ID, told, true}, err
	}
	_, err := tx.Exec(ctx, `
		UPDATE jobs
		SET state = 'preempting', version = version + 1, actor = 'leader', reason = @reason,
			preempted_for = @for, gave_way_to = gave_way_to || @for::uuid
		WHERE id = @job`,
		namedArgs{"job": job.ID, "for": beneficiary,
			"reason": berth.Reason{Code: berth.ReasonPreempted, Message: message}})
	if err != nil {
		return touched{}, err
	}
	withdrawn, err := withdraw(ctx, tx, job, "preempted before a machine took it")
	if err != nil {
		return touched{}, err
	}
	told, err := orderStop(ctx, tx, job.Job, berth.Orders{Checkpoint: true, Stop: true})
	if err != nil {
		return touched{}, err
	}
	return touched{job.ID, machines(withdrawn, told), true}, addOrderEvent(ctx, tx, job, "stop", told)
}

// dropNominations deletes the earlier nominations of a job that preempts others. The new ones contain the capacity that
// the job needs. If earlier ones stayed, the same capacity would be kept twice. And a new one that names a victim which
// has stopped for the job before would change the attempt of a row that keeps free capacity: other jobs could take that
// capacity until the later attempt stops.
func dropNominations(ctx context.Context, tx pgx.Tx, job berth.JobID) error {
	_, err := tx.Exec(ctx, `
		DELETE FROM nominations d
		WHERE d.id IN (SELECT e.id FROM nominations e WHERE e.beneficiary = $1 ORDER BY e.id FOR UPDATE)`, job)
	return err
}

// insertNominations inserts the nominations of a preemption; the job has no others. A nomination may also name a job
// that an earlier order stops: its attempt is the one that holds capacity of the machine now. If that attempt has ended
// since, the capacity is free.
func insertNominations(ctx context.Context, tx pgx.Tx, p Preemption) error {
	attempts := map[berth.JobID]int{}
	for _, v := range p.Victims {
		attempts[v.Job] = v.Attempt
	}
	var c nominationColumns
	for _, e := range p.Nominations {
		c.add(e, attempts[e.Victim])
	}
	_, err := tx.Exec(ctx, `
		INSERT INTO nominations (beneficiary, machine_id, gpu_idx, milli, cpu_m, memory_mib, disk_mib, victim,
			victim_attempt, expires_at)
		SELECT @for, s.machine, s.idx, s.milli, s.cpu, s.mem, s.disk, s.victim,
			coalesce(nullif(s.attempt, 0), (SELECT max(v.attempt) FROM allocations v WHERE v.job = s.victim
				AND v.machine_id = s.machine AND v.state IN ('reserved', 'active', 'orphaned'))),
			coalesce(s.until, 'infinity')
		FROM (
			-- One row per key, which is unique: a gang may give several parts of one machine.
			SELECT machine, idx, sum(milli)::bigint AS milli, sum(cpu)::bigint AS cpu, sum(mem)::bigint AS mem,
				sum(disk)::bigint AS disk, victim, attempt, max(coalesce(until, 'infinity')) AS until
			FROM unnest(@machine::text[], @idx::int[], @milli::bigint[], @cpu::bigint[], @mem::bigint[],
				@disk::bigint[], @victim::uuid[], @attempt::int[], @until::timestamptz[])
				AS u(machine, idx, milli, cpu, mem, disk, victim, attempt, until)
			GROUP BY machine, idx, victim, attempt) s`,
		namedArgs{
			"for": p.For, "machine": c.machine, "idx": c.idx, "milli": c.milli, "cpu": c.cpu, "mem": c.mem,
			"disk":   c.disk,
			"victim": c.victim, "attempt": c.attempt, "until": c.until,
		})
	return err
}

// nominationColumns holds nominations as columns for unnest, one element per row.
type nominationColumns struct {
	machine               []berth.MachineID
	idx, attempt          []int          // idx -1: no device; attempt 0: no victim
	milli, cpu, mem, disk []int64        // thousandths of a GPU, thousandths of a core, MiB, MiB
	victim                []*berth.JobID // nil: the capacity was free
	until                 []*time.Time   // nil: never expires
}

// add appends a nomination: one row for CPU, memory and disk, and one row per device.
func (c *nominationColumns) add(e Nomination, attempt int) {
	row := func(idx int, milli int64, rest berth.Capacity) {
		c.machine, c.idx, c.milli = append(c.machine, e.Machine), append(c.idx, idx), append(c.milli, milli)
		c.cpu, c.mem, c.disk = append(c.cpu, rest.CPUMilli), append(c.mem, rest.MemoryMiB), append(c.disk, rest.DiskMiB)
		var victim *berth.JobID
		var until *time.Time
		if e.Victim != "" {
			victim = &e.Victim
		}
		if !e.ExpiresAt.IsZero() {
			until = &e.ExpiresAt
		}
		c.victim, c.attempt, c.until = append(c.victim, victim), append(c.attempt, attempt), append(c.until, until)
	}
	row(-1, 0, e.Capacity)
	for _, g := range e.GPUs {
		row(g.Index, g.Milli, berth.Capacity{})
	}
}

// ClearNominations deletes nominations that no longer apply: the beneficiary has ended, has
// been placed, or did not use the capacity before the expiry, or the machine is retired. It
// also clears preempted_for of jobs whose beneficiary has ended, and returns the number of
// changed rows.
func (d *Queue) ClearNominations(ctx context.Context, term Term) (int, error) {
	// The check without locks spares the leader a transaction if nothing is to be cleared.
	var some bool
	err := d.pool.QueryRow(ctx, `
		SELECT EXISTS (SELECT 1 FROM nominations e WHERE `+deadNomination+`)
		    OR EXISTS (SELECT 1 FROM jobs j WHERE `+deadBeneficiary+`)`).Scan(&some)
	if err != nil || !some {
		return 0, mapError(err, "nominations")
	}
	cleared := 0
	err = d.leaderTx(ctx, term, func(tx pgx.Tx) error {
		jobs, err := tx.Exec(ctx, `
			WITH freed AS (
				SELECT j.id FROM jobs j WHERE `+deadBeneficiary+` ORDER BY j.id FOR NO KEY UPDATE
			)
			UPDATE jobs j
			SET preempted_for = NULL, actor = 'leader'
			FROM freed
			WHERE j.id = freed.id`)
		if err != nil {
			return err
		}
		marks, err := tx.Exec(ctx, `
			DELETE FROM nominations d
			WHERE d.id IN (
				SELECT e.id FROM nominations e WHERE `+deadNomination+` ORDER BY e.id FOR UPDATE SKIP LOCKED)`)
		cleared = int(jobs.RowsAffected() + marks.RowsAffected())
		return err
	})
	return cleared, mapError(err, "nominations")
}

// deadNomination is true if nomination e no longer applies. A nomination for the repair of a
// gang (victim and beneficiary are the same job) lasts while the attempt of the nomination
// runs.
const (
	// deadNomination is true if nomination e no longer applies. A nomination for the repair of
	// a gang (victim and beneficiary are the same job) also lasts while the gang runs the
	// attempt of the nomination.
	deadNomination = `
		e.expires_at < clock_timestamp() OR NOT EXISTS (
			SELECT 1 FROM jobs b
			WHERE b.id = e.beneficiary AND (b.state IN ('submitted', 'queued', 'retrying')
			   OR e.victim = e.beneficiary AND b.state IN ('scheduled', 'running') AND b.attempt = e.victim_attempt))
		OR NOT EXISTS (SELECT 1 FROM machines m WHERE m.id = e.machine_id AND m.state <> 'retired')`
	// deadBeneficiary is true if job j was preempted for a job that has ended. A job in
	// state preempting is left alone: its stop order stands even if the beneficiary has
	// ended.
	deadBeneficiary = `
		j.preempted_for IS NOT NULL AND j.state IN ('submitted', 'queued', 'scheduled', 'running', 'retrying')
		AND NOT EXISTS (
			SELECT 1 FROM jobs b
			WHERE b.id = j.preempted_for AND b.state NOT IN ('succeeded', 'failed', 'canceled'))`
)
