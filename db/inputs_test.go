package db_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"berth"
	"berth/db"
	"berth/spec"
	"berth/wire"
)

// leaves stores an output of a job, as the job's machine would.
func (s *stage) leaves(id berth.JobID, attempt, rank int, name, content string) berth.Address {
	s.t.Helper()
	a := berth.Address("sha256:" + strings.Repeat(content, 64)[:64])
	mustExec(s.t, s.pool, `INSERT INTO outputs (job, attempt, rank, name, address, files, bytes, stored_bytes, sha256, object)
		VALUES ($1, $2, $3, $4, $5, 1, 1, 1, 'x', $6)`, id, attempt, rank, name, a, fmt.Sprintf("object-%s-%d-%d-%s", id, attempt, rank, name))
	return a
}

func takes(id berth.JobID, name string) func(*spec.Job) {
	return func(j *spec.Job) {
		j.Inputs = []spec.Input{{From: "job:" + string(id) + "/" + name, To: "/data"}}
	}
}

// claims places a job, claims it, and returns the inputs in the claim and the object of the last one's
// content. It fails if the machine may read content that is not an input.
func (s *stage) claims(id berth.JobID, on berth.MachineID) (inputs []wire.ClaimInput, object string) {
	s.t.Helper()
	attempt := s.place(id, string(on))
	alloc := one[int64](s, `SELECT id FROM allocations WHERE job = $1 AND attempt = $2`, id, attempt)
	at := db.Session{AgentBoot: one[string](s, `SELECT agent_boot FROM machines WHERE id = $1`, on), Epoch: 1}
	c, err := s.db.Agents.Claim(s.t.Context(), on, wire.ClaimRequest{AgentBoot: at.AgentBoot, Epoch: 1, Alloc: berth.AllocationID(alloc), Job: id, Attempt: attempt})
	if err != nil {
		s.t.Fatal(err)
	}
	for _, in := range c.Inputs {
		if object, err = s.db.Objects.ContentFor(s.t.Context(), on, at, c.Alloc, in.Address); err != nil {
			s.t.Fatal(err)
		}
	}
	if _, err := s.db.Objects.ContentFor(s.t.Context(), on, at, c.Alloc, berth.Address("sha256:"+strings.Repeat("f", 64))); berth.CodeOf(err) != berth.CodeNotFound {
		s.t.Errorf("content that is none of its: %v", err)
	}
	return c.Inputs, object
}

func TestAJobTakesWhatAnEndedOneHasLeft(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	source := s.ended()
	s.leaves(source, 1, 0, "model", "1") // of an earlier attempt
	s.leaves(source, 2, 3, "model", "2")
	want := s.leaves(source, 2, 1, "model", "3")
	id := s.submit(takes(source, "model"))
	late := s.leaves(source, 2, 0, "model", "4") // cannot happen after the end; the choice would stay the same
	inputs, object := s.claims(id, "m1")
	if len(inputs) != 1 || inputs[0] != (wire.ClaimInput{Input: 0, Address: want}) || object != "object-"+string(source)+"-2-1-model" {
		t.Errorf("its machine is told %+v, and gets %s; want %s, not %s", inputs, object, want, late)
	}
	// An archived source has the same outputs.
	mustExec(t, s.pool, `UPDATE allocations SET forgotten_at = now() WHERE job = $1`, source)
	s.archive(1)
	again := s.submit(takes(source, "model"))
	if n := one[int](s, `SELECT count(*) FROM job_inputs WHERE job = $1 AND rank = 0`, again); n != 1 {
		t.Errorf("%d rows", n)
	}
	if _, err := s.pool.Exec(t.Context(), `DELETE FROM outputs WHERE job = $1`, source); err == nil || !strings.Contains(err.Error(), "job_inputs_output") {
		t.Errorf("an output goes that a live job takes: %v", err)
	}
}

func TestOutputsOfNobodyAreRefused(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	ended, running := s.ended(), s.submit(nil)
	s.leaves(ended, 1, 0, "model", "1")
	s.leaves(running, 1, 0, "model", "2")
	mustExec(t, s.pool, `INSERT INTO tenants (id) VALUES ('b') ON CONFLICT DO NOTHING`)
	refusals := map[string]bool{}
	for what, in := range map[string]db.Submission{
		"another name":    {Tenant: "default", Spec: s.spec(takes(ended, "log"))},
		"nobody":          {Tenant: "default", Spec: s.spec(takes(jobB, "model"))},
		"still running":   {Tenant: "default", Spec: s.spec(takes(running, "model"))},
		"another tenants": {Tenant: "b", Spec: s.spec(takes(ended, "model"))},
	} {
		_, _, err := s.db.Jobs.Submit(t.Context(), in)
		e, ok := errors.AsType[*berth.Error](err)
		if !ok || !berth.IsSlug(err, berth.SlugInvalidSpec) || len(e.Fields) != 1 || e.Fields[0].Field != "inputs[0].from" {
			t.Errorf("%s: %v", what, err)
			continue
		}
		text := strings.NewReplacer(string(ended), "ID", string(running), "ID", string(jobB), "ID", "log", "model").Replace(e.Fields[0].Detail)
		refusals[text] = true
	}
	if len(refusals) != 1 {
		t.Errorf("they are told apart: %v", refusals)
	}
	if n := one[int](s, `SELECT count(*) FROM jobs`); n != 2 {
		t.Errorf("there are %d jobs", n)
	}
}

