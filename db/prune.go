package db

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// pruneHorizon is the time before which no job can need the history of machines: longer ago
// than the retention, and before the submit of the first job that is not archived, minus an
// hour for adjusted clocks. The first job is the one with the lowest id, because an id
// starts with the time of its creation. An element counts as submitted when its array was,
// and it cannot have been placed before it had a row.
const pruneHorizon = `least(
	now() - @retention_ms::bigint * interval '1 millisecond',
	(SELECT submitted_at FROM jobs ORDER BY id LIMIT 1) - interval '1 hour')`

// PruneHistory deletes events and faults of machines that are older than retention, at most
// limit rows of each table, and returns the number of deleted rows. It keeps the last event
// before the horizon, which states the condition in force at that time, and all rows by
// which a job that is not archived may be judged.
func (d *Machines) PruneHistory(ctx context.Context, term Term, retention time.Duration, limit int) (int, error) {
	args := namedArgs{"retention_ms": retention.Milliseconds(), "limit": limit}
	pruned := 0
	err := d.pruneTx(ctx, term, func(tx pgx.Tx) error {
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
