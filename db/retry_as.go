package db

import (
	"bytes"
	"context"
	"maps"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/spec"
	"berth/wire"
)

// AsJob returns the spec of a job that retries id: without the fields of a step, and with the
// jobs of sibling steps in place of their names. An element of an array keeps its index and
// the size of its array, which no file may set.
func (d *Retries) AsJob(ctx context.Context, id berth.JobID, jobSpec spec.Job) (spec.Job, error) {
	as := wire.Job{ID: id, Spec: &jobSpec}
	err := d.tx(ctx, func(tx pgx.Tx) error { return byItself(ctx, tx, &as) })
	return *as.Spec, mapError(err, "retry job "+string(id))
}

// As submits another spec as the retry of an ended job, and links both jobs as Retry
// does. as is valid, has its defaults, and is the result of AsJob. A repeated call with an
// equal spec returns the id alone of the job that the first one created, with created false; a
// job that was retried with any other spec is a conflict, and so are a live job and a pipeline.
func (d *Retries) As(ctx context.Context, tenant berth.TenantID, id berth.JobID, as spec.Job,
	actor string) (job wire.Job, created bool, err error) {
	incarnation, err := d.incarnations.now(ctx, d.pool)
	if err != nil {
		return wire.Job{}, false, err
	}
	err = d.tx(ctx, func(tx pgx.Tx) error {
		old, err := lockForRetry(ctx, tx, tenant, id)
		switch {
		case err != nil:
			return err
		case old.Kind == berth.KindPipeline:
			return berth.Errorf(berth.CodeConflict, "job %s is a pipeline; resume it with a file", id)
		}
		row, err := newSubmitRow(Submission{Tenant: old.Tenant, Spec: withArrayVariables(as, old.Spec), Actor: actor,
			RetryOf: &id, incarnation: incarnation})
		if err != nil {
			return err
		}
		if old.RetriedBy != nil {
			job, created = wire.Job{ID: *old.RetriedBy}, false
			return sameSpec(ctx, tx, id, *old.RetriedBy, row.hash)
		}
		if job, err = row.insertWithNeeds(ctx, tx); err != nil {
			return err
		}
		created = true
		return linkRetry(ctx, tx, id, job.ID)
	})
	if err != nil {
		return wire.Job{}, false, mapError(err, "retry job "+string(id))
	}
	if created {
		d.hub.Publish(TopicSubmit, string(job.ID))
		d.hub.Publish(TopicJob, string(id))
	}
	return job, created, nil
}

// withArrayVariables returns the spec with the variables that Berth had set for an element.
func withArrayVariables(as spec.Job, old *spec.Job) spec.Job {
	env := maps.Clone(as.Env)
	for _, name := range []string{spec.EnvArrayIndex, spec.EnvArraySize} {
		value, ok := old.Env[name]
		if !ok {
			continue
		}
		if env == nil {
			env = map[string]string{}
		}
		env[name] = value
	}
	as.Env = env
	return as
}

// sameSpec returns a conflict unless the successor of a job was submitted with a spec of the
// given hash. The spec of an archived successor is not compared.
func sameSpec(ctx context.Context, tx pgx.Tx, id, successor berth.JobID, hash []byte) error {
	var stored []byte
	err := tx.QueryRow(ctx, `SELECT idem_hash FROM jobs WHERE id = $1`, successor).Scan(&stored)
	if err != nil && !isNoRows(err) {
		return err
	}
	if !bytes.Equal(stored, hash) {
		return berth.Errorf(berth.CodeConflict, "job %s was already retried as %s; retry that one", id, successor)
	}
	return nil
}
