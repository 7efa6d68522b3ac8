package chaos_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"berth"
	"berth/api/client"
	"berth/spec"
	"berth/wire"
)

// waiting is a job that two others wait for: one for its success, one for its failure. It ends
// with 0, or is canceled, once both wait.
func (s *stack) waiting(c cell, lane string) *work {
	needed := s.spec(lane, "trap-term", "0")
	needed.Checkpoint = nil
	w := &work{attempt: 1}
	var after, undo berth.JobID
	w.submit = func() (err error) {
		if w.job, err = s.submit(needed); err != nil {
			return err
		}
		if after, err = s.submitAfter(lane, w.job, spec.WhenSuccess); err != nil {
			return err
		}
		undo, err = s.submitAfter(lane, w.job, spec.WhenFailure)
		return err
	}
	ends, runs, skipped, why := berth.Succeeded, &after, &undo, wire.ReasonSkipped
	w.drive = func() error { return s.endInside(w.job, 0) }
	if c.of == aCancel {
		ends, runs, skipped, why = berth.Canceled, &undo, &after, berth.ReasonUpstreamFailed
		// A job that waits ends with the call. A running one ends in its settlement.
		w.drive = func() error { return s.cancel(w.job) }
		w.submit = s.heldFirst(w.submit, &needed, w)
	}
	w.ended = func() error {
		if _, err := s.becomes(w.job, ends); err != nil {
			return err
		}
		if err := s.wantEnded(*runs, once); err != nil {
			return fmt.Errorf("the job that was to run: %w", err)
		}
		return s.wantNotRun(*skipped, why)
	}
	w.gone = func() error { return s.forgotten(w.job) }
	w.left = func() error { return s.givenUp(w.job, 1) }
	w.undo = func() error { return s.cancelAll(needed.Name) }
	return w
}

// heldFirst submits the needed job so that it never starts: no machine has its label.
func (s *stack) heldFirst(submit func() error, needed *spec.Job, w *work) func() error {
	needed.Placement.Constraint = ""
	needed.Placement.Labels = map[string]string{"lane": "none"}
	return func() error {
		if err := submit(); err != nil {
			return err
		}
		return await("job "+string(w.job)+" waits", func() error {
			job, err := s.api.Job(context.Background(), w.job)
			if err == nil && job.Status != berth.Queued {
				err = fmt.Errorf("it is %s", job.Status)
			}
			return err
		})
	}
}

// submitAfter submits a job that waits for another one.
func (s *stack) submitAfter(lane string, needed berth.JobID, when string) (berth.JobID, error) {
	jobSpec := s.spec(lane, "exit", "0")
	jobSpec.Checkpoint, jobSpec.Needs, jobSpec.When = nil, []string{"job:" + string(needed)}, when
	return s.submit(jobSpec)
}

// wantNotRun waits until a job is canceled for a reason, and checks that it was never placed.
func (s *stack) wantNotRun(id berth.JobID, why berth.ReasonCode) error {
	job, err := s.becomes(id, berth.Canceled)
	if err != nil {
		return err
	}
	if job.Reason == nil || job.Reason.Code != why || len(job.Attempts) > 0 {
		return fmt.Errorf("job %s is canceled for %+v, want %s: %s", id, job.Reason, why, describe(job))
	}
	return nil
}

// The steps of a pipeline with conditions.
const (
	stepFails = "fails"
	stepAfter = "after"
	stepUndo  = "undo"
	stepClean = "clean"
)

// branching is a pipeline whose first step fails, which starts its failure step and cancels its
// dependent; the final step comes last. For a cancel, the first step runs until it is canceled.
func (s *stack) branching(c cell, lane string) *work {
	step := func(needs []string, command ...string) spec.Job {
		job := s.spec(lane, command...)
		job.Checkpoint, job.Needs = nil, needs
		if c.loses() {
			job.LostAfter = spec.Duration(lost)
		}
		return job
	}
	fails := step(nil, "exit", "3")
	canceled := strings.Contains(c.point, ".cancel.")
	if canceled {
		fails = step(nil, "trap-term", "0")
	}
	fails.Labels = map[string]string{meansToFail: "true"}
	undo, clean := step([]string{stepFails}, "exit", "0"), step(nil, "exit", "0")
	undo.When, clean.Final = spec.WhenFailure, true
	pipeline := spec.Pipeline{
		Kind: string(berth.KindPipeline), Name: fails.Name, Labels: fails.Labels, Jobs: map[string]spec.Job{
			stepFails: fails, stepAfter: step([]string{stepFails}, "exit", "0"), stepUndo: undo, stepClean: clean,
		},
	}
	w := s.pipelineWork(pipeline)
	want := tries{1, c.loses()}
	w.left = func() error {
		id, err := s.step(w.job, stepFails)
		if err != nil {
			return err
		}
		return s.givenUp(id, 1)
	}
	w.ended = func() error { return s.wantBranched(w.job, want) }
	if canceled {
		w.drive = func() error {
			id, err := s.step(w.job, stepFails)
			if err != nil {
				return err
			}
			if err := s.started(id, 0); err != nil {
				return err
			}
			return s.cancel(w.job)
		}
		w.ended = func() error { return s.wantCleaned(w.job) }
		w.undo = func() error { return s.cancelAll(pipeline.Name) }
	}
	return w
}

