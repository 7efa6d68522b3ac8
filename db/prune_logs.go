package db

import (
	"context"
	"path"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
)

// prunedPieces bounds the rows that one transaction of Prune deletes. A log has one row per
// second of its job, and a new leader must wait for a long transaction of its predecessor.
const prunedPieces = 10_000

// Prune deletes the rows of logs of archived jobs that ended longer than retention ago, for
// at most limit logs (one per member and attempt), and returns the number of logs with
// deleted rows. A call deletes only the newest rows of a long log, and later calls delete
// the rest. The folder of a log's objects is removed after the last of its rows; see
// Objects.Doomed.
func (d *Logs) Prune(ctx context.Context, term Term, retention time.Duration, limit int) (int, error) {
	const idle = 24 * time.Hour // as in PruneOutputs: a job with a younger id has not ended that long ago
	before := berth.NewJobID(time.Now().Add(idle - retention))
	args := namedArgs{"retention": retention, "limit": limit, "pieces": prunedPieces, "before": before}
	var n int
	err := d.pruneTx(ctx, term, func(tx pgx.Tx) error {
		n = 0
		rows, err := tx.Query(ctx, pruneLogs, args)
		if err != nil {
			return err
		}
		var folders []string
		var job berth.JobID
		var attempt, rank int
		var tenant berth.TenantID
		// last reports that the first row of the log is deleted. Rows are deleted from the
		// newest to the oldest, so the log then has no row and its folder may go.
		var last bool
		if _, err := pgx.ForEachRow(rows, []any{&job, &attempt, &rank, &tenant, &last}, func() error {
			n++
			if last {
				folders = append(folders, path.Dir(berth.LogChunkKey(tenant, job, attempt, rank, 0)))
			}
			return nil
		}); err != nil || len(folders) == 0 {
			return err
		}
		_, err = tx.Exec(ctx, `
			INSERT INTO doomed_objects (prefix)
			SELECT unnest(@folders::text[])
			ON CONFLICT DO NOTHING`,
			namedArgs{"folders": folders})
		return err
	})
	return n, mapError(err, "logs")
}

// pruneLogs jumps from the first row of one log to the first row of the next, and so reads
// no other rows of logs that stay. OFFSET 0 keeps the planner from reading the archive
// first.
const pruneLogs = `
	WITH RECURSIVE logs (job, attempt, rank, first) AS (
		(
			SELECT job, attempt, rank, off
			FROM log_chunks
			WHERE job < @before::uuid
			ORDER BY job, attempt, rank, off
			LIMIT 1
		)
		UNION ALL
		SELECT next.job, next.attempt, next.rank, next.off
		FROM logs l
		CROSS JOIN LATERAL (
			SELECT c.job, c.attempt, c.rank, c.off
			FROM log_chunks c
			WHERE (c.job, c.attempt, c.rank) > (l.job, l.attempt, l.rank) AND c.job < @before::uuid
			ORDER BY c.job, c.attempt, c.rank, c.off
			LIMIT 1
		) next
	), old AS MATERIALIZED (
		SELECT l.job, l.attempt, l.rank, l.first, a.tenant
		FROM logs l
		CROSS JOIN LATERAL (
			SELECT tenant
			FROM archived_jobs
			WHERE id = l.job AND finished_at < now() - @retention::interval
			OFFSET 0
		) a
		LIMIT @limit
	), pieces AS MATERIALIZED ( -- of each log the newest first
		SELECT c.at
		FROM old o
		CROSS JOIN LATERAL (
			SELECT ctid AS at
			FROM log_chunks
			WHERE job = o.job AND attempt = o.attempt AND rank = o.rank
			ORDER BY off DESC
			LIMIT @pieces
		) c
		LIMIT @pieces
	), gone AS (
		DELETE FROM log_chunks
		WHERE ctid = ANY (ARRAY(SELECT at FROM pieces))
		RETURNING job, attempt, rank, off
	)
	SELECT o.job::text, o.attempt, o.rank, o.tenant, bool_or(g.off = o.first)
	FROM gone g
	JOIN old o ON o.job = g.job AND o.attempt = g.attempt AND o.rank = g.rank
	GROUP BY o.job, o.attempt, o.rank, o.tenant`
