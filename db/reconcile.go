package db

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
)

// Unclaimed returns scheduled jobs with a member that its machine has not claimed for at
// least age, the longest wait first, at most limit.
func (d *Attempts) Unclaimed(ctx context.Context, age time.Duration, limit int) ([]Aged, error) {
	return d.aged(ctx, "unclaimed ranks", `
		SELECT j.id, j.attempt, j.state, clock_timestamp() - min(a.reserved_at)
		FROM allocations a
		JOIN jobs j ON j.id = a.job AND j.attempt = a.attempt
		WHERE a.state = 'reserved' AND a.reserved_at < clock_timestamp() - @age::interval AND j.state = 'scheduled'
		GROUP BY j.id
		ORDER BY min(a.reserved_at), j.id
		LIMIT @limit`, namedArgs{"age": age, "limit": limit})
}

// Unsettled returns jobs that still have an attempt although its last member ended at least
// age ago, the longest wait first, at most limit.
func (d *Attempts) Unsettled(ctx context.Context, age time.Duration, limit int) ([]Aged, error) {
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
		LIMIT @limit`, namedArgs{"age": age, "limit": limit})
}

// KillOverdue orders the kill of members that have not stopped within age after their
// deadline (stop_by), for at most limit jobs. It returns the number of jobs with a new
// order.
func (d *Attempts) KillOverdue(ctx context.Context, term Term, age time.Duration, limit int) (int, error) {
	refs, err := d.list(ctx, `
		SELECT DISTINCT a.job, a.attempt
		FROM allocations a
		JOIN jobs j ON j.id = a.job AND j.attempt = a.attempt
		WHERE a.state IN ('reserved', 'active') AND a.stop_by < clock_timestamp() - @age::interval
			AND NOT a.orders ? 'kill'
		  AND j.state IN ('scheduled', 'running', 'preempting', 'canceling')
		ORDER BY 1
		LIMIT @limit`, namedArgs{"age": age, "limit": limit})
	if err != nil {
		return 0, mapError(err, "ranks past their stop_by")
	}
	// The list was read without locks, so the update checks the same conditions again.
	return d.leaderOrders(ctx, term, refs, "kill, it did not stop in time",
		func(tx pgx.Tx, job lockedJob) ([]orderedRank, error) {
			return updateRanks(ctx, tx, `
			UPDATE allocations
			SET orders = orders || @orders
			WHERE job = @job AND attempt = @attempt AND state = 'active'
			  AND stop_by < clock_timestamp() - @age::interval AND NOT orders ? 'kill'
			RETURNING rank, machine_id`,
				namedArgs{"job": job.ID, "attempt": job.Attempt, "age": age, "orders": berth.Orders{Kill: true}})
		})
}

// KillStray ends the live members of attempts that are over, at most limit members, and
// returns the number of ended members. A member that a machine may run gets an order to
// kill, and holds its capacity until the machine confirms the end. A member that no machine
// has claimed is released at once, since a later claim is refused.
func (d *Attempts) KillStray(ctx context.Context, term Term, limit int) (int, error) {
	// A stray is live while its job has no attempt at present, has ended, or runs a later
	// attempt.
	const strays = `
		SELECT a.id, a.job
		FROM allocations a
		JOIN jobs j ON j.id = a.job
		WHERE a.state IN ('reserved', 'active')
		  AND (j.state IN ('submitted', 'queued', 'retrying', 'succeeded', 'failed', 'canceled')
		    OR a.attempt <> j.attempt)
		  AND (a.state = 'reserved' OR NOT a.orders ? 'kill')`
	args := namedArgs{"limit": limit, "kill": berth.Orders{Kill: true}, "forget": berth.Orders{Forget: true}}
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
