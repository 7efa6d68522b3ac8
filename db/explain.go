package db

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
)

// Waiting is what decides about a job's place in the queue, beside its spec.
type Waiting struct {
	State         berth.State
	Held          bool
	Priority      int
	SubmittedAt   time.Time
	EligibleAt    time.Time
	QueueDeadline *time.Time
	Now           time.Time // the database's clock
	Avoid         []berth.MachineID
	Request       berth.Request // as placement sees it: memory grown after an OOM, too
	Ahead         int           // jobs before it that may start now
}

// Waiting returns how a live job waits. Tenant "" means any; an archived job
// waits for nothing and is not found.
func (d *DB) Waiting(ctx context.Context, tenant berth.TenantID, id berth.JobID) (Waiting, error) {
	var w Waiting
	err := d.pool.QueryRow(ctx, `
		SELECT j.state, j.held, j.priority, j.submitted_at, j.eligible_at, j.queue_deadline, now(), j.avoid, c.request,
			(`+jobsAhead+`)
		FROM jobs j
		JOIN classes c ON c.class = j.class
		WHERE j.id = @id AND (@tenant = '' OR j.tenant = @tenant)`,
		pgx.NamedArgs{"id": id, "tenant": string(tenant)}).Scan(
		&w.State, &w.Held, &w.Priority, &w.SubmittedAt, &w.EligibleAt, &w.QueueDeadline, &w.Now, &w.Avoid, &w.Request, &w.Ahead)
	return w, mapError(err, "job "+string(id))
}

// jobsAhead counts the jobs that placement would look at before a job j: the
// order of placement's queue.
const jobsAhead = `
			SELECT count(*)
			FROM jobs o
			WHERE o.state IN ('queued', 'retrying') AND NOT o.held AND o.eligible_at <= now() AND o.id <> j.id
			  AND (o.priority > j.priority
				OR o.priority = j.priority AND (o.submitted_at, o.id) < (j.submitted_at, j.id))`

// QueueAhead counts the jobs that would come before one that is submitted now.
func (d *DB) QueueAhead(ctx context.Context, priority int) (int, error) {
	var n int
	err := d.pool.QueryRow(ctx, `
		SELECT count(*)
		FROM jobs
		WHERE state IN ('submitted', 'queued', 'retrying') AND NOT held AND eligible_at <= now() AND priority >= @priority`,
		pgx.NamedArgs{"priority": priority}).Scan(&n)
	return n, mapError(err, "queue")
}

// Ending is capacity that will be free at the latest at At: its job has a time
// limit.
type Ending struct {
	Machine  berth.MachineID
	At       time.Time
	Capacity berth.Capacity
	GPUs     []berth.DeviceShare
}

// Endings returns what time limits tell of the future, soonest first, at most
// limit of it.
func (d *DB) Endings(ctx context.Context, limit int) ([]Ending, error) {
	rows, err := d.pool.Query(ctx, `
		SELECT a.machine_id,
			coalesce(a.started_at, now()) + (j.run_limit_ms + j.grace_ms) * interval '1 millisecond' AS ends,
			a.cpu_m, a.mem_mb, a.disk_mb, a.gpu_milli,
			coalesce((
				SELECT jsonb_agg(jsonb_build_object('Index', c.idx, 'Milli', c.milli))
				FROM gpu_claims c WHERE c.alloc_id = a.id), '[]')
		FROM allocations a
		JOIN jobs j ON j.id = a.job AND j.attempt = a.attempt
		WHERE a.state IN ('reserved', 'active') AND a.forgotten_at IS NULL AND j.run_limit_ms > 0
		ORDER BY ends, a.id
		LIMIT @limit`,
		pgx.NamedArgs{"limit": limit})
	if err != nil {
		return nil, mapError(err, "allocations")
	}
	endings, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Ending, error) {
		var e Ending
		err := row.Scan(&e.Machine, &e.At, &e.Capacity.CPUMilli, &e.Capacity.MemoryMiB, &e.Capacity.DiskMiB, &e.Capacity.GPUMilli, &e.GPUs)
		return e, err
	})
	return endings, mapError(err, "allocations")
}

// HourlyCost is what a machine costs an hour, 0 where nothing is charged.
func (d *DB) HourlyCost(ctx context.Context, id berth.MachineID) (float64, error) {
	var cost float64
	err := d.pool.QueryRow(ctx, `
		SELECT coalesce(p.hourly_cost, 0)
		FROM machines m
		LEFT JOIN pools p ON p.id = m.pool
		WHERE m.id = @id`,
		pgx.NamedArgs{"id": id}).Scan(&cost)
	return cost, mapError(err, "machine "+string(id))
}
