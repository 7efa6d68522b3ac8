package api

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"berth"
	"berth/db"
	"berth/internal/control/admission"
	"berth/internal/lib/tracing"
	"berth/spec"
	"berth/wire"
)

// handlerFunc is the handler of one operation, with its parsed input and its typed
// answer.
type handlerFunc[I, O any] func(context.Context, *I) (*O, error)

// register mounts an operation. Unknown query parameters are refused, and errors become
// Problems.
func register[I, O any](r *router, op huma.Operation, handler handlerFunc[I, O]) {
	op.Middlewares = append(op.Middlewares, strictQuery(queryFields(reflect.TypeFor[I]())))
	huma.Register(r.huma, op, func(ctx context.Context, in *I) (*O, error) {
		out, err := handler(ctx, in)
		if err != nil {
			return nil, r.fail(ctx, err)
		}
		return out, nil
	})
}

// jobOutput is the answer of calls that return one job. Status distinguishes a created
// job (201) from an existing one (200).
type jobOutput struct {
	Status int
	Body   wire.Job
}

// JobInput is the path of a call about one job. The type is exported, as Paging and the
// other inputs are, because huma reads embedded structs only if they are exported.
type JobInput struct {
	ID string `path:"id" doc:"a job's id, its handle, or the beginning or end of just one id"`
}

// jobHandlers serve the calls that submit, list and change jobs.
type jobHandlers struct {
	jobReader
	submitter submitter
	canceler  JobControl
	attempts  *db.Attempts
	parents   *db.Parents
	retries   *db.Retries
	holds     *db.Holds
	admission *admission.Controller
	rules     secretRules
	control   controlPlane
	reasons   *waitReasons
	poker     Poker
	traces    *tracing.Tracing
}

func (h *jobHandlers) mount(r *router) {
	const tag = "jobs"
	submit := r.operation("submit-job", http.MethodPost, "/v1/jobs", tag, "Submit a job")
	submit.Description = "201 with the new job; 200 with the first one on a repeat with the same Idempotency-Key; " +
		"422 `idempotency_mismatch` for the same key with another body; 422 `unsatisfiable` if no machine could " +
		"ever hold it; `quota` with 403 if the tenant may never hold as much, with 429 if too many of its jobs " +
		"wait; `rate_limited` with 429 and `Retry-After` if it submits more than its `submit_rps`."
	submit.DefaultStatus = http.StatusCreated
	registerWithBody[spec.Job](r, submit, h.submit)
	register(r, r.operation("list-jobs", http.MethodGet, "/v1/jobs", tag, "List jobs, newest first"), h.listJobs)
	register(r, r.operation("show-job", http.MethodGet, "/v1/jobs/{id}", tag,
		"Show a job with its attempts and checkpoints"), h.showWaiting)
	register(r, r.operation("cancel-job", http.MethodPost, "/v1/jobs/{id}/cancel", tag,
		"Cancel a job, or an array as a whole or in part; final steps still run; idempotent"), h.cancelJob)
	register(r, r.operation("hold-job", http.MethodPost, "/v1/jobs/{id}/hold", tag,
		"Keep a waiting job from being placed"), h.holdJob)
	register(r, r.operation("suspend-job", http.MethodPost, "/v1/jobs/{id}/suspend", tag,
		"Stop a job after a checkpoint and hold it; release continues it"), h.suspendJob)
	register(r, r.operation("save-job", http.MethodPost, "/v1/jobs/{id}/save", tag,
		"Ask a running job to write a checkpoint now"), h.saveJob)
	release := r.operation("release-job", http.MethodPost, "/v1/jobs/{id}/release", tag, "End a hold")
	release.Description = "Of a job that has ended, this ends the hold of a failed attempt (`hold_on_failure`)."
	register(r, release, h.releaseJob)
	retry := r.operation("retry-job", http.MethodPost, "/v1/jobs/{id}/retry", tag,
		"Submit an ended job again, as a new job linked to it")
	retry.Description = "The new job resumes from the newest verified checkpoint of the old one, unless that " +
		"succeeded or `fresh=true`; 409 if the old job had checkpoints and none is left. With `with_spec=true` the " +
		"new job has the spec of the body in place of the old one's. A job that was retried with the same options " +
		"before is answered with its successor; other options create another one, except that a second spec is " +
		"answered with 409."
	registerWithOptionalBody[spec.Job](r, retry, h.retryJob)
	registerWithBody[spec.JobPatch](r, r.operation("update-job", http.MethodPatch, "/v1/jobs/{id}", tag,
		"Change priority, labels or time limit of a live job"), h.updateJob)
}

// submitInput is a submit of a job or a pipeline with its optional idempotency key.
type submitInput struct {
	Key string `header:"Idempotency-Key" maxLength:"255" doc:"a repeat with the same key is the same job"`
	Request
}

