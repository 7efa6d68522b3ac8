package db

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
)

// PipelineSubmission is a pipeline to be stored.
type PipelineSubmission struct {
	Tenant  berth.TenantID
	Spec    berth.PipelineSpec // valid, with defaults filled in
	IdemKey string             // "": every call is a new pipeline
	Actor   string
	RetryOf *berth.JobID
}

// SubmitPipeline stores a pipeline and all its steps, which is one transaction.
// Keys and quotas are as with Submit; steps that wait for others count for none.
func (d *DB) SubmitPipeline(ctx context.Context, s PipelineSubmission) (job berth.Job, created bool, err error) {
	row, err := newPipelineRow(s)
	if err != nil {
		return berth.Job{}, false, err
	}
	err = d.tx(ctx, func(tx pgx.Tx) error {
		var err error
		job, err = row.insertPipeline(ctx, tx, s)
		return err
	})
	switch {
	case err == nil:
		d.hub.Publish(TopicSubmit, string(job.ID))
		job, err = d.Job(ctx, s.Tenant, job.ID)
		return job, true, err
	case s.IdemKey != "" && (berth.CodeOf(err) == berth.CodeNotFound || berth.IsSlug(err, berth.SlugQuota)):
		old, found := d.submitted(ctx, s.Tenant, s.IdemKey, row.hash)
		if berth.CodeOf(found) != berth.CodeNotFound {
			return old, false, found
		}
	}
	return berth.Job{}, false, mapError(err, "pipeline")
}

// newPipelineRow is the parent's row. What steps have each it has of no use.
func newPipelineRow(s PipelineSubmission) (submitRow, error) {
	spec, err := json.Marshal(s.Spec)
	if err != nil {
		return submitRow{}, fmt.Errorf("marshal pipeline: %w", err)
	}
	row, err := newSubmitRow(Submission{
		Tenant: s.Tenant, IdemKey: s.IdemKey, Actor: s.Actor, RetryOf: s.RetryOf,
		Spec: berth.JobSpec{Name: s.Spec.Name, Labels: s.Spec.Labels, Notify: s.Spec.Notify}.WithDefaults(),
	})
	if err != nil {
		return row, err
	}
	sum := sha256.Sum256(spec)
	row.hash = sum[:]
	row.args["kind"], row.args["total"], row.args["spec"], row.args["idem_hash"] = berth.KindPipeline, len(s.Spec.Jobs), spec, sum[:]
	if s.Spec.OnFailure == berth.FailFast {
		row.args["max_failures"] = 0
	}
	return row, nil
}

// insertPipeline stores the parent, its steps in an order in which needs come
// first, and the needs.
func (r submitRow) insertPipeline(ctx context.Context, tx pgx.Tx, s PipelineSubmission) (berth.Job, error) {
	if err := checkSecrets(ctx, tx, s.Tenant, r.needs); err != nil {
		return berth.Job{}, err
	}
	parent, err := r.insert(ctx, tx)
	if err != nil {
		return berth.Job{}, err
	}
	if _, err := tx.Exec(ctx, `UPDATE jobs SET expanded = total WHERE id = $1`, parent.ID); err != nil {
		return berth.Job{}, err
	}
	ids := map[string]berth.JobID{}
	var jobs, needs []berth.JobID
	order := s.Spec.Order()
	var uploads []berth.NamedUpload // locked in their order before any step locks its own
	for _, key := range order {
		for _, u := range s.Spec.Jobs[key].Uploads() {
			uploads = append(uploads, berth.NamedUpload{Field: "jobs." + key + "." + u.Field, Address: u.Address})
		}
	}
	if err := bindUploads(ctx, tx, s.Tenant, uploads); err != nil {
		return berth.Job{}, err
	}
	fresh := newElementIDs(len(order)) // in the order of the steps
	for i, key := range order {
		ids[key] = fresh[i]
		for _, need := range s.Spec.Jobs[key].Needs {
			jobs, needs = append(jobs, fresh[i]), append(needs, ids[need])
		}
	}
	if _, err := tx.Exec(ctx, `
		INSERT INTO deps (job, needs)
		SELECT * FROM unnest(@jobs::uuid[], @needs::uuid[])`, pgx.NamedArgs{"jobs": jobs, "needs": needs}); err != nil {
		return berth.Job{}, err // before the steps, so that each is known for one that waits
	}
	for i, key := range order {
		spec := s.Spec.Jobs[key]
		row, err := newSubmitRow(Submission{Tenant: s.Tenant, Spec: spec, Actor: s.Actor})
		if err != nil {
			return berth.Job{}, err
		}
		waits := len(spec.Needs) > 0 || spec.Cache // for Tend, which lets it go or takes an earlier result
		row.args["id"], row.args["parent"], row.args["step"], row.args["blocked"] = fresh[i], parent.ID, key, waits
		row.args["uncounted"] = len(spec.Needs) > 0
		if waits {
			row.args["queue_ms"] = 0 // see unblock
		}
		if _, err := row.insertWithNeeds(ctx, tx); err != nil {
			return berth.Job{}, fmt.Errorf("step %s: %w", key, err)
		}
	}
	return parent, nil
}

// retryPipeline submits the steps of an ended pipeline again that did not
// succeed; what did is not needed any more.
func retryPipeline(ctx context.Context, tx pgx.Tx, old berth.Job, actor string, all bool) (berth.Job, error) {
	var succeeded map[string]berth.JobID
	if !all {
		rows, err := tx.Query(ctx, `
			SELECT step, id::text FROM jobs WHERE parent = @id AND state = 'succeeded'
			UNION ALL
			SELECT job ->> 'step', id::text FROM archived_jobs WHERE parent = @id AND state = 'succeeded'`,
			pgx.NamedArgs{"id": old.ID})
		if err != nil {
			return berth.Job{}, err
		}
		if succeeded, err = collectSteps(rows); err != nil {
			return berth.Job{}, err
		}
	}
	spec := old.Pipeline.WithDefaults().Without(succeeded)
	if len(spec.Jobs) == 0 {
		return berth.Job{}, berth.Errorf(berth.CodeConflict, "every step of pipeline %s has succeeded", old.ID)
	}
	s := PipelineSubmission{Tenant: old.Tenant, Spec: spec, Actor: actor, RetryOf: &old.ID}
	row, err := newPipelineRow(s)
	if err != nil {
		return berth.Job{}, err
	}
	return row.insertPipeline(ctx, tx, s)
}

// queueTimeout reads a spec's queue_timeout out of its JSON.
func queueTimeout(raw []byte) (time.Duration, error) {
	var d berth.Duration
	if len(raw) == 0 || string(raw) == "null" {
		return 0, nil
	}
	err := json.Unmarshal(raw, &d)
	return d.Std(), err
}