// pipelineWork submits a pipeline.
func (s *stack) pipelineWork(pipeline spec.Pipeline) *work {
	w := &work{attempt: 1, drive: func() error { return nil }}
	w.submit = func() error {
		return await("the submit is answered", func() error {
			job, _, err := s.api.SubmitPipeline(context.Background(), pipeline, pipeline.Name)
			w.job = job.ID
			return lasting(err)
		})
	}
	w.gone = func() error { return s.forgotten(w.job) }
	return w
}

// wantBranched waits for the end of a pipeline whose step failed. Its failure step and its final
// step must have run in this order, after the failure, and its dependent not at all.
func (s *stack) wantBranched(pipeline berth.JobID, want tries) error {
	job, err := s.becomes(pipeline, berth.Failed)
	if err != nil {
		return err
	}
	steps := stepsOf(job)
	failed, err := s.becomes(steps[stepFails].Job, berth.Failed)
	if is, err := want.poisoned(failed); is {
		return err
	}
	if err != nil {
		return err
	}
	if err := want.check(failed); err != nil {
		return err
	}
	if failed.Failures != 1 {
		return fmt.Errorf("step %s counts %d failures, want one: %s", stepFails, failed.Failures, describe(failed))
	}
	if err := s.wantNotRun(steps[stepAfter].Job, berth.ReasonUpstreamFailed); err != nil {
		return err
	}
	return s.wantInTurn(steps, want, stepFails, stepUndo, stepClean)
}

// wantCleaned waits for the end of a canceled pipeline, whose final step must have run, and nothing
// else.
func (s *stack) wantCleaned(pipeline berth.JobID) error {
	job, err := s.becomes(pipeline, berth.Canceled)
	if err != nil {
		return err
	}
	steps := stepsOf(job)
	for _, name := range []string{stepAfter, stepUndo} {
		if _, err := s.becomes(steps[name].Job, berth.Canceled); err != nil {
			return fmt.Errorf("step %s: %w", name, err)
		}
	}
	return s.wantInTurn(steps, once, stepFails, stepClean)
}

// stepsOf are the steps of a pipeline by name.
func stepsOf(job wire.Job) map[string]wire.Step {
	steps := map[string]wire.Step{}
	for _, x := range job.Steps {
		steps[x.Name] = x
	}
	return steps
}

// wantInTurn checks that each step but the first succeeded, and started after the end of the one
// before.
func (s *stack) wantInTurn(steps map[string]wire.Step, want tries, names ...string) error {
	for i, name := range names[1:] {
		before, x := steps[names[i]], steps[name]
		if err := s.wantEnded(x.Job, want); err != nil {
			return fmt.Errorf("step %s: %w", name, err)
		}
		if x.StartedAt == nil || before.FinishedAt == nil || x.StartedAt.Before(*before.FinishedAt) {
			return fmt.Errorf("step %s started at %v, and %s ended at %v", name, x.StartedAt, names[i], before.FinishedAt)
		}
	}
	return nil
}

// listValues are the entries of the list from which a cell's array is made.
var listValues = []string{"a", "b", "c"}

// listed is a pipeline whose first step writes a list, and whose second step is an array with an
// element for each entry.
func (s *stack) listed(lane string) *work {
	quoted := make([]string, len(listValues))
	for i, v := range listValues {
		quoted[i] = strconv.Quote(v)
	}
	first := s.spec(lane, "write-file", "/workspace/list", "["+strings.Join(quoted, ",")+"]")
	first.Outputs = []spec.Output{{Name: "list", Path: "/workspace/list"}}
	each := s.spec(lane, "env", spec.EnvArrayValue)
	each.Needs, each.Array = []string{makes}, &spec.Array{From: "job:" + makes + "/list"}
	first.Checkpoint, each.Checkpoint = nil, nil
	w := s.pipelineWork(spec.Pipeline{
		Kind: string(berth.KindPipeline), Name: first.Name, Jobs: map[string]spec.Job{makes: first, takes: each},
	})
	w.ended = func() error { return s.wantListed(w.job) }
	return w
}

// wantListed waits for the success of a pipeline with an array from a list, and checks that each
// entry ran once.
func (s *stack) wantListed(pipeline berth.JobID) error {
	if _, err := s.becomes(pipeline, berth.Succeeded); err != nil {
		return err
	}
	id, err := s.step(pipeline, takes)
	if err != nil {
		return err
	}
	var elements []wire.Job
	err = await("the elements of array "+string(id)+" are listed", func() error {
		page, err := s.api.Jobs(context.Background(), client.JobsQuery{Parent: id})
		elements = page.Items
		return err
	})
	if err != nil {
		return err
	}
	if len(elements) != len(listValues) {
		return fmt.Errorf("array %s has %d elements, want %d", id, len(elements), len(listValues))
	}
	for _, e := range elements {
		if err := s.wantEnded(e.ID, once); err != nil {
			return err
		}
		if err := s.wantPrinted(e.ID, spec.EnvArrayValue+"="+listValues[*e.ArrayIndex]); err != nil {
			return fmt.Errorf("element %d: %w", *e.ArrayIndex, err)
		}
	}
	return nil
}
