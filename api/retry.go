package api

import (
	"context"
	"maps"

	"berth"
	"berth/db"
	"berth/internal/control/admission"
	"berth/spec"
	"berth/wire"
)

// retryAs submits the spec of the body as the retry of a job. The spec is checked and
// admitted as any submit of the job's tenant.
func (h *jobHandlers) retryAs(ctx context.Context, in *retryJobInput, old wire.Job) (wire.Job, bool, error) {
	switch {
	case !in.WithSpec:
		return wire.Job{}, false, berth.Errorf(berth.CodeInvalid, "a retry with a body needs with_spec=true")
	case in.Failed:
		return wire.Job{}, false, berth.Errorf(berth.CodeInvalid,
			"failed and with_spec exclude each other: only the job's own spec says which elements failed")
	case old.Kind == berth.KindPipeline:
		return wire.Job{}, false, berth.Errorf(berth.CodeInvalid,
			"job %s is a pipeline: submit the changed file with POST /v1/pipelines?resume=%[1]s", old.ID)
	}
	jobSpec, err := h.retrySpec(ctx, in.Request, old)
	if err != nil {
		return wire.Job{}, false, err
	}
	// A repeated call returns the existing successor, or a conflict, and needs no capacity.
	if old.RetriedBy == nil {
		if err := h.mayRun(ctx, old.Tenant, jobSpec); err != nil {
			return wire.Job{}, false, err
		}
	}
	return h.retries.Retry(ctx, scope(ctx), old.ID, db.RetryOptions{Fresh: in.Fresh, FreshImage: in.FreshImage,
		Spec: &jobSpec}, actor(ctx))
}

// retrySpec reads the spec that a job is retried with. Its source is often the job's own
// document: the variables that Berth had set for an element, the fields of a step, and the former
// number of members in all groups are no faults.
func (h *jobHandlers) retrySpec(ctx context.Context, in Request, old wire.Job) (spec.Job, error) {
	var jobSpec spec.Job
	if err := specTooLong(len(in.RawBody)); err != nil {
		return jobSpec, err
	}
	faults, err := decode(in.ContentType, in.RawBody, &jobSpec)
	if err != nil {
		return jobSpec, err
	}
	if old.Spec != nil {
		maps.DeleteFunc(jobSpec.Env, func(name, value string) bool {
			return (name == spec.EnvArrayIndex || name == spec.EnvArraySize) && old.Spec.Env[name] == value
		})
		jobSpec = spec.Resized(jobSpec, *old.Spec)
	}
	if old.Step != "" {
		if jobSpec, err = h.retries.AsJob(ctx, old.ID, jobSpec); err != nil {
			return jobSpec, err
		}
	}
	jobSpec = jobSpec.WithDefaults()
	return jobSpec, invalid(berth.SlugInvalidSpec, faults, admission.CheckRetry(jobSpec))
}

// mayRun returns an error if the caller may not submit the job for the tenant.
func (h *jobHandlers) mayRun(ctx context.Context, tenant berth.TenantID, jobSpec spec.Job) error {
	if err := h.rules.mayNotify(ctx, tenant, jobSpec.Notify); err != nil {
		return err
	}
	if len(jobSpec.AllSecrets()) > 0 {
		if err := h.rules.keepsSecrets(); err != nil {
			return err
		}
	}
	return h.admission.Admit(ctx, tenant, jobSpec)
}
