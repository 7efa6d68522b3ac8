package db

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
)

// Aged is a job in a state, and for how long.
type Aged struct {
	ID      berth.JobID
	Attempt int
	State   berth.State
	Age     time.Duration // in that state, or as the query says
}

func (d *DB) aged(ctx context.Context, what, sql string, args pgx.NamedArgs) ([]Aged, error) {
	rows, err := d.pool.Query(ctx, sql, args)
	if err != nil {
		return nil, mapError(err, what)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Aged])
	return list, mapError(err, what)
}

// LiveJobs returns every job that has not ended and has been in its state for
// at least age. Each should have an open workflow.
func (d *DB) LiveJobs(ctx context.Context, age time.Duration) ([]Aged, error) {
	return d.aged(ctx, "live jobs", `
		SELECT id, attempt, state, clock_timestamp() - state_at
		FROM jobs
		WHERE state NOT IN ('succeeded', 'failed', 'canceled') AND NOT blocked
		  AND state_at < clock_timestamp() - @age::interval
		ORDER BY id`, pgx.NamedArgs{"age": age})
}

// StatesOf returns how the jobs stand, archived ones included; one without a
// row is left out.
func (d *DB) StatesOf(ctx context.Context, ids []berth.JobID) ([]Aged, error) {
	return d.aged(ctx, "jobs", `
		SELECT id, attempt, state, clock_timestamp() - state_at
		FROM jobs
		WHERE id = ANY(@ids::uuid[])
		UNION ALL
		SELECT id, 0, state, clock_timestamp() - finished_at
		FROM archived_jobs
		WHERE id = ANY(@ids::uuid[])`, pgx.NamedArgs{"ids": ids})
}

// Unclaimed returns scheduled jobs with a rank that its machine has not claimed
// for at least age, the longest wait first.
func (d *DB) Unclaimed(ctx context.Context, age time.Duration, limit int) ([]Aged, error) {
	return d.aged(ctx, "unclaimed ranks", `
		SELECT j.id, j.attempt, j.state, clock_timestamp() - min(a.reserved_at)
		FROM allocations a
		JOIN jobs j ON j.id = a.job AND j.attempt = a.attempt
		WHERE a.state = 'reserved' AND a.reserved_at < clock_timestamp() - @age::interval AND j.state = 'scheduled'
		GROUP BY j.id
		ORDER BY min(a.reserved_at), j.id
		LIMIT @limit`, pgx.NamedArgs{"age": age, "limit": limit})
}

// Unsettled returns jobs of which every rank of the current attempt ended at
// least age ago, and which still hold the attempt, the longest wait first.
func (d *DB) Unsettled(ctx context.Context, age time.Duration, limit int) ([]Aged, error) {
	return d.aged(ctx, "unsettled attempts", `
		SELECT j.id, j.attempt, j.state, clock_timestamp() - e.ended
		FROM jobs j
		CROSS JOIN LATERAL (
			SELECT max(coalesce(a.sealed_at, a.orphaned_at, a.released_at, a.exited_at)) AS ended,
			       bool_or(a.state IN ('reserved', 'active') OR a.state = 'exited' AND a.sealed_at IS NULL) AS live
			FROM allocations a
			WHERE a.job = j.id AND a.attempt = j.attempt
		) e
		WHERE j.state IN ('scheduled', 'running', 'preempting', 'canceling')
		  AND NOT e.live AND e.ended < clock_timestamp() - @age::interval
		ORDER BY e.ended, j.id
		LIMIT @limit`, pgx.NamedArgs{"age": age, "limit": limit})
}

// KillOverdue orders the kill of ranks that were told to stop and have not, age
// after their time was up. It returns how many jobs it told.
func (d *DB) KillOverdue(ctx context.Context, term Term, age time.Duration, limit int) (int, error) {
	refs, err := d.attempts(ctx, `
		SELECT DISTINCT a.job, a.attempt
		FROM allocations a
		JOIN jobs j ON j.id = a.job AND j.attempt = a.attempt
		WHERE a.state IN ('reserved', 'active') AND a.stop_by < clock_timestamp() - @age::interval AND NOT a.orders ? 'kill'
		  AND j.state IN ('scheduled', 'running', 'preempting', 'canceling')
		ORDER BY 1
		LIMIT @limit`, pgx.NamedArgs{"age": age, "limit": limit})
	if err != nil {
		return 0, mapError(err, "ranks past their stop_by")
	}
	return d.leaderOrders(ctx, term, refs, "kill, it did not stop in time", func(tx pgx.Tx, job lockedJob) ([]orderedRank, error) {
		return updateRanks(ctx, tx, `
			UPDATE allocations
			SET orders = orders || @orders
			WHERE job = @job AND attempt = @attempt AND state = 'active'
			  AND stop_by < clock_timestamp() - @age::interval AND NOT orders ? 'kill'
			RETURNING rank, machine_id`,
			pgx.NamedArgs{"job": job.ID, "attempt": job.Attempt, "age": age, "orders": berth.Orders{Kill: true}})
	})
}

