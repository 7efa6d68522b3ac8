package chaos_test

import (
	"context"
	"fmt"
	"slices"

	"berth"
	"berth/api/client"
	"berth/spec"
	"berth/wire"
)

// handing are the failpoints on the way of an output from one step to the next.
var handing = []string{"worker.tend.", "agent.output.", "api.output.", "agent.input.", "agent.give."}

// The steps of a cell's pipeline, and the file that the first step leaves to the second.
const (
	makes   = "makes"
	takes   = "takes"
	weights = "weights"
)

// handingOn is a pipeline of two steps. A failpoint of outputs is hit by the
// first, one of inputs by the second.
func (s *stack) handingOn(c cell, lane string, attempts tries) *work {
	first, second := s.spec(lane, "write-file", "/workspace/model", weights), s.spec(lane, "read-file", "/data/model")
	first.Outputs = []spec.Output{{Name: "model", Path: "/workspace/model"}}
	if c.under("agent.give.") {
		first.User, first.Command, first.Outputs[0].Path = spec.UserTenant, []string{"write-file", "/model", weights}, "/model"
	}
	second.Inputs, second.Needs = []spec.Input{{From: "job:" + makes + "/model", To: "/data"}}, []string{makes}
	if c.loses() {
		first.LostAfter, second.LostAfter = spec.Duration(lost), spec.Duration(lost)
	}
	pipeline := spec.Pipeline{Kind: string(berth.KindPipeline), Name: first.Name, Jobs: map[string]spec.Job{makes: first, takes: second}}
	hit, want := makes, map[string]tries{makes: {1, c.loses()}, takes: {1, c.loses()}}
	if c.point == "agent.input.before" || c.point == "agent.input.after" {
		hit = takes
	}
	want[hit] = attempts
	w := &work{drive: func() error { return nil }}
	w.submit = func() error {
		return await("the submit is answered", func() error {
			job, _, err := s.api.SubmitPipeline(context.Background(), pipeline, pipeline.Name)
			w.job = job.ID
			return lasting(err)
		})
	}
	w.gone = func() error { return s.forgotten(w.job) }
	w.left = func() error {
		id, err := s.step(w.job, hit)
		if err != nil {
			return err
		}
		return s.givenUp(id, 1)
	}
	w.ended = func() error { return s.wantHandedOn(w.job, want) }
	return w
}

// step is the job of a step.
func (s *stack) step(pipeline berth.JobID, name string) (berth.JobID, error) {
	var job wire.Job
	err := await("pipeline "+string(pipeline)+" is read", func() (err error) {
		job, err = s.api.Job(context.Background(), pipeline)
		return lasting(err)
	})
	if err != nil {
		return "", err
	}
	at := slices.IndexFunc(job.Steps, func(x wire.Step) bool { return x.Name == name })
	if at < 0 {
		return "", fmt.Errorf("pipeline %s has no step %s", pipeline, name)
	}
	return job.Steps[at].Job, nil
}

// wantHandedOn waits for the end of both steps, the first of which must have left
// one output in its last attempt, and the second have read it.
func (s *stack) wantHandedOn(pipeline berth.JobID, want map[string]tries) error {
	for _, name := range []string{makes, takes} {
		var id berth.JobID
		if err := await("the steps are shown", func() (err error) { id, err = s.step(pipeline, name); return err }); err != nil {
			return err
		}
		job, err := s.becomes(id, berth.Succeeded)
		if is, err := want[name].poisoned(job); is {
			return err
		}
		if err != nil {
			return fmt.Errorf("step %s: %w", name, err)
		}
		if err := s.wantEnded(id, want[name]); err != nil {
			return fmt.Errorf("step %s: %w", name, err)
		}
		if name == makes {
			err = s.wantLeft(job)
		} else {
			err = s.wantPrinted(id, weights)
		}
		if err != nil {
			return err
		}
	}
	_, err := s.becomes(pipeline, berth.Succeeded)
	return err
}

// wantLeft wants one output of the job's last attempt.
func (s *stack) wantLeft(job wire.Job) error {
	return await("the outputs are listed", func() error {
		page, err := s.api.Outputs(context.Background(), job.ID)
		if err != nil {
			return err
		}
		n := 0
		for _, o := range page.Items {
			if o.Attempt == job.Attempt {
				n++
			}
		}
		if n != 1 {
			return fatal{fmt.Errorf("job %s has left %d outputs in attempt %d, want one: %+v", job.ID, n, job.Attempt, page.Items)}
		}
		return nil
	})
}

// wantPrinted wants the one line in the job's log, unless the machine fell silent
// with the end on record and the log not stored.
func (s *stack) wantPrinted(id berth.JobID, want string) error {
	var lines []string
	err := await("the log of job "+string(id)+" is read", func() error {
		lines = nil
		return s.api.Logs(context.Background(), id, client.LogsQuery{}, func(l wire.LogLine) error {
			lines = append(lines, l.Text)
			return nil
		})
	})
	if err != nil || slices.Equal(lines, []string{want}) {
		return err
	}
	if warned, err := s.lastLogsGivenUp(id); err != nil || warned && len(lines) == 0 {
		return err
	}
	return fmt.Errorf("job %s printed %q, want %q", id, lines, want)
}
