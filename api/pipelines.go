package api

import (
	"context"
	"net/http"
	"time"

	"berth"
	"berth/db"
	"berth/internal/control/admission"
	"berth/spec"
	"berth/wire"
)

// pipelineHandlers serve the calls about pipelines. A pipeline is a row of jobs with a
// kind of its own, so that jobHandlers cancel and retry pipelines too.
type pipelineHandlers struct {
	jobReader
	admission *admission.Controller
	rules     secretRules
	reasons   *waitReasons
	jobCalls  *jobHandlers
}

func (h *pipelineHandlers) mount(r *router) {
	const tag = "pipelines"
	submit := r.operation("submit-pipeline", http.MethodPost, "/v1/pipelines", tag, "Submit a pipeline")
	submit.Description = "As with a job. Cycles, unknown needs and steps that need themselves are refused; a cycle " +
		"is spelled out. " +
		"A step with jobs is a pipeline itself; fields of its steps are named in full: jobs.train.jobs.fit.image."
	submit.Description += " With resume, steps that are unchanged since that run, and succeeded, are stored as " +
		"succeeded with cached_from, unless they need a step that runs."
	submit.DefaultStatus = http.StatusCreated
	registerWithBody[spec.Pipeline](r, submit, h.submitPipeline)
	register(r, r.operation("show-pipeline", http.MethodGet, "/v1/pipelines/{id}", tag,
		"Show a pipeline with its steps"), h.showPipeline)
	register(r, r.operation("cancel-pipeline", http.MethodPost, "/v1/pipelines/{id}/cancel", tag,
		"Cancel a pipeline; its final steps still run; idempotent"), h.cancelPipeline)
	register(r, r.operation("retry-pipeline", http.MethodPost, "/v1/pipelines/{id}/retry", tag,
		"Submit an ended pipeline again, or only what did not succeed, as a new one linked to it"), h.retryPipeline)
}

// submitPipelineInput is a submit of a pipeline, which may resume an earlier run. It does not
// embed submitInput: huma reads the parameters of exported structs only.
type submitPipelineInput struct {
	Key    string `header:"Idempotency-Key" maxLength:"255" doc:"a repeat with the same key is the same job"`
	Resume string `query:"resume" maxLength:"36" doc:"an ended run whose unchanged steps are taken over"`
	Request
}

// submitPipeline admits a pipeline and stores the parent and all its steps in one
// transaction. All faults of all steps are reported at once, up to maxFaults.
func (h *pipelineHandlers) submitPipeline(ctx context.Context, in *submitPipelineInput) (*jobOutput, error) {
	began := time.Now()
	var pipeline spec.Pipeline
	faults, err := decode(in.ContentType, in.RawBody, &pipeline)
	if err != nil {
		return nil, err
	}
	submission := db.PipelineSubmission{Tenant: caller(ctx).Tenant, IdemKey: in.Key, Actor: actor(ctx)}
	if in.Resume != "" {
		run, err := h.job(ctx, in.Resume)
		if err != nil {
			return nil, err
		}
		submission.Resume = &run
		// The file may be the run's stored pipeline. The submit checks whether the caller may resume the run.
		if old, err := h.jobs.Get(ctx, scope(ctx), run); err == nil && old.Pipeline != nil {
			pipeline.Jobs = spec.ResizedSteps(pipeline.Jobs, old.Pipeline.Jobs)
		}
	}
	pipeline = pipeline.WithDefaults()
	check := admission.CheckPipeline
	if submission.Resume != nil {
		check = admission.CheckResumed
	}
	checked := check(pipeline)
	if err := invalid(berth.SlugInvalidSpec, faults, checked[:min(len(checked), maxFaults)]); err != nil {
		return nil, err
	}
	if err := h.rules.mayNotify(ctx, caller(ctx).Tenant, pipeline.Notify); err != nil {
		return nil, err
	}
	if err := h.admission.AdmitPipeline(ctx, caller(ctx).Tenant, pipeline); err != nil {
		return nil, err
	}
	submission.Spec = pipeline
	job, created, err := h.jobs.SubmitPipeline(ctx, submission)
	if err != nil {
		return nil, err
	}
	return h.jobCalls.submitted(ctx, job, created, began), nil
}

// pipeline resolves an id that must belong to a pipeline. The id of a job that is not a
// pipeline is answered like an unknown id.
func (h *pipelineHandlers) pipeline(ctx context.Context, id string) (wire.Job, error) {
	found, err := h.job(ctx, id)
	if err != nil {
		return wire.Job{}, err
	}
	job, err := h.jobs.Get(ctx, scope(ctx), found)
	if err == nil && job.Kind != berth.KindPipeline {
		err = berth.Errorf(berth.CodeNotFound, "no such pipeline %s", id)
	}
	return job, err
}

// showPipeline returns a pipeline with its steps, each waiting one with its reason.
func (h *pipelineHandlers) showPipeline(ctx context.Context, in *JobInput) (*jobOutput, error) {
	job, err := h.pipeline(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	out := &jobOutput{http.StatusOK, job}
	return out, h.reasons.fillAll(ctx, &out.Body)
}

// cancelPipelineInput names the pipeline to cancel.
type cancelPipelineInput struct {
	JobInput
	SkipFinal bool `query:"skip_final" doc:"cancel the final steps, too"`
}

// cancelPipeline cancels a pipeline with all its steps, except for final ones.
func (h *pipelineHandlers) cancelPipeline(ctx context.Context, in *cancelPipelineInput) (*jobOutput, error) {
	if _, err := h.pipeline(ctx, in.ID); err != nil {
		return nil, err
	}
	return h.jobCalls.cancelJob(ctx, &cancelInput{JobInput: in.JobInput, SkipFinal: in.SkipFinal})
}

// retryPipeline submits an ended pipeline again, or only the steps without success.
func (h *pipelineHandlers) retryPipeline(ctx context.Context, in *retryInput) (*jobOutput, error) {
	if _, err := h.pipeline(ctx, in.ID); err != nil {
		return nil, err
	}
	return h.jobCalls.retryJob(ctx, &retryJobInput{JobInput: in.JobInput, Failed: in.Failed, Fresh: in.Fresh,
		FreshImage: in.FreshImage})
}
