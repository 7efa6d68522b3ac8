package api

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"berth"
	"berth/db"
	"berth/internal/control/admission"
	"berth/spec"
	"berth/wire"
)

func (s *Server) registerPipelines() {
	const tag = "pipelines"
	submit := s.operation("submit-pipeline", http.MethodPost, "/v1/pipelines", tag, "Submit a pipeline")
	submit.Description = "As with a job. Cycles, unknown needs and steps that need themselves are refused; a cycle is spelled out. " +
		"A step with jobs is a pipeline itself; fields of its steps are named in full: jobs.train.jobs.fit.image."
	submit.DefaultStatus = http.StatusCreated
	registerWithBody[spec.Pipeline](s, submit, s.submitPipeline)
	register(s, s.operation("show-pipeline", http.MethodGet, "/v1/pipelines/{id}", tag, "Show a pipeline with its steps"), s.showPipeline)
	register(s, s.operation("cancel-pipeline", http.MethodPost, "/v1/pipelines/{id}/cancel", tag, "Cancel a pipeline; idempotent"), s.cancelPipeline)
	register(s, s.operation("retry-pipeline", http.MethodPost, "/v1/pipelines/{id}/retry", tag, "Submit an ended pipeline again, or only what did not succeed, as a new one linked to it"), s.retryPipeline)
}

func (s *Server) submitPipeline(ctx context.Context, in *submitInput) (*jobOutput, error) {
	began := time.Now()
	var pipeline spec.Pipeline
	faults, err := decode(in.ContentType, in.RawBody, &pipeline)
	if err != nil {
		return nil, err
	}
	pipeline = pipeline.WithDefaults()
	checked := admission.CheckPipeline(pipeline)
	if err := invalid(berth.SlugInvalidSpec, faults, checked[:min(len(checked), maxFaults)]); err != nil {
		return nil, err
	}
	if err := s.mayNotify(pipeline.Notify); err != nil {
		return nil, err
	}
	if err := s.admission.AdmitPipeline(ctx, caller(ctx).Tenant, pipeline); err != nil {
		return nil, err
	}
	job, created, err := s.DB.Jobs.SubmitPipeline(ctx, db.PipelineSubmission{Tenant: caller(ctx).Tenant, Spec: pipeline, IdemKey: in.Key, Actor: actor(ctx)})
	if err != nil {
		return nil, err
	}
	return s.submitted(ctx, job, created, began), nil
}

// needs returns the steps for which a step, or a pipeline around it, waits: those
// of the outermost level first. It returns false if the step waits for none.
func (s *Server) needs(ctx context.Context, step wire.Job) (e wire.Explanation, waits bool, err error) {
	e = wire.Explanation{Job: step.ID, Status: step.Status, Blockers: []wire.Blocker{}}
	for at, who := step, "it"; at.Step != "" && at.Status == berth.Submitted; who = "pipeline " + at.Step + ", which it is in," {
		around, err := s.DB.Jobs.Get(ctx, scope(ctx), *at.Parent)
		if err != nil {
			return e, false, err
		}
		e.Blockers = append(unmet(around, at.ID, who), e.Blockers...)
		at = around
	}
	if len(e.Blockers) > 0 {
		e.Summary = e.Blockers[0].Message
	}
	return e, len(e.Blockers) > 0, nil
}

// unmet are the needs of a step that have not succeeded.
func unmet(pipeline wire.Job, step berth.JobID, who string) []wire.Blocker {
	status, wanted := map[string]berth.State{}, []string(nil)
	for _, x := range pipeline.Steps {
		status[x.Name] = x.Status
		if x.Job == step {
			wanted = x.Needs
		}
	}
	var list []wire.Blocker
	for _, need := range wanted {
		if status[need] != berth.Succeeded {
			list = append(list, wire.Blocker{
				Code: "needs", Message: fmt.Sprintf("%s needs step %s, which is %s", who, need, status[need]), Hint: "wait: it may start when that has succeeded",
			})
		}
	}
	return list
}

// pipeline resolves an id that must be a pipeline's.
func (s *Server) pipeline(ctx context.Context, id string) (wire.Job, error) {
	found, err := s.job(ctx, id)
	if err != nil {
		return wire.Job{}, err
	}
	job, err := s.DB.Jobs.Get(ctx, scope(ctx), found)
	if err == nil && job.Kind != berth.KindPipeline {
		err = berth.Errorf(berth.CodeNotFound, "no such pipeline %s", id)
	}
	return job, err
}

func (s *Server) showPipeline(ctx context.Context, in *JobInput) (*jobOutput, error) {
	job, err := s.pipeline(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	return &jobOutput{http.StatusOK, job}, nil
}

func (s *Server) cancelPipeline(ctx context.Context, in *JobInput) (*jobOutput, error) {
	if _, err := s.pipeline(ctx, in.ID); err != nil {
		return nil, err
	}
	return s.cancelJob(ctx, &cancelInput{JobInput: *in})
}

func (s *Server) retryPipeline(ctx context.Context, in *retryInput) (*jobOutput, error) {
	if _, err := s.pipeline(ctx, in.ID); err != nil {
		return nil, err
	}
	return s.retryJob(ctx, in)
}
