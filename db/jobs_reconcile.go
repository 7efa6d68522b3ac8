package db

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
)

// ListLive returns every job that has not ended and has been in its state for
// at least age. Each should have an open workflow.
func (d *Jobs) ListLive(ctx context.Context, age time.Duration) ([]Aged, error) {
	return d.aged(ctx, "live jobs", `
		SELECT id, attempt, state, clock_timestamp() - state_at
		FROM jobs
		WHERE state NOT IN ('succeeded', 'failed', 'canceled') AND NOT blocked
		  AND state_at < clock_timestamp() - @age::interval
		ORDER BY id`, pgx.NamedArgs{"age": age})
}

// StatesOf returns how the jobs stand, archived ones included; one without a
// row is left out.
func (d *Jobs) StatesOf(ctx context.Context, ids []berth.JobID) ([]Aged, error) {
	return d.aged(ctx, "jobs", `
		SELECT id, attempt, state, clock_timestamp() - state_at
		FROM jobs
		WHERE id = ANY(@ids::uuid[])
		UNION ALL
		SELECT id, 0, state, clock_timestamp() - finished_at
		FROM archived_jobs
		WHERE id = ANY(@ids::uuid[])`, pgx.NamedArgs{"ids": ids})
}

// FailExpired ends waiting jobs whose queue deadline has passed. Held jobs are
// left: their time does not count. ids narrows it to some jobs; nil means all.
func (d *Jobs) FailExpired(ctx context.Context, term Term, ids []berth.JobID, limit int) ([]berth.JobID, error) {
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
	notifyParents(ctx, d.core, failed...)
	return failed, nil
}
