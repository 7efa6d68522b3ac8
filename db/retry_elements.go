package db

import (
	"context"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/wire"
)

// RetryFailed runs the elements of an ended array again that failed, or that were given up
// because other elements had failed. The new array keeps the indexes of these elements and
// is linked with the old array, which stays unchanged. For an array that was retried
// before, RetryFailed returns the successor, with created false. For a pipeline,
// RetryFailed retries the steps that did not succeed, at every depth. Any other kind of job
// is invalid.
func (d *Jobs) RetryFailed(ctx context.Context, tenant berth.TenantID, id berth.JobID,
	actor string) (job wire.Job, created bool, err error) {
	incarnation, err := d.incarnations.now(ctx, d.pool)
	if err != nil {
		return wire.Job{}, false, err
	}
	err = d.tx(ctx, func(tx pgx.Tx) error {
		old, err := lockForRetry(ctx, tx, tenant, id)
		if err != nil {
			return err
		}
		if old.Kind != berth.KindArray && old.Kind != berth.KindPipeline {
			return berth.Errorf(berth.CodeInvalid, "job %s is neither an array nor a pipeline; retry it without "+
				"--failed", id)
		}
		if old.RetriedBy != nil {
			job, created = wire.Job{ID: *old.RetriedBy}, false
			return nil
		}
		if old.Kind == berth.KindPipeline {
			if job, err = retryPipeline(ctx, tx, old, actor, false); err != nil {
				return err
			}
			created = true
			return linkRetry(ctx, tx, id, job.ID)
		}
		indexes, err := unsuccessful(ctx, tx, old)
		if err != nil {
			return err
		}
		// The array succeeded, or was canceled before an element failed.
		if len(indexes) == 0 {
			return berth.Errorf(berth.CodeConflict, "no element of array %s has failed", id)
		}
		if err := byItself(ctx, tx, &old); err != nil {
			return err
		}
		row, err := newSubmitRow(Submission{Tenant: old.Tenant, Spec: *old.Spec, Actor: actor, RetryOf: &id,
			Indexes: indexes, incarnation: incarnation})
		if err != nil {
			return err
		}
		if job, err = row.insertWithNeeds(ctx, tx); err != nil {
			return err
		}
		created = true
		return linkRetry(ctx, tx, id, job.ID)
	})
	return d.retried(ctx, tenant, id, job, created, err)
}

// unsuccessful returns the indexes of the elements to run again, in ascending order. An
// element without a live or archived row was never created, because the array was stopped
// first; it counts as given up if the array failed.
func unsuccessful(ctx context.Context, tx pgx.Tx, old wire.Job) ([]int, error) {
	var list []int
	err := tx.QueryRow(ctx, `
		WITH made AS (
			SELECT array_index AS idx, state, reason ->> 'code' AS code
			FROM jobs
			WHERE parent = @id
			UNION ALL
			SELECT (job ->> 'array_index')::int, state, job #>> '{reason,code}'
			FROM archived_jobs
			WHERE parent = @id
		), wanted AS (
			SELECT i AS idx
			FROM generate_series(0, @total::int - 1) AS i
			WHERE @indexes = ''
			UNION ALL
			SELECT generate_series(split_part(r, '-', 1)::int, split_part(r, '-', -1)::int)
			FROM unnest(string_to_array(@indexes, ',')) AS r
			WHERE @indexes <> ''
		)
		SELECT ARRAY(
			SELECT w.idx
			FROM wanted w
			LEFT JOIN made m ON m.idx = w.idx
			WHERE m.state = 'failed'
			   OR @overdrawn AND (m.idx IS NULL OR m.state = 'canceled' AND m.code = ANY(@codes))
			ORDER BY w.idx)`, pgx.NamedArgs{
		"id": old.ID, "total": old.Tally.Total, "indexes": old.Indexes,
		"overdrawn": old.Status == berth.Failed,
		"codes":     []berth.ReasonCode{berth.ReasonElementsFailed, berth.ReasonStepsFailed},
	}).Scan(&list)
	return list, err
}
