package db_test

import (
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/db"
	"berth/spec"
	"berth/wire"
)

// cached is a pipeline whose steps say cache: prep leaves data, train takes it and
// leaves model. edit may change it.
func cached(edit func(*spec.Pipeline)) spec.Pipeline {
	p := graph(spec.FailFast, "prep", "train: prep")
	prep, train := p.Jobs["prep"], p.Jobs["train"]
	prep.Cache, prep.Outputs = true, []spec.Output{{Name: "data", Path: "/out/data"}}
	train.Cache, train.Outputs = true, []spec.Output{{Name: "model", Path: "/out/model"}}
	train.Inputs = []spec.Input{{From: "job:prep/data", To: "/data"}}
	p.Jobs["prep"], p.Jobs["train"] = prep, train
	if edit != nil {
		edit(&p)
	}
	return p.WithDefaults()
}

// editStep changes one step of a pipeline.
func editStep(name string, edit func(*spec.Job)) func(*spec.Pipeline) {
	return func(p *spec.Pipeline) {
		s := p.Jobs[name]
		edit(&s)
		p.Jobs[name] = s
	}
}

// submits stores a pipeline of a tenant and lets its first steps go.
func (s *stage) submits(tenant berth.TenantID, p spec.Pipeline) berth.JobID {
	s.t.Helper()
	job, _, err := s.db.Jobs.SubmitPipeline(s.t.Context(), db.PipelineSubmission{Tenant: tenant, Spec: p, Actor: "user:test"})
	if err != nil {
		s.t.Fatal(err)
	}
	s.tend(job.ID)
	return job.ID
}

// does runs a step of a pipeline, which leaves that content as its output, on an
// image of that digest.
func (s *stage) does(pipeline berth.JobID, step, content, digest string) berth.JobID {
	s.t.Helper()
	id := s.step(pipeline, step)
	mustExec(s.t, s.pool, `UPDATE jobs SET image_digest = $2 WHERE id = $1`, id, digest)
	for _, o := range s.job(id).Spec.Outputs {
		s.leaves(id, 1, 0, o.Name, content)
	}
	s.finish(id, 0)
	s.tend(pipeline)
	return id
}

// done runs the whole of cached.
func (s *stage) done(tenant berth.TenantID, p spec.Pipeline) (id, prep, train berth.JobID) {
	s.t.Helper()
	id = s.submits(tenant, p)
	prep, train = s.does(id, "prep", "1", "sha256:a"), s.does(id, "train", "2", "sha256:a")
	if got := s.job(id).Status; got != berth.Succeeded {
		s.t.Fatalf("it is %s: %s", got, s.steps(id))
	}
	return id, prep, train
}

func (s *stage) wantSteps(pipeline berth.JobID, want string) {
	s.t.Helper()
	if got := s.steps(pipeline); got != want {
		s.t.Errorf("steps are %s, want %s", got, want)
	}
}

const (
	bothSkipped = "prep succeeded, train succeeded"
	prepRuns    = "prep submitted*, train submitted"
	trainRuns   = "prep succeeded, train submitted*"
)

