package db

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
)

// ListLive returns the jobs that have not ended and have been in their state for at least
// age. Each should have an open workflow. Steps that wait for other steps have none yet, and
// are left out.
func (d *Jobs) ListLive(ctx context.Context, age time.Duration) ([]Aged, error) {
	return d.aged(ctx, "live jobs", `
		SELECT id, attempt, state, clock_timestamp() - state_at
		FROM jobs
		WHERE state NOT IN ('succeeded', 'failed', 'canceled') AND NOT blocked
		  AND state_at < clock_timestamp() - @age::interval
		ORDER BY id`, namedArgs{"age": age})
}

// StatesOf returns the states of jobs, archived ones included. Ids without a row are left
// out. An archived job has attempt 0 and its age since its end.
func (d *Jobs) StatesOf(ctx context.Context, ids []berth.JobID) ([]Aged, error) {
	return d.aged(ctx, "jobs", `
		SELECT id, attempt, state, clock_timestamp() - state_at
		FROM jobs
		WHERE id = ANY(@ids::uuid[])
		UNION ALL
		SELECT id, 0, state, clock_timestamp() - finished_at
		FROM archived_jobs
		WHERE id = ANY(@ids::uuid[])`, namedArgs{"ids": ids})
}

// FailExpired fails at most limit waiting jobs whose queue deadline has passed, and returns
// them. Held jobs are skipped: their deadline does not run. ids restricts it to some jobs;
// nil means all.
func (d *Jobs) FailExpired(ctx context.Context, term Term, ids []berth.JobID, limit int) ([]berth.JobID, error) {
	args := namedArgs{"ids": ids, "limit": limit, "reason": berth.Reason{
		Code:    berth.ReasonQueueTimeout,
		Message: "did not start within its queue_timeout",
		Hint:    "raise queue_timeout, or find the cause with berth explain",
	}}
	const expired = `
		SELECT id
		FROM jobs
		WHERE kind = 'job' AND state IN ('queued', 'retrying') AND NOT held AND queue_deadline <= clock_timestamp()
		  AND (@ids::uuid[] IS NULL OR id = ANY(@ids::uuid[]))
		ORDER BY id
		LIMIT @limit`
	// The periodic pass over all jobs usually finds none. A plain read decides that without a
	// leader transaction.
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
	// The last waiting element of an array may have ended here.
	notifyParents(ctx, d.core, failed...)
	wakeDependents(ctx, d.core, failed...)
	return failed, nil
}