// submit admits a job and stores the row. Admission comes before the transaction; only
// the limit on waiting jobs is checked inside. began is the start of the submit in the
// job's trace.
func (h *jobHandlers) submit(ctx context.Context, in *submitInput) (*jobOutput, error) {
	began := time.Now()
	jobSpec, err := readSpec(in.Request)
	if err != nil {
		return nil, err
	}
	if err := h.mayRun(ctx, caller(ctx).Tenant, jobSpec); err != nil {
		return nil, err
	}
	job, created, err := h.submitter.Submit(ctx,
		db.Submission{Tenant: caller(ctx).Tenant, Spec: jobSpec, IdemKey: in.Key, Actor: actor(ctx)})
	if err != nil {
		return nil, err
	}
	return h.submitted(ctx, job, created, began), nil
}

// submitted answers with a created or an existing job, and adds the submit to the trace
// of a created job.
func (h *jobHandlers) submitted(ctx context.Context, job wire.Job, created bool, began time.Time) *jobOutput {
	if created {
		h.traces.Submitted(ctx, job, began)
	}
	return &jobOutput{createdStatus(created), job}
}

// createdStatus is 201 for a new resource and 200 for one that existed.
func createdStatus(created bool) int {
	if created {
		return http.StatusCreated
	}
	return http.StatusOK
}

// readSpec returns a valid spec with defaults, or every fault at once. A body that is too long is
// not read.
func readSpec(in Request) (spec.Job, error) {
	var jobSpec spec.Job
	if err := specTooLong(len(in.RawBody)); err != nil {
		return jobSpec, err
	}
	faults, err := decode(in.ContentType, in.RawBody, &jobSpec)
	if err != nil {
		return jobSpec, err
	}
	jobSpec = jobSpec.WithDefaults()
	return jobSpec, invalid(berth.SlugInvalidSpec, faults, admission.Check(jobSpec))
}

// specTooLong returns the error for a job with a body of n bytes; nil up to spec.MaxSpecBytes.
func specTooLong(n int) error {
	if n <= spec.MaxSpecBytes {
		return nil
	}
	return invalid(berth.SlugInvalidSpec, nil, []berth.FieldError{{Detail: fmt.Sprintf("the job has %d bytes", n),
		Allowed: fmt.Sprintf("at most %d", spec.MaxSpecBytes)}})
}

// jobReader finds and reads the jobs that a caller may see.
type jobReader struct{ jobs *db.Jobs }

// job resolves an id, or the unique prefix of one, among the jobs that the caller may
// see.
func (r *jobReader) job(ctx context.Context, id string) (berth.JobID, error) {
	return r.jobs.Resolve(ctx, scope(ctx), id)
}