func TestUnchangedStepsAreNotRun(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	_, prep, train := s.done("default", cached(nil))
	for _, run := range []string{"second", "third"} {
		id := s.submits("default", cached(nil))
		j := s.job(id)
		if j.Status != berth.Succeeded || j.Tally.ByStatus[berth.Succeeded] != 2 {
			t.Fatalf("the %s run is %s: %s", run, j.Status, s.steps(id))
		}
		if p := j.Steps; *p[0].CachedFrom != prep || *p[1].CachedFrom != train {
			t.Errorf("the %s run shows as %+v", run, p)
		}
		step := s.job(s.step(id, "train"))
		if step.Attempt != 0 || step.StartedAt != nil || step.FinishedAt == nil || *step.CachedFrom != train || len(step.Attempts) != 0 {
			t.Errorf("its step shows as %+v", step)
		}
		got, _, err := s.db.Objects.Outputs(t.Context(), step.ID, db.Paging{})
		if err != nil || len(got) != 1 {
			t.Fatal(got, err)
		}
		want, _, err := s.db.Objects.Outputs(t.Context(), train, db.Paging{})
		if err != nil {
			t.Fatal(err)
		}
		want[0].Attempt = 0
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("its outputs (-want +got):\n%s", diff)
		}
		events, err := s.db.Jobs.Events(t.Context(), "", step.ID, 0, 10)
		if err != nil || len(events) != 3 || events[1].Kind != wire.EventCached || !strings.Contains(events[1].Detail, "same result as job "+string(train)) ||
			events[2].From != berth.Submitted || events[2].To != berth.Succeeded {
			t.Errorf("its history is %+v, %v", events, err)
		}
	}
	if n := one[int](s, `SELECT count(*)::int FROM allocations`); n != 2 {
		t.Errorf("%d ranks ran, want those of the first run", n)
	}
}

// Cached steps that need nothing wait for a place as other roots do, also before
// anybody has looked at their pipeline; steps that wait for others do not.
func TestCachedRootsCountAgainstMaxQueued(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	submit := func(p spec.Pipeline) error {
		_, _, err := s.db.Jobs.SubmitPipeline(t.Context(), db.PipelineSubmission{Tenant: "default", Spec: p, Actor: "user:test"})
		return err
	}
	queue := func(most int) { mustExec(t, s.pool, `UPDATE tenants SET max_queued = $1 WHERE id = 'default'`, most) }
	roots := graph(spec.FailFast, "a", "b", "c: a b", "d: c")
	for _, step := range []string{"a", "b", "d"} {
		editStep(step, func(j *spec.Job) { j.Cache = true })(&roots)
	}
	queue(1)
	if err := submit(roots); !berth.IsSlug(err, berth.SlugQuota) {
		t.Errorf("two roots where one may wait: %v", err)
	}
	queue(2)
	if err := submit(roots); err != nil {
		t.Fatal(err)
	}
	if use := s.tenant("default").Use; use.Waiting != 2 || use.Running != 0 {
		t.Errorf("the tenant's use is %+v, want two that wait", use)
	}
	if _, _, err := s.db.Jobs.Submit(t.Context(), db.Submission{Tenant: "default", Spec: s.spec(nil), Actor: "user:test"}); !berth.IsSlug(err, berth.SlugQuota) {
		t.Errorf("a job beside the roots: %v", err)
	}
	queue(3)
	array := s.array(3, nil)
	s.tend(array)
	if got := s.tally(array); got != "3, 1 submitted, 2 unmade" {
		t.Errorf("an array beside them is %s", got)
	}
}

// A held pipeline skips no step, although a skip needs no capacity: the release does.
func TestAHeldPipelineSkipsNoSteps(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.done("default", cached(nil))
	job, _, err := s.db.Jobs.SubmitPipeline(t.Context(), db.PipelineSubmission{Tenant: "default", Spec: cached(nil), Actor: "user:test"})
	if err != nil {
		t.Fatal(err)
	}
	s.hold(job.ID)
	s.tend(job.ID)
	s.wantSteps(job.ID, "prep submitted, train submitted")
	s.untended()
	s.release(job.ID)
	if s.wantSteps(job.ID, bothSkipped); s.job(job.ID).Status != berth.Succeeded {
		t.Errorf("it is %s", s.job(job.ID).Status)
	}
}