func TestElementsTakeWhatTheirArrayTakes(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	source := s.ended()
	s.leaves(source, 1, 0, "model", "1")
	array := s.submit(func(j *spec.Job) {
		takes(source, "model")(j)
		j.Array = &spec.Array{Size: 2}
	})
	s.tend(array)
	if inputs, _ := s.claims(s.element(array, 1), "m1"); len(inputs) != 1 {
		t.Errorf("an element is told %+v", inputs)
	}
}

// line stores a pipeline of three steps. The last step takes the output of the first.
func (s *stage) line() berth.JobID {
	s.t.Helper()
	p := graph(spec.FailFast, "a", "b: a", "c: b")
	a, c := p.Jobs["a"], p.Jobs["c"]
	a.Outputs = []spec.Output{{Name: "model", Path: "/out"}}
	c.Inputs = []spec.Input{{From: "job:a/model", To: "/data"}}
	p.Jobs["a"], p.Jobs["c"] = a, c
	job, _, err := s.db.Jobs.SubmitPipeline(s.t.Context(), db.PipelineSubmission{Tenant: "default", Spec: p.WithDefaults(), Actor: "user:test"})
	if err != nil {
		s.t.Fatal(err)
	}
	s.tend(job.ID)
	return job.ID
}

func TestAStepTakesWhatAnotherHasLeft(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.line()
	first := s.step(id, "a")
	want := s.leaves(first, 1, 0, "model", "1")
	s.finish(first, 0)
	s.tend(id)
	s.finish(s.step(id, "b"), 1)
	s.tend(id)
	if j := s.job(id); j.Status != berth.Failed {
		t.Fatalf("it is %s", j.Status)
	}
	// A retry of the step alone and a retry of the pipeline both take the first run's output.
	alone, _, err := s.db.Retries.Retry(t.Context(), "default", s.step(id, "c"), db.RetryOptions{}, "user:test")
	if err != nil {
		t.Fatal(err)
	}
	rest, _, err := s.db.Retries.Retry(t.Context(), "default", id, db.RetryOptions{Failed: true}, "user:test")
	if err != nil {
		t.Fatal(err)
	}
	s.tend(rest.ID)
	s.finish(s.step(rest.ID, "b"), 0)
	s.tend(rest.ID)
	for _, step := range []berth.JobID{alone.ID, s.step(rest.ID, "c")} {
		if from := s.job(step).Spec.Inputs[0].From; from != "job:"+string(first)+"/model" {
			t.Errorf("it takes %s", from)
		}
		if inputs, _ := s.claims(step, "m1"); len(inputs) != 1 || inputs[0].Address != want {
			t.Errorf("its machine is told %+v", inputs)
		}
	}
	// A pipeline that succeeds without a retry.
	id = s.line()
	want = s.leaves(s.step(id, "a"), 1, 0, "model", "2")
	for _, step := range []string{"a", "b"} {
		s.finish(s.step(id, step), 0)
		s.tend(id)
	}
	if inputs, _ := s.claims(s.step(id, "c"), "m2"); len(inputs) != 1 || inputs[0].Address != want {
		t.Errorf("its machine is told %+v", inputs)
	}
}

func TestTheElementsOfAStepRetriedTakeWhatAnotherHasLeft(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	p := graph(spec.FailFast, "a", "b: a")
	a, b := p.Jobs["a"], p.Jobs["b"]
	a.Outputs = []spec.Output{{Name: "model", Path: "/out"}}
	b.Inputs, b.Array = []spec.Input{{From: "job:a/model", To: "/data"}}, &spec.Array{Size: 2}
	p.Jobs["a"], p.Jobs["b"] = a, b
	job, _, err := s.db.Jobs.SubmitPipeline(t.Context(), db.PipelineSubmission{Tenant: "default", Spec: p.WithDefaults(), Actor: "user:test"})
	if err != nil {
		t.Fatal(err)
	}
	s.tend(job.ID)
	mustExec(t, s.pool, `UPDATE jobs SET submitted_at = now() - interval '3 days' WHERE parent = $1`, job.ID)
	first := s.step(job.ID, "a")
	want := s.leaves(first, 1, 0, "model", "1")
	s.finish(first, 0)
	s.tend(job.ID)
	array := s.step(job.ID, "b")
	s.tend(array)
	if aged := one[float64](s, `SELECT extract(epoch FROM now() - submitted_at) - unaged_ms / 1000.0 FROM jobs WHERE id = $1`, s.element(array, 0)); aged > 3600 {
		t.Errorf("an element of a step that waited for others has the age of %.0f s", aged)
	}
	s.finish(s.element(array, 0), 0)
	s.finish(s.element(array, 1), 1)
	s.tend(array)
	s.tend(job.ID)
	rest, _, err := s.db.Retries.Retry(t.Context(), "default", array, db.RetryOptions{Failed: true}, "user:test")
	if err != nil {
		t.Fatal(err)
	}
	s.tend(rest.ID)
	if inputs, _ := s.claims(s.element(rest.ID, 1), "m1"); len(inputs) != 1 || inputs[0].Address != want {
		t.Errorf("its machine is told %+v", inputs)
	}
}