// showJob returns a job with its attempts and checkpoints.
func (r *jobReader) showJob(ctx context.Context, in *JobInput) (*jobOutput, error) {
	id, err := r.job(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	return r.jobNow(ctx, id)
}

// jobNow reads the whole job again, so that an answer shows the state after a change.
func (r *jobReader) jobNow(ctx context.Context, id berth.JobID) (*jobOutput, error) {
	job, err := r.jobs.Get(ctx, scope(ctx), id)
	if err != nil {
		return nil, err
	}
	return &jobOutput{http.StatusOK, job}, nil
}

// showWaiting is showJob with the reasons of a waiting job and of the waiting steps of a
// pipeline, and with the merged results of an array that was retried.
func (h *jobHandlers) showWaiting(ctx context.Context, in *JobInput) (*jobOutput, error) {
	out, err := h.showJob(ctx, in)
	if err != nil {
		return nil, err
	}
	if j := &out.Body; j.Kind == berth.KindArray && (j.RetryOf != nil || j.RetriedBy != nil) {
		if j.Results, err = h.retries.Runs(ctx, j.ID); err != nil {
			return nil, err
		}
	}
	if j := &out.Body; j.Spec != nil && !j.Status.Terminal() {
		if j.RunsAs, err = h.admission.RunsAs(ctx, j.Tenant, j.Spec.User); err != nil {
			return nil, err
		}
	}
	return out, h.reasons.fillAll(ctx, &out.Body)
}

// act resolves the job, applies a change and renders the job after the change.
func (h *jobHandlers) act(
	ctx context.Context, in *JobInput, change func(tenant berth.TenantID, id berth.JobID) error,
) (*jobOutput, error) {
	id, err := h.job(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	if err := change(scope(ctx), id); err != nil {
		return nil, err
	}
	return h.jobNow(ctx, id)
}

// cancelInput names the job to cancel, or some elements of an array.
type cancelInput struct {
	JobInput
	Index     string `query:"index" doc:"only these elements of an array, such as 3-7,9"`
	SkipFinal bool   `query:"skip_final" doc:"cancel the final steps of a pipeline, too"`
}

// cancelJob cancels a job, or some elements of an array. The job's workflow is poked in
// any case: without a running member, no end of a container would wake the workflow.
func (h *jobHandlers) cancelJob(ctx context.Context, in *cancelInput) (*jobOutput, error) {
	if in.Index != "" {
		return h.cancelElements(ctx, in)
	}
	return h.act(ctx, &in.JobInput, func(tenant berth.TenantID, id berth.JobID) error {
		reason := &berth.Reason{Code: berth.ReasonCanceledByUser, Message: "canceled by " + caller(ctx).Name}
		cancel := h.canceler.RequestCancel
		if in.SkipFinal {
			cancel = h.parents.CancelNow
		}
		if _, err := cancel(ctx, tenant, id, actor(ctx), reason); err != nil {
			return err
		}
		poke(h.poker, []berth.JobID{id}) // without a running member, no end would wake it
		return nil
	})
}

// holdJob keeps a waiting job from being placed until releaseJob.
func (h *jobHandlers) holdJob(ctx context.Context, in *JobInput) (*jobOutput, error) {
	return h.act(ctx, in, func(tenant berth.TenantID, id berth.JobID) error {
		return h.jobs.Hold(ctx, tenant, id, actor(ctx))
	})
}

// releaseJob lets a held job start. Of a job that has ended, it ends the hold of a failed attempt.
func (h *jobHandlers) releaseJob(ctx context.Context, in *JobInput) (*jobOutput, error) {
	return h.act(ctx, in, func(tenant berth.TenantID, id berth.JobID) error {
		if err := h.jobs.Release(ctx, tenant, id, actor(ctx)); err != nil {
			return err
		}
		debug, err := h.holds.Release(ctx, tenant, id, actor(ctx))
		if debug != "" {
			poke(h.poker, []berth.JobID{debug})
		}
		return err
	})
}

// retryInput names the ended job to submit again, or only the failed elements of an
// array.
type retryInput struct {
	JobInput
	Failed bool `query:"failed" doc:"only the failed part of an array or a pipeline"`
	Fresh  bool `query:"fresh" doc:"steps start from the beginning, not from their newest checkpoints"`

	FreshImage bool `query:"fresh_image" doc:"resolve tags again; default: run the digests found at the submit"`
}

// retryJobInput is retryInput for jobs, which may have another spec. It does not embed
// retryInput: huma reads the parameters of exported structs only.
type retryJobInput struct {
	JobInput
	Failed   bool `query:"failed" doc:"only the failed part of an array or a pipeline"`
	Fresh    bool `query:"fresh" doc:"start as the job's file says, not from the newest checkpoint of the old job"`
	WithSpec bool `query:"with_spec" doc:"run the spec of the body in place of the job's own; not with failed"`

	FreshImage bool `query:"fresh_image" doc:"resolve the tag again; default: run the digest found at the submit"`
	Request
}

// retryJob submits an ended job again. Only a retry that will create a job is admitted: a
// repeated call returns the existing successor and needs no capacity.
func (h *jobHandlers) retryJob(ctx context.Context, in *retryJobInput) (*jobOutput, error) {
	began := time.Now()
	id, err := h.job(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	old, err := h.jobs.Get(ctx, scope(ctx), id)
	if err != nil {
		return nil, err
	}
	// A body that is ignored would run another spec than the caller sent.
	if in.WithSpec || len(in.RawBody) > 0 {
		job, created, err := h.retryAs(ctx, in, old)
		if err != nil {
			return nil, err
		}
		return h.submitted(ctx, job, created, began), nil
	}
	if old.Status.Terminal() && old.RetriedBy == nil && old.Spec != nil {
		if err := h.admission.Admit(ctx, old.Tenant, old.Spec.WithDefaults()); err != nil {
			return nil, err
		}
	}
	job, created, err := h.retries.Retry(ctx, scope(ctx), id, db.RetryOptions{Failed: in.Failed, Fresh: in.Fresh,
		FreshImage: in.FreshImage}, actor(ctx))
	if err != nil {
		return nil, err
	}
	return h.submitted(ctx, job, created, began), nil
}

type patchInput struct {
	JobInput
	Request
}

// updateJob changes priority, labels or time limit of a live job.
func (h *jobHandlers) updateJob(ctx context.Context, in *patchInput) (*jobOutput, error) {
	patch, err := readValid[spec.JobPatch](in.Request, nil)
	if err != nil {
		return nil, err
	}
	// An admin may raise a job above its tenant's greatest priority.
	if tenant := scope(ctx); tenant != "" && patch.Priority != nil {
		if err := h.admission.AllowPriority(ctx, tenant, *patch.Priority); err != nil {
			return nil, err
		}
	}
	return h.act(ctx, &in.JobInput, func(tenant berth.TenantID, id berth.JobID) error {
		return h.jobs.Update(ctx, tenant, id, patch, actor(ctx))
	})
}