// The cache key has the content of a step's inputs, not the job that produced them.
func TestAStepIsSkippedByTheContentOfItsInputs(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	_, prep, train := s.done("default", cached(nil))
	other := editStep("prep", func(j *spec.Job) { j.Command = []string{"prep", "--faster"} })

	id := s.submits("default", cached(other))
	s.wantSteps(id, prepRuns)
	s.does(id, "prep", "1", "sha256:a")
	s.wantSteps(id, bothSkipped)
	if j := s.job(s.step(id, "train")); *j.CachedFrom != train {
		t.Errorf("train was done by %s", *j.CachedFrom)
	}

	id = s.submits("default", cached(editStep("prep", func(j *spec.Job) { j.Command = []string{"prep", "--better"} })))
	s.does(id, "prep", "9", "sha256:a")
	s.wantSteps(id, trainRuns)
	s.does(id, "train", "8", "sha256:a")

	// The step after a skipped step gets the outputs of the earlier job, in a retry of
	// the remaining steps as well.
	id = s.submits("default", cached(editStep("train", func(j *spec.Job) { j.Env = map[string]string{"LR": "1"} })))
	s.wantSteps(id, trainRuns)
	s.finish(s.step(id, "train"), 1)
	s.tend(id)
	rest, _, err := s.db.Retries.Retry(t.Context(), "default", id, db.RetryOptions{Failed: true}, "user:test")
	if err != nil {
		t.Fatal(err)
	}
	s.tend(rest.ID)
	s.wantSteps(rest.ID, "train submitted*")
	inputs, object := s.claims(s.step(rest.ID, "train"), "m1")
	if want := "object-" + string(prep) + "-1-0-data"; len(inputs) != 1 || object != want {
		t.Errorf("its machine is told %+v and gets %s, want %s", inputs, object, want)
	}
}

func TestAStepRunsWhereNoResultIsItsOwn(t *testing.T) {
	t.Parallel()
	for what, row := range map[string]struct {
		before func(*stage, berth.JobID) // prep of the run before
		tenant berth.TenantID
		edit   func(*spec.Pipeline)
	}{
		"another command":  {edit: editStep("prep", func(j *spec.Job) { j.Command = []string{"false"} })},
		"another image":    {edit: editStep("prep", func(j *spec.Job) { j.Image = "busybox:2" })},
		"other outputs":    {edit: editStep("prep", func(j *spec.Job) { j.Outputs[0].Path = "/elsewhere" })},
		"without cache":    {edit: editStep("prep", func(j *spec.Job) { j.Cache = false })},
		"when all are run": {edit: func(p *spec.Pipeline) { p.NoCache = true }},
		"another tenant":   {tenant: "b"},
		"an output is gone": {before: func(s *stage, prep berth.JobID) {
			mustExec(s.t, s.pool, `DELETE FROM job_inputs WHERE source = $1`, prep)
			mustExec(s.t, s.pool, `DELETE FROM outputs WHERE job = $1`, prep)
		}},
		"nobody knows the image": {before: func(s *stage, prep berth.JobID) {
			mustExec(s.t, s.pool, `UPDATE step_results SET digest = ''`)
		}},
		"a step found another image under the name": {before: func(s *stage, _ berth.JobID) {
			id := s.submits("default", cached(editStep("prep", func(j *spec.Job) { j.Env = map[string]string{"A": "1"} })))
			mustExec(s.t, s.pool, `UPDATE jobs SET image_digest = 'sha256:b' WHERE id = $1`, s.step(id, "prep"))
			s.finish(s.step(id, "prep"), 1) // a failed step reports the image's digest as well
		}},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			s.newTenant("b", "")
			_, prep, _ := s.done("default", cached(nil))
			if row.before != nil {
				row.before(s, prep)
			}
			if row.tenant == "" {
				row.tenant = "default"
			}
			id := s.submits(row.tenant, cached(row.edit))
			s.wantSteps(id, prepRuns)
		})
	}
}

// A job that failed, or was not run to its end, has no result.
func TestOnlyWhatSucceededIsAResult(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.submits("default", cached(nil))
	s.leaves(s.step(id, "prep"), 1, 0, "data", "1")
	mustExec(t, s.pool, `UPDATE jobs SET image_digest = 'sha256:a' WHERE parent = $1`, id)
	s.wantSteps(s.submits("default", cached(nil)), prepRuns) // while it waits
	s.finish(s.step(id, "prep"), 1)
	s.wantSteps(s.submits("default", cached(nil)), prepRuns)
}

