package db

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
)

// Victim is a job that is told to give way, as it was when that was decided.
type Victim struct {
	Job     berth.JobID
	Version int64
	Attempt int
	Why     string // it may be told to, for people
}

// Preemption is a decision of the leader: victims that stop for one waiting job,
// and the room that is kept for it.
type Preemption struct {
	For      berth.JobID
	Victims  []Victim
	Earmarks []Earmark
}

// CommitPreemption makes a decision true as a whole or not at all: the victims
// are told to save and stop, within their grace, and the room they give up, with
// what is free beside it, is kept for the job they stop for. It is refused,
// which why says, if that job waits no more, or a victim is not as it was: it has
// changed, or a member of it has ended by itself. A term that is over is an error.
//
// A victim that is told twice for the same job never exists, because what it gave
// way to stays in its row.
func (d *Queue) CommitPreemption(ctx context.Context, term Term, p Preemption) (why string, err error) {
	var hints []touched
	err = d.leaderTx(ctx, term, func(tx pgx.Tx) error {
		hints = nil
		tenant, err := lockForPreemption(ctx, tx, p)
		if err != nil {
			return err
		}
		if tenant == "" {
			why = fmt.Sprintf("job %s waits no more", p.For)
			return nil
		}
		jobs := make([]lockedJob, len(p.Victims))
		for i, v := range p.Victims {
			if jobs[i], why, err = lockVictim(ctx, tx, v, p.For); err != nil || why != "" {
				return err
			}
		}
		for i, v := range p.Victims {
			h, err := preempt(ctx, tx, jobs[i], p.For,
				fmt.Sprintf("gives way to job %s of tenant %s: %s", p.For, tenant, v.Why))
			if err != nil {
				return err
			}
			hints = append(hints, h)
		}
		return insertEarmarks(ctx, tx, p)
	})
	if err != nil {
		return "", mapError(err, "preemption for job "+string(p.For))
	}
	for _, h := range hints {
		h.publish(d.hub)
	}
	return why, nil
}

// lockForPreemption takes all that is written, in lock order: the jobs, their
// allocations, and the machines of both and of the nominations, so that no start is
// committed there meanwhile. It returns the tenant of the job that all this is
// for, "" if it waits no more.
func lockForPreemption(ctx context.Context, tx pgx.Tx, p Preemption) (berth.TenantID, error) {
	jobs, on := []berth.JobID{p.For}, []berth.MachineID{}
	for _, v := range p.Victims {
		jobs = append(jobs, v.Job)
	}
	for _, e := range p.Earmarks {
		on = append(on, e.Machine)
	}
	args := pgx.NamedArgs{"for": p.For, "jobs": jobs, "machines": on}
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

// lockVictim reads a victim, whose rows are locked, and says why it is none any
// more.
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
	ended := func(r lockedRank) bool { return r.State != berth.AllocReserved && r.State != berth.AllocActive }
	switch {
	case job.State != berth.Scheduled && job.State != berth.Running:
		why = fmt.Sprintf("job %s is %s", v.Job, job.State)
	case job.Attempt != v.Attempt || version != v.Version:
		why = fmt.Sprintf("job %s is at attempt %d, version %d, not %d, %d", v.Job, job.Attempt, version,
			v.Attempt, v.Version)
	case !preemptible:
		why = fmt.Sprintf("job %s is not preemptible", v.Job)
	case slices.Contains(before, beneficiary):
		why = fmt.Sprintf("job %s gave way to it before", v.Job)
	case slices.ContainsFunc(job.Ranks, ended):
		why = fmt.Sprintf("job %s has a rank that has ended", v.Job)
	}
	return job, why, nil
}

// preempt tells a victim to save and stop.
func preempt(ctx context.Context, tx pgx.Tx, job lockedJob, beneficiary berth.JobID, message string) (touched, error) {
	_, err := tx.Exec(ctx, `
		UPDATE jobs
		SET state = 'preempting', version = version + 1, actor = 'leader', reason = @reason,
			preempted_for = @for, gave_way_to = gave_way_to || @for::uuid
		WHERE id = @job`,
		pgx.NamedArgs{"job": job.ID, "for": beneficiary,
			"reason": berth.Reason{Code: berth.ReasonPreempted, Message: message}})
	if err != nil {
		return touched{}, err
	}
	withdrawn, err := withdraw(ctx, tx, job, "preempted before a machine took it")
	if err != nil {
		return touched{}, err
	}
	told, err := orderStop(ctx, tx, job, berth.Orders{Checkpoint: true, Stop: true})
	if err != nil {
		return touched{}, err
	}
	return touched{job.ID, machines(withdrawn, told), true}, addOrderEvent(ctx, tx, job, "stop", told)
}

