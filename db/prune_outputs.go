package db

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
)

// outputsLock is the advisory lock between readers and the pruning of outputs. A
// transaction that binds outputs as inputs holds it shared, and PruneOutputs holds it
// exclusively, so an output that was chosen still exists when the choice is committed. In
// the lock order it follows the rows of jobs. PruneOutputs does not wait for the lock; if
// the lock is taken, the next round prunes.
const outputsLock = `hashtextextended('outputs', 0)`

// holdOutputs keeps outputs from being pruned until the transaction ends. It is a separate
// statement: the snapshot of the next one then shows all earlier deletions.
func holdOutputs(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock_shared(`+outputsLock+`)`)
	return err
}

// PruneOutputs deletes the outputs of archived jobs that ended longer than retention ago,
// at most limit rows, and returns the number of deleted rows. An output that is the input
// of a job stays until that job is archived. Objects that are no longer named by any row
// are marked for removal; see Doomed. The result of a cached step is deleted with the last
// of its outputs.
func (d *Objects) PruneOutputs(ctx context.Context, term Term, retention time.Duration, limit int) (int, error) {
	// idle covers the time between a job's id and its row, and adjusted clocks: a job with
	// a younger id cannot have ended longer than retention ago.
	const idle = 24 * time.Hour
	args := namedArgs{"retention": retention, "limit": limit,
		"before": berth.NewJobID(time.Now().Add(idle - retention))}
	var n int
	err := d.pruneTx(ctx, term, func(tx pgx.Tx) error {
		n = 0
		var alone bool // a wait for the lock would keep the leader from renewing its lease
		if err := tx.QueryRow(ctx, `SELECT pg_try_advisory_xact_lock(`+outputsLock+`)`).Scan(&alone); err != nil ||
			!alone {
			return err
		}
		rows, err := tx.Query(ctx, `
			WITH old AS (
				SELECT o.job, o.attempt, o.rank, o.name
				FROM outputs o
				WHERE o.job < @before::uuid
				  AND EXISTS (SELECT 1 FROM archived_jobs a
				    WHERE a.id = o.job AND a.finished_at < now() - @retention::interval)
				  AND NOT EXISTS (
					SELECT 1
					FROM job_inputs i
					WHERE i.source = o.job AND i.attempt = o.attempt AND i.rank = o.rank AND i.name = o.name)
				ORDER BY o.job, o.attempt, o.rank, o.name
				LIMIT @limit
			)
			DELETE FROM outputs o
			USING old
			WHERE o.job = old.job AND o.attempt = old.attempt AND o.rank = old.rank AND o.name = old.name
			RETURNING o.job::text, o.object`, args)
		if err != nil {
			return err
		}
		var jobs, objects []string
		var job, object string
		tag, err := pgx.ForEachRow(rows, []any{&job, &object}, func() error {
			jobs, objects = append(jobs, job), append(objects, object)
			return nil
		})
		if err != nil || len(objects) == 0 {
			return err
		}
		n = int(tag.RowsAffected())
		args := namedArgs{"jobs": jobs, "objects": objects}
		// Several outputs may name the same object.
		if _, err := tx.Exec(ctx, `
			INSERT INTO doomed_objects (prefix)
			SELECT DISTINCT x.object
			FROM unnest(@objects::text[]) AS x (object)
			WHERE NOT EXISTS (SELECT 1 FROM outputs o WHERE o.object = x.object)
			ON CONFLICT DO NOTHING`, args); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `
			DELETE FROM step_results r
			WHERE r.job = ANY(@jobs::uuid[]) AND NOT EXISTS (SELECT 1 FROM outputs o WHERE o.job = r.job)`, args)
		return err
	})
	return n, mapError(err, "outputs")
}
