package db

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// ArchiveTerminal archives at most limit jobs that ended longer than retention ago,
// oldest first, and returns their number. An archived job is one row with the document
// that users see and the job's events. The job stays in lists with its history, and its
// logs stay readable (log_chunks and objects remain). Its checkpoints are deleted; see
// Objects.Doomed.
//
// A later call archives a job whose capacity still counts on a machine, or whose clean-up
// a machine has yet to confirm: the archive never hides a container. Children are
// archived after their parent, because the parent's document summarizes them.
//
// One transaction ends few references to chunks, since registrations of other jobs with the same chunks wait for it.
func (d *Jobs) ArchiveTerminal(ctx context.Context, term Term, retention time.Duration, limit int) (n int, err error) {
	for more := true; more && n < limit; {
		var some int
		if some, more, err = d.archiveSome(ctx, term, retention, limit-n); err != nil {
			break
		}
		n += some
	}
	return n, mapError(err, "archive jobs")
}

// archiveSome archives jobs in one transaction. more reports that it has left out jobs with many references to chunks.
func (d *Jobs) archiveSome(
	ctx context.Context, term Term, retention time.Duration, limit int,
) (n int, more bool, err error) {
	err = d.pruneTx(ctx, term, func(tx pgx.Tx) error {
		n, more = 0, false
		rows, err := tx.Query(ctx, `
			SELECT j.id::text
			FROM jobs j
			WHERE j.state IN ('succeeded', 'failed', 'canceled')
			  AND j.finished_at < now() - @retention_ms::bigint * interval '1 millisecond'
			  AND NOT EXISTS (
				SELECT 1 FROM jobs p
				WHERE p.id = j.parent)
			  AND NOT `+keepsSteps+`
			  AND NOT EXISTS (
				SELECT 1 FROM allocations a
				WHERE a.job = j.id AND (a.state NOT IN ('exited', 'released') OR a.forgotten_at IS NULL
					AND `+machineMayHoldIt+`))
			ORDER BY j.finished_at, j.id
			LIMIT @limit
			FOR UPDATE SKIP LOCKED`,
			namedArgs{"retention_ms": retention.Milliseconds(), "limit": limit})
		if err != nil {
			return err
		}
		ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil || len(ids) == 0 {
			return err
		}
		if ids, err = withoutKept(ctx, tx, ids); err != nil {
			return err
		}
		if ids, more, err = withFewRefs(ctx, tx, ids); err != nil {
			return err
		}
		if n = len(ids); n == 0 {
			return nil
		}
		return archive(ctx, tx, ids)
	})
	return n, more, err
}

// keepsSteps is true if job j must stay: a live job started from one of its checkpoints, a user
// has pinned one, or a blocked job waits for its end.
const keepsSteps = `(EXISTS (
				SELECT 1
				FROM job_sources o
				JOIN jobs r ON r.id = o.job
				WHERE o.source = j.id AND r.state NOT IN ('succeeded', 'failed', 'canceled'))
			  OR EXISTS (
				SELECT 1
				FROM checkpoints c
				WHERE c.job = j.id AND c.state = 'verified' AND c.pinned_at IS NOT NULL)
			  OR EXISTS (
				SELECT 1
				FROM job_needs d
				JOIN jobs w ON w.id = d.job
				WHERE d.needs = j.id AND w.state = 'submitted' AND w.blocked))`

// withoutKept returns the locked jobs whose checkpoints may go. A submit that held the lock of
// a row before may have started a job from it: the statement that took the locks has an older
// snapshot.
func withoutKept(ctx context.Context, tx pgx.Tx, ids []string) ([]string, error) {
	rows, err := tx.Query(ctx, `
		SELECT j.id::text
		FROM jobs j
		WHERE j.id = ANY(@ids::uuid[]) AND NOT `+keepsSteps, namedArgs{"ids": ids})
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// machineMayHoldIt is true while the allocation's machine is registered. A retired
// machine will never confirm a clean-up, so the archive does not wait for one.
const machineMayHoldIt = `EXISTS (SELECT 1 FROM machines m WHERE m.id = a.machine_id AND m.state <> 'retired')`

// archive copies locked jobs to archived_jobs and deletes their rows. The order of the
// statements matters: dependent rows before their job, and device allocations before their
// allocation, because the guards refuse to drop those of a live allocation.
func archive(ctx context.Context, tx pgx.Tx, ids []string) error {
	if err := doom(ctx, tx, ids); err != nil {
		return err
	}
	if err := doomOutputs(ctx, tx, ids, 0); err != nil {
		return err
	}
	args := namedArgs{"ids": ids}
	statements := []string{`
		INSERT INTO archived_jobs (id, tenant, name, state, labels, parent, submitted_at, finished_at, job, events)
		SELECT j.id, j.tenant, j.name, j.state, j.labels, j.parent, j.submitted_at, j.finished_at,
			` + fullDocument + `,
			coalesce((
				SELECT jsonb_agg(` + eventDocument + ` ORDER BY e.seq)
				FROM job_events e WHERE e.job = j.id), '[]')
		FROM jobs j
		WHERE j.id = ANY(@ids::uuid[])`,
		`DELETE FROM device_allocations c USING allocations a WHERE a.id = c.alloc_id AND a.job = ANY(@ids::uuid[])`,
		`DELETE FROM allocations WHERE job = ANY(@ids::uuid[])`,
		`DELETE FROM attempts WHERE job = ANY(@ids::uuid[])`,
		`DELETE FROM checkpoint_shards WHERE job = ANY(@ids::uuid[])`,
		`DELETE FROM checkpoints WHERE job = ANY(@ids::uuid[])`,
		`DELETE FROM job_uploads WHERE job = ANY(@ids::uuid[])`,
		`DELETE FROM job_sources WHERE job = ANY(@ids::uuid[])`,
		`DELETE FROM job_inputs WHERE job = ANY(@ids::uuid[])`,
		`DELETE FROM nomination_log WHERE beneficiary = ANY(@ids::uuid[])`,
		`DELETE FROM step_results WHERE job = ANY(@ids::uuid[]) AND attempt IS NULL AND (digest = '' OR image = '')`,
		`DELETE FROM deps WHERE job = ANY(@ids::uuid[])`,
		`DELETE FROM holds WHERE debug = ANY(@ids::uuid[])`,
		`DELETE FROM job_needs WHERE job = ANY(@ids::uuid[])`,
		`DELETE FROM job_events WHERE job = ANY(@ids::uuid[])`,
		`DELETE FROM job_specs WHERE job = ANY(@ids::uuid[])`,
		`DELETE FROM jobs WHERE id = ANY(@ids::uuid[])`,
	}
	for _, sql := range statements {
		if _, err := tx.Exec(ctx, sql, args); err != nil {
			return err
		}
	}
	return nil
}