// insertEarmarks writes what is kept. What was kept from the same victim for the
// same job before is not kept twice.
func insertEarmarks(ctx context.Context, tx pgx.Tx, p Preemption) error {
	attempts := map[berth.JobID]int{}
	for _, v := range p.Victims {
		attempts[v.Job] = v.Attempt
	}
	var c earmarkColumns
	for _, e := range p.Earmarks {
		c.add(e, attempts[e.Victim])
	}
	_, err := tx.Exec(ctx, `
		INSERT INTO earmarks AS e (beneficiary, machine_id, gpu_idx, milli, cpu_m, mem_mb, disk_mb, victim,
			victim_attempt, expires_at)
		SELECT @for, s.machine, s.idx, s.milli, s.cpu, s.mem, s.disk, s.victim, nullif(s.attempt, 0),
			coalesce(s.until, 'infinity')
		FROM unnest(@machine::text[], @idx::int[], @milli::bigint[], @cpu::bigint[], @mem::bigint[], @disk::bigint[],
			@victim::uuid[], @attempt::int[], @until::timestamptz[])
			AS s(machine, idx, milli, cpu, mem, disk, victim, attempt, until)
		ON CONFLICT ON CONSTRAINT earmarks_once DO UPDATE
		SET milli = greatest(e.milli, excluded.milli), cpu_m = greatest(e.cpu_m, excluded.cpu_m),
			mem_mb = greatest(e.mem_mb, excluded.mem_mb),
			disk_mb = greatest(e.disk_mb, excluded.disk_mb), victim_attempt = excluded.victim_attempt,
				expires_at = greatest(e.expires_at, excluded.expires_at)`,
		pgx.NamedArgs{
			"for": p.For, "machine": c.machine, "idx": c.idx, "milli": c.milli, "cpu": c.cpu, "mem": c.mem,
			"disk":   c.disk,
			"victim": c.victim, "attempt": c.attempt, "until": c.until,
		})
	return err
}

type earmarkColumns struct {
	machine               []berth.MachineID
	idx, attempt          []int
	milli, cpu, mem, disk []int64
	victim                []*berth.JobID
	until                 []*time.Time
}

// add writes a nomination as one row for CPU, memory and disk, and one per device.
func (c *earmarkColumns) add(e Earmark, attempt int) {
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

// ClearNominations deletes what is set aside for jobs that ended or did not come
// for it in time, and frees jobs from giving way to one that has ended.
func (d *Queue) ClearNominations(ctx context.Context, term Term) (int, error) {
	var some bool
	err := d.pool.QueryRow(ctx, `
		SELECT EXISTS (SELECT 1 FROM earmarks e WHERE `+deadEarmark+`)
		    OR EXISTS (SELECT 1 FROM jobs j WHERE `+deadBeneficiary+`)`).Scan(&some)
	if err != nil || !some {
		return 0, mapError(err, "earmarks")
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
			DELETE FROM earmarks d
			WHERE d.id IN (SELECT e.id FROM earmarks e WHERE `+deadEarmark+` ORDER BY e.id FOR UPDATE SKIP LOCKED)`)
		cleared = int(jobs.RowsAffected() + marks.RowsAffected())
		return err
	})
	return cleared, mapError(err, "earmarks")
}

const (
	deadEarmark = `
		e.expires_at < clock_timestamp() OR NOT EXISTS (
			SELECT 1 FROM jobs b
			WHERE b.id = e.beneficiary AND (b.state IN ('submitted', 'queued', 'retrying')
			   OR e.victim = e.beneficiary AND b.state IN ('scheduled', 'running') AND b.attempt = e.victim_attempt))
		OR NOT EXISTS (SELECT 1 FROM machines m WHERE m.id = e.machine_id AND m.state <> 'retired')`
	// A job that is stopping for another stops, whatever became of that one.
	deadBeneficiary = `
		j.preempted_for IS NOT NULL AND j.state IN ('submitted', 'queued', 'scheduled', 'running', 'retrying')
		AND NOT EXISTS (
			SELECT 1 FROM jobs b
			WHERE b.id = j.preempted_for AND b.state NOT IN ('succeeded', 'failed', 'canceled'))`
)