// KillStray ends what lives of attempts that are over: ranks that a machine may
// run are ordered killed, and count until it confirms; those that none has
// claimed are released at once, since a claim of them is refused. It returns
// how many ranks there were.
func (d *DB) KillStray(ctx context.Context, term Term, limit int) (int, error) {
	const strays = `
		SELECT a.id, a.job
		FROM allocations a
		JOIN jobs j ON j.id = a.job
		WHERE a.state IN ('reserved', 'active')
		  AND (j.state IN ('submitted', 'queued', 'retrying', 'succeeded', 'failed', 'canceled') OR a.attempt <> j.attempt)
		  AND (a.state = 'reserved' OR NOT a.orders ? 'kill')`
	args := pgx.NamedArgs{"limit": limit, "kill": berth.Orders{Kill: true}, "forget": berth.Orders{Forget: true}}
	var some bool
	if err := d.pool.QueryRow(ctx, `SELECT EXISTS (`+strays+`)`).Scan(&some); err != nil || !some {
		return 0, mapError(err, "stray ranks")
	}
	var told []orderedRank
	err := d.leaderTx(ctx, term, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			SELECT 1
			FROM jobs
			WHERE id IN (SELECT job FROM (`+strays+` ORDER BY a.id LIMIT @limit) s)
			ORDER BY id
			FOR NO KEY UPDATE`, args)
		if err != nil {
			return fmt.Errorf("lock jobs: %w", err)
		}
		told, err = updateRanks(ctx, tx, `
			WITH stray AS (`+strays+`
				ORDER BY a.id
				LIMIT @limit
				FOR NO KEY UPDATE OF a
			)
			UPDATE allocations a
			SET state = CASE a.state WHEN 'reserved' THEN 'released' ELSE a.state END,
			    released_at = CASE a.state WHEN 'reserved' THEN clock_timestamp() ELSE a.released_at END,
			    orders = a.orders || CASE a.state WHEN 'reserved' THEN @forget::jsonb ELSE @kill::jsonb END,
			    stop_by = CASE a.state WHEN 'reserved' THEN a.stop_by ELSE least(a.stop_by, clock_timestamp()) END
			FROM stray
			WHERE a.id = stray.id
			RETURNING a.rank, a.machine_id`, args)
		return err
	})
	for _, m := range machines(told) {
		d.hub.Publish(TopicMachine, string(m))
	}
	return len(told), mapError(err, "stray ranks")
}

// Miscount is a machine whose counters differ from what its allocations add up
// to. Nothing should be placed there until somebody has found out why.
type Miscount struct {
	Machine berth.MachineID
	Detail  string
}

// Miscounts compares the counters of machines and devices with the allocations
// and claims that count, in one statement and so as of one moment.
func (d *DB) Miscounts(ctx context.Context) ([]Miscount, error) {
	rows, err := d.pool.Query(ctx, `
		WITH live AS (
			SELECT id, machine_id, cpu_m, mem_mb, disk_mb, gpu_milli
			FROM allocations
			WHERE state IN ('reserved', 'active', 'orphaned')
		), machine_sums AS (
			SELECT machine_id, sum(cpu_m) AS cpu_m, sum(mem_mb) AS mem_mb, sum(disk_mb) AS disk_mb, sum(gpu_milli) AS gpu_milli
			FROM live
			GROUP BY machine_id
		), device_sums AS (
			SELECT c.machine_id, c.idx, sum(c.milli) AS milli
			FROM live l
			JOIN gpu_claims c ON c.alloc_id = l.id
			GROUP BY c.machine_id, c.idx
		)
		SELECT m.id, format('counted cpu %s, memory %s, disk %s, gpu %s; allocations add up to %s, %s, %s, %s',
			m.cpu_m_used, m.mem_mb_used, m.disk_mb_used, m.gpu_milli_used,
			coalesce(s.cpu_m, 0), coalesce(s.mem_mb, 0), coalesce(s.disk_mb, 0), coalesce(s.gpu_milli, 0))
		FROM machines m
		LEFT JOIN machine_sums s ON s.machine_id = m.id
		WHERE (m.cpu_m_used, m.mem_mb_used, m.disk_mb_used, m.gpu_milli_used)
		   <> (coalesce(s.cpu_m, 0), coalesce(s.mem_mb, 0), coalesce(s.disk_mb, 0), coalesce(s.gpu_milli, 0))
		UNION ALL
		SELECT g.machine_id, format('GPU %s: counted %s; claims add up to %s', g.idx, g.milli_used, coalesce(s.milli, 0))
		FROM gpu_devices g
		LEFT JOIN device_sums s ON s.machine_id = g.machine_id AND s.idx = g.idx
		WHERE g.milli_used <> coalesce(s.milli, 0)
		ORDER BY 1`)
	if err != nil {
		return nil, mapError(err, "counters")
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Miscount])
	return list, mapError(err, "counters")
}

// DisobeyedAfter is how long after an order to kill is due a machine that has
// not followed it gets no more work.
const DisobeyedAfter = time.Minute

// Disobedient returns the machines on which a rank lives although its kill was
// ordered, age after its time to stop was up.
func (d *DB) Disobedient(ctx context.Context, age time.Duration) ([]berth.MachineID, error) {
	rows, err := d.pool.Query(ctx, `
		SELECT DISTINCT machine_id
		FROM allocations
		WHERE state = 'active' AND orders ? 'kill' AND stop_by < clock_timestamp() - @age::interval
		ORDER BY 1`, pgx.NamedArgs{"age": age})
	if err != nil {
		return nil, mapError(err, "machines")
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[berth.MachineID])
	return list, mapError(err, "machines")
}

// FailExpired ends waiting jobs whose queue deadline has passed. Held jobs are
// left: their time does not count. ids narrows it to some jobs; nil means all.
func (d *DB) FailExpired(ctx context.Context, term Term, ids []berth.JobID, limit int) ([]berth.JobID, error) {
	args := pgx.NamedArgs{"ids": ids, "limit": limit, "reason": berth.Reason{
		Code:    berth.ReasonQueueTimeout,
		Message: "did not start within its queue_timeout",
		Hint:    "raise queue_timeout, or see what it waits for with explain",
	}}
	const expired = `
		SELECT id
		FROM jobs
		WHERE kind = 'job' AND state IN ('queued', 'retrying') AND NOT held AND queue_deadline <= clock_timestamp()
		  AND (@ids::uuid[] IS NULL OR id = ANY(@ids::uuid[]))
		ORDER BY id
		LIMIT @limit`
	if ids == nil {
		var some bool
		if err := d.pool.QueryRow(ctx, `SELECT EXISTS (`+expired+`)`, args).Scan(&some); err != nil || !some {
			return nil, mapError(err, "expired jobs")
		}
	}
	var failed []berth.JobID
	err := d.leaderTx(ctx, term, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			WITH expired AS (`+expired+`
				FOR NO KEY UPDATE
			)
			UPDATE jobs j
			SET state = 'failed', version = j.version + 1, actor = 'leader', reason = @reason
			FROM expired
			WHERE j.id = expired.id
			RETURNING j.id`, args)
		if err != nil {
			return err
		}
		failed, err = pgx.CollectRows(rows, pgx.RowTo[berth.JobID])
		return err
	})
	if err != nil {
		return nil, mapError(err, "expired jobs")
	}
	for _, id := range failed {
		d.hub.Publish(TopicJob, string(id))
	}
	d.tellParents(ctx, failed...)
	return failed, nil
}

// ClearEarmarks deletes what is set aside for jobs that ended or did not come
// for it in time, and frees jobs from giving way to one that has ended.
func (d *DB) ClearEarmarks(ctx context.Context, term Term) (int, error) {
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

// EnsurePartitions makes the monthly partitions of this and the next months.
func (d *DB) EnsurePartitions(ctx context.Context) error {
	_, err := d.pool.Exec(ctx, `SELECT ensure_partitions()`)
	return mapError(err, "partitions")
}