// A result outlives the rows of its job, and an image named by digest needs no earlier
// run that reports the digest.
func TestResultsOutliveTheirJobs(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	pinned := cached(func(p *spec.Pipeline) {
		for name := range p.Jobs {
			editStep(name, func(j *spec.Job) { j.Image = "busybox@sha256:" + strings.Repeat("ab", 32) })(p)
		}
	})
	id := s.submits("default", pinned)
	prep := s.does(id, "prep", "1", "")
	s.does(id, "train", "2", "")
	failed := s.submits("default", cached(nil))
	s.finish(s.step(failed, "prep"), 1)
	s.tend(failed)
	if n := one[int](s, `SELECT count(*)::int FROM step_results`); n != 3 {
		t.Errorf("%d results are noted", n)
	}
	mustExec(t, s.pool, `UPDATE allocations SET forgotten_at = now()`)
	s.archive(2)
	s.archive(4)
	if n := one[int](s, `SELECT count(*)::int FROM step_results`); n != 2 {
		t.Errorf("%d results are left", n)
	}
	again := s.submits("default", pinned)
	s.wantSteps(again, bothSkipped)
	if j := s.job(s.step(again, "prep")); *j.CachedFrom != prep {
		t.Errorf("prep was done by %s", *j.CachedFrom)
	}
	s.archive(1)
	s.archive(2)
	if j := s.job(again); len(j.Steps) != 2 || *j.Steps[0].CachedFrom != prep {
		t.Errorf("in the archive it shows as %+v", j.Steps)
	}
}

// Later runs reuse the results of a run with no_cache.
func TestTheNewestResultIsTaken(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.done("default", cached(nil))
	_, prep, _ := s.done("default", cached(func(p *spec.Pipeline) { p.NoCache = true }))
	id := s.submits("default", cached(nil))
	if j := s.job(s.step(id, "prep")); j.CachedFrom == nil || *j.CachedFrom != prep {
		t.Errorf("prep was done by %v, want %s", j.CachedFrom, prep)
	}
}

// A step that gets a secret is another one with each value of it. Which value it
// was counts from when it was let go: one that was set while it waited is never
// taken for the one before.
func TestAnotherSecretIsAnotherStep(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	set := func(value string) {
		if _, _, err := s.db.Secrets.Set(t.Context(), db.SealedSecret{Tenant: "default", Name: "TOKEN", Key: "k", Sealed: []byte(value)}); err != nil {
			t.Fatal(err)
		}
	}
	set("one")
	secret := cached(editStep("prep", func(j *spec.Job) { j.Secrets = []string{"TOKEN"} }))
	s.done("default", secret)
	s.wantSteps(s.submits("default", secret), bothSkipped)
	set("two")
	waiting := s.submits("default", secret)
	s.wantSteps(waiting, prepRuns)
	set("three")
	s.does(waiting, "prep", "1", "sha256:a")
	s.wantSteps(s.submits("default", secret), prepRuns)
	if err := s.db.Secrets.Delete(t.Context(), "default", "TOKEN"); err != nil {
		t.Fatal(err)
	}
	set("another first")
	s.wantSteps(s.submits("default", secret), prepRuns)
}

// The way down goes on in the same look, and from look to look.
func TestALongLineIsSkippedWhole(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	const n = 70
	steps := []string{"s00"}
	for i := range n - 1 {
		steps = append(steps, fmt.Sprintf("s%02d: s%02d", i+1, i))
	}
	line := graph(spec.FailFast, steps...)
	for name := range line.Jobs {
		editStep(name, func(j *spec.Job) { j.Cache, j.Name = true, name })(&line)
	}
	id := s.submits("default", line)
	s.does(id, "s00", "", "sha256:a")
	if got := s.job(id); got.Status != berth.Succeeded || got.Tally.ByStatus[berth.Succeeded] != n {
		t.Errorf("it is %s: %s", got.Status, s.tally(id))
	}
	if first := s.step(id, "s00"); one[int](s, `SELECT count(*)::int FROM jobs WHERE parent = $1 AND cached_from = $2`, id, first) != n-1 {
		t.Error("not all others are the same as the first")
	}
}

