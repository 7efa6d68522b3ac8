package db

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/spec"
	"berth/wire"
)

// Retry submits the spec of a job that has ended as a new job, and links both jobs. If the
// job was retried before, Retry returns its successor, with created false. A job that has
// not ended is a conflict. A retried element or step becomes a job without a parent, with
// the environment that it had.
func (d *Jobs) Retry(ctx context.Context, tenant berth.TenantID, id berth.JobID,
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
		// The row's lock makes the second of two concurrent retries see the link of the
		// first.
		if old.RetriedBy != nil {
			job, created = wire.Job{ID: *old.RetriedBy}, false
			return nil
		}
		if old.Kind == berth.KindPipeline {
			if job, err = retryPipeline(ctx, tx, old, actor, true); err != nil {
				return err
			}
			created = true
			return linkRetry(ctx, tx, id, job.ID)
		}
		if err := byItself(ctx, tx, &old); err != nil {
			return err
		}
		row, err := newSubmitRow(Submission{Tenant: old.Tenant, Spec: *old.Spec, Actor: actor, RetryOf: &id,
			Indexes: indexesOf(old), incarnation: incarnation})
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

// byItself turns the spec of a step into the spec of a job without a pipeline. The job has
// no needs, and its inputs name the jobs of the sibling steps instead of the steps.
func byItself(ctx context.Context, tx pgx.Tx, old *wire.Job) error {
	old.Spec.Needs, old.Spec.Cache = nil, false
	if !slices.ContainsFunc(old.Spec.OutputsNamed(), func(o spec.NamedOutput) bool { return o.Step != "" }) {
		return nil
	}
	steps, err := siblings(ctx, tx, old.ID)
	if err != nil {
		return err
	}
	jobSpec := old.Spec.OfJobs(steps)
	old.Spec = &jobSpec
	return nil
}

// retried publishes the hints of a retry after its commit and returns the new job, or the
// existing successor as it is now.
func (d *Jobs) retried(ctx context.Context, tenant berth.TenantID, id berth.JobID, job wire.Job, created bool,
	err error) (wire.Job, bool, error) {
	if err != nil {
		return wire.Job{}, false, mapError(err, "retry job "+string(id))
	}
	if !created {
		job, err = d.Get(ctx, tenant, job.ID)
		return job, false, err
	}
	d.hub.Publish(TopicSubmit, string(job.ID))
	d.hub.Publish(TopicJob, string(id))
	return job, true, nil
}

// indexesOf returns the indexes of an array that has only some of its elements, which a
// retry keeps; nil for any other job.
func indexesOf(j wire.Job) []int {
	ranges, err := spec.ParseIndexes(j.Indexes)
	if j.Indexes == "" || err != nil {
		return nil
	}
	var list []int
	for _, r := range ranges {
		for i := r.First; i <= r.Last; i++ {
			list = append(list, i)
		}
	}
	return list
}

// lockForRetry reads the old job and locks its row, live or archived, so that concurrent
// retries of a job run one after the other. A job that has not ended is a conflict.
func lockForRetry(ctx context.Context, tx pgx.Tx, tenant berth.TenantID, id berth.JobID) (wire.Job, error) {
	args := pgx.NamedArgs{"id": id, "tenant": string(tenant)}
	for _, sql := range []string{`
		SELECT ` + jobDocument + ` || jsonb_build_object(CASE j.kind WHEN 'pipeline' THEN 'pipeline' ELSE 'spec' END,
			s.spec)
		FROM jobs j
		JOIN job_specs s ON s.job = j.id
		WHERE j.id = @id AND (@tenant = '' OR j.tenant = @tenant)
		FOR NO KEY UPDATE OF j`, `
		SELECT job
		FROM archived_jobs
		WHERE id = @id AND (@tenant = '' OR tenant = @tenant)
		FOR NO KEY UPDATE`,
	} {
		rows, err := tx.Query(ctx, sql, args)
		if err != nil {
			return wire.Job{}, err
		}
		found, err := pgx.CollectRows(rows, pgx.RowTo[wire.Job])
		if err != nil {
			return wire.Job{}, err
		}
		if len(found) == 0 {
			continue
		}
		if !found[0].Status.Terminal() {
			return wire.Job{}, berth.Errorf(berth.CodeConflict,
				"job %s is %s; only ended jobs can be retried", id, found[0].Status)
		}
		return found[0], nil
	}
	return wire.Job{}, berth.Errorf(berth.CodeNotFound, "no such job %s", id)
}

// linkRetry records the successor in the old job's row, live or archived. The new job's
// retry_of is the link back.
func linkRetry(ctx context.Context, tx pgx.Tx, old, successor berth.JobID) error {
	_, err := tx.Exec(ctx, `
		WITH live AS (
			UPDATE jobs SET retried_by = @new WHERE id = @old
		)
		UPDATE archived_jobs
		SET job = job || jsonb_build_object('retried_by', @new::uuid)
		WHERE id = @old`,
		pgx.NamedArgs{"old": old, "new": successor})
	return err
}
