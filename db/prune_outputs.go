package db

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
)

// outputsLock is held by whoever chooses outputs to take, shared, and alone while
// some are pruned: what was chosen is there when the choice is on record. It comes
// after the rows of jobs. Pruning does not wait for it, but leaves its work to the next round.
const outputsLock = `hashtextextended('outputs', 0)`

// holdOutputs keeps outputs from being pruned until the transaction ends. It is a
// statement of its own, so that the next one sees what was pruned meanwhile.
func holdOutputs(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock_shared(`+outputsLock+`)`)
	return err
}

// PruneOutputs forgets the outputs of archived jobs that ended longer than
// retention ago, at most limit of them, and returns how many. What a job takes as
// an input stays as long as that job is not archived. Objects that no row names any
// more are given up; see Doomed. The result of a cached step goes with the
// last of its outputs.
func (d *Objects) PruneOutputs(ctx context.Context, term Term, retention time.Duration, limit int) (int, error) {
	const idle = 24 * time.Hour // between an id and its row, and for clocks: jobs that are younger by their ids have not ended so long ago
	args := pgx.NamedArgs{"retention": retention, "limit": limit,
		"before": berth.NewJobID(time.Now().Add(idle - retention))}
	var n int
	err := d.leaderTx(ctx, term, func(tx pgx.Tx) error {
		n = 0
		var alone bool // who waits for others here keeps the leader from renewing its lease
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
		args := pgx.NamedArgs{"jobs": jobs, "objects": objects}
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
