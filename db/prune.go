package db

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// pruneHorizon is the time before which the history of machines is nobody's
// evidence: longer ago than its retention, and before the first job that is not
// archived was submitted, with an hour for clocks that were set. The first is that with
// the least id, which is a time too, of when a row was made: an element of an array
// counts as submitted when that was, and nothing was placed for it before its row.
const pruneHorizon = `least(
	now() - @retention_ms::bigint * interval '1 millisecond',
	(SELECT submitted_at FROM jobs ORDER BY id LIMIT 1) - interval '1 hour')`

// PruneHistory deletes what machines were, and what was counted against
// them, longer than retention ago, at most limit rows of each, and returns how
// many. What was in force at that time stays, as does all that the rows of a
// job that is not archived may be judged by.
func (d *Machines) PruneHistory(ctx context.Context, term Term, retention time.Duration, limit int) (int, error) {
	args := pgx.NamedArgs{"retention_ms": retention.Milliseconds(), "limit": limit}
	pruned := 0
	err := d.leaderTx(ctx, term, func(tx pgx.Tx) error {
		pruned = 0
		for _, sql := range []string{`
			DELETE FROM machine_events
			WHERE (machine_id, seq) IN (
				SELECT e.machine_id, e.seq
				FROM machine_events e
				WHERE e.at < ` + pruneHorizon + ` AND EXISTS (
					SELECT 1
					FROM machine_events n
					WHERE n.machine_id = e.machine_id AND n.gpu IS NOT DISTINCT FROM e.gpu
					  AND n.seq > e.seq AND n.at < ` + pruneHorizon + `)
				LIMIT @limit)`, `
			DELETE FROM machine_faults
			WHERE (job, attempt, machine_id) IN (
				SELECT job, attempt, machine_id
				FROM machine_faults
				WHERE at < ` + pruneHorizon + `
				LIMIT @limit)`,
		} {
			tag, err := tx.Exec(ctx, sql, args)
			if err != nil {
				return err
			}
			pruned += int(tag.RowsAffected())
		}
		return nil
	})
	return pruned, mapError(err, "history of machines")
}