// Followers of a skipped step hear of its end.
func TestSkippedStepsAreTold(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.done("default", cached(nil))
	job, _, err := s.db.Jobs.SubmitPipeline(t.Context(), db.PipelineSubmission{Tenant: "default", Spec: cached(nil), Actor: "user:test"})
	if err != nil {
		t.Fatal(err)
	}
	if list, err := s.db.Jobs.SubmittedBefore(t.Context(), 0, 10); err != nil || len(list) != 1 {
		t.Errorf("the dispatcher starts %v, %v; want the pipeline alone", list, err)
	}
	heard := s.db.Hub().Subscribe(db.TopicJob, string(s.step(job.ID, "train")))
	s.tend(job.ID)
	if !hears(t, heard) {
		t.Error("nobody was told")
	}
}

// Whichever comes first, a cancel or an earlier result: a step ends once.
func TestACancelMeetsAnEarlierResult(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.done("default", cached(nil))
	ends := map[berth.State]int{}
	for i := range 40 {
		job, _, err := s.db.Jobs.SubmitPipeline(t.Context(), db.PipelineSubmission{Tenant: "default", Spec: cached(nil), Actor: "user:test"})
		if err != nil {
			t.Fatal(err)
		}
		target := job.ID
		if i%2 == 1 {
			target = s.step(job.ID, "train")
		}
		var both sync.WaitGroup
		both.Go(func() {
			if _, err := s.db.Parents.ReconcileThrough(t.Context(), job.ID, new(math.MaxInt)); err != nil {
				t.Error(err)
			}
		})
		both.Go(func() {
			if _, err := s.db.Jobs.RequestCancel(t.Context(), "default", target, "user:test", nil); err != nil {
				t.Error(err)
			}
		})
		both.Wait()
		state := s.tend(job.ID)
		if !state.Terminal() {
			t.Fatalf("it is %s: %s", state, s.steps(job.ID))
		}
		ends[state]++
	}
	t.Logf("pipelines ended as %v", ends)
	if n := one[int](s, `
		SELECT count(*)::int FROM (
			SELECT job FROM job_events WHERE to_state IN ('succeeded', 'failed', 'canceled')
			GROUP BY job HAVING count(*) <> 1) x`); n != 0 {
		t.Errorf("%d jobs ended more than once", n)
	}
	if n := one[int](s, `SELECT count(*)::int FROM jobs WHERE state NOT IN ('succeeded', 'failed', 'canceled')`); n != 0 {
		t.Errorf("%d jobs live", n)
	}
	if n := one[int](s, `SELECT count(*)::int FROM jobs WHERE (cached_from IS NULL) <> (state <> 'succeeded' OR kind <> 'job' OR attempt > 0)`); n != 0 {
		t.Errorf("%d jobs succeeded without a run or a result, or have a result that they did not take", n)
	}
}

func TestOnlySkippedStepsSucceedUnstarted(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	insertJob(t, s.pool, jobA)
	refuses(t, s.pool, "BT004", `UPDATE jobs SET state = 'succeeded', version = version + 1 WHERE id = $1`, jobA)
	refuses(t, s.pool, "BT004", `UPDATE jobs SET state = 'succeeded', version = version + 1, cached_from = $2 WHERE id = $1`, jobA, jobB)
	refuses(t, s.pool, "23514", `UPDATE jobs SET cached_from = $2 WHERE id = $1`, jobA, jobB)
}

// A step that is retried by itself is a job, which runs.
func TestAStepByItselfIsRun(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	_, prep, _ := s.done("default", cached(nil))
	alone, _, err := s.db.Retries.Retry(t.Context(), "default", prep, db.RetryOptions{}, "user:test")
	if err != nil {
		t.Fatal(err)
	}
	if faults := alone.Spec.Validate(); len(faults) > 0 || alone.Status != berth.Submitted {
		t.Errorf("it is %s, %v", alone.Status, faults)
	}
}
