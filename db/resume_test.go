package db_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/db"
	"berth/spec"
	"berth/wire"
)

// study is a pipeline of prep, sweep (an array of three), train (a pipeline of fit and test) and report, each after
// the one before. edit may change it.
func study(edit func(*spec.Pipeline)) spec.Pipeline {
	p := graph(spec.Continue, "prep", "sweep: prep", "train: sweep", "report: train")
	editStep("prep", func(s *spec.Job) { s.Outputs = []spec.Output{{Name: "data", Path: "/out/data"}} })(&p)
	editStep("sweep", func(s *spec.Job) {
		s.Inputs = []spec.Input{{From: "job:prep/data", To: "/data"}}
		s.Array = &spec.Array{Grid: map[string][]string{"LR": {"1", "2", "3"}}}
	})(&p)
	editStep("train", func(s *spec.Job) {
		*s = spec.Job{Needs: s.Needs, Jobs: map[string]spec.Job{
			"fit": {Image: "busybox", Inputs: []spec.Input{{From: "job:prep/data", To: "/data"}},
				Outputs: []spec.Output{{Name: "model", Path: "/out/model"}}},
			"test": {Image: "busybox", Needs: []string{"fit"},
				Inputs: []spec.Input{{From: "job:fit/model", To: "/model"}}},
		}}
	})(&p)
	editStep("report", func(s *spec.Job) { s.Inputs = []spec.Input{{From: "job:train.fit/model", To: "/model"}} })(&p)
	if edit != nil {
		edit(&p)
	}
	return p.WithDefaults()
}

// resume resumes a run of a pipeline with the file.
func (s *stage) resume(run berth.JobID, p spec.Pipeline) (wire.Job, error) {
	s.t.Helper()
	job, _, err := s.db.Jobs.SubmitPipeline(s.t.Context(),
		db.PipelineSubmission{Tenant: "default", Spec: p, Actor: "user:test", Resume: &run})
	if err == nil {
		s.tend(job.ID)
		job = s.job(job.ID)
	}
	return job, err
}

// studied runs study until report, which fails. Elements of the sweep end with the given exit codes.
func (s *stage) studied(codes ...int) berth.JobID {
	s.t.Helper()
	id := s.submits("default", study(nil))
	s.leaves(s.step(id, "prep"), 1, 0, "data", "1")
	s.finish(s.step(id, "prep"), 0)
	s.tend(id)
	sweep := s.step(id, "sweep")
	s.tend(sweep)
	for i, code := range codes {
		s.finish(s.element(sweep, i), code)
	}
	s.tend(sweep)
	s.tend(id)
	train := s.step(id, "train")
	if s.job(sweep).Status != berth.Succeeded {
		s.wantRun(id, berth.Failed)
		return id
	}
	s.tend(train)
	fit := s.step(train, "fit")
	s.leaves(fit, 1, 0, "model", "2")
	s.finish(fit, 0)
	s.tend(train)
	s.finish(s.step(train, "test"), 0)
	s.tend(train)
	s.tend(id)
	s.finish(s.step(id, "report"), 1)
	s.tend(id)
	s.wantRun(id, berth.Failed)
	return id
}

func (s *stage) wantRun(id berth.JobID, want berth.State) {
	s.t.Helper()
	if j := s.job(id); j.Status != want {
		s.t.Fatalf("%s is %s: %s", id, j.Status, s.steps(id))
	}
}

// sources returns the job from which each step of one level was taken over.
func sources(j wire.Job) map[string]berth.JobID {
	m := map[string]berth.JobID{}
	for _, s := range j.Steps {
		if s.CachedFrom != nil {
			m[s.Name] = *s.CachedFrom
		}
	}
	return m
}

func TestAResumedPipelineTakesOverWhatSucceeded(t *testing.T) {
	t.Parallel()
	for _, archived := range []bool{false, true} {
		t.Run(fmt.Sprintf("archived %t", archived), func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			run := s.studied(0, 0, 0)
			prep, fit := s.step(run, "prep"), s.step(s.step(run, "train"), "fit")
			if archived {
				s.archiveAll()
			}
			fixed := study(editStep("report", func(j *spec.Job) { j.Command = []string{"fixed"} }))
			job, err := s.resume(run, fixed)
			if err != nil {
				t.Fatal(err)
			}
			if got := s.steps(job.ID); got != "prep succeeded, report submitted*, sweep succeeded, train succeeded" {
				t.Errorf("steps are %s", got)
			}
			if *job.RetryOf != run || *s.job(run).RetriedBy != job.ID {
				t.Errorf("the runs are linked as %v, %v", job.RetryOf, s.job(run).RetriedBy)
			}
			train := s.job(s.step(job.ID, "train"))
			got := sources(job)
			got["fit"] = sources(train)["fit"]
			if diff := cmp.Diff(map[string]berth.JobID{"prep": prep, "fit": fit}, got); diff != "" {
				t.Errorf("sources (-want +got):\n%s", diff)
			}
			sweep := s.job(s.step(job.ID, "sweep"))
			if sweep.Status != berth.Succeeded || s.tally(sweep.ID) != "3, 3 succeeded" ||
				train.Tally.ByStatus[berth.Succeeded] != 2 {
				t.Errorf("the array is %+v, the pipeline %+v", sweep, train)
			}
			element := s.job(s.element(sweep.ID, 2))
			if element.CachedFrom == nil || element.Attempt != 0 || element.Variables["LR"] != "3" {
				t.Errorf("an element is %+v", element)
			}
			events, err := s.db.Jobs.Events(t.Context(), "", s.step(job.ID, "prep"), 0, 10)
			if err != nil || len(events) != 3 || events[1].Kind != wire.EventCached ||
				!strings.Contains(events[1].Detail, "outputs of job "+string(prep)) {
				t.Errorf("the history of prep is %+v, %v", events, err)
			}
			if e := events2(s, s.step(job.ID, "report")); !strings.Contains(e, "changed: command") {
				t.Errorf("the history of report is %s", e)
			}

			// The step that runs reads the model that was taken over, and the run can be resumed again.
			s.finish(s.step(job.ID, "report"), 1)
			s.tend(job.ID)
			again, err := s.resume(job.ID, study(nil))
			if err != nil {
				t.Fatal(err)
			}
			if got := sources(again); got["prep"] != prep {
				t.Errorf("the second resume takes prep from %s, not from the job that ran", got["prep"])
			}
			s.finish(s.step(again.ID, "report"), 0)
			s.tend(again.ID)
			s.wantRun(again.ID, berth.Succeeded)
			if n := one[int](s, `SELECT count(*)::int FROM job_inputs i JOIN jobs j ON j.id = i.source WHERE i.job = $1 AND j.step = 'fit' AND i.attempt = 0`,
				s.step(again.ID, "report")); n != 1 {
				t.Errorf("report is bound to %d outputs that were taken over", n)
			}
		})
	}
}

// events2 joins the details of a job's events.
func events2(s *stage, id berth.JobID) string {
	s.t.Helper()
	list, err := s.db.Jobs.Events(s.t.Context(), "", id, 0, 100)
	if err != nil {
		s.t.Fatal(err)
	}
	var all []string
	for _, e := range list {
		all = append(all, e.Detail)
	}
	return strings.Join(all, "; ")
}

func TestAResumedArrayRunsWhatDidNotSucceed(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	run := s.studied(0, 1, 0)
	job, err := s.resume(run, study(nil))
	if err != nil {
		t.Fatal(err)
	}
	sweep := s.step(job.ID, "sweep")
	s.tend(sweep)
	if got := s.tally(sweep); got != "3, 1 submitted, 2 succeeded" {
		t.Fatalf("the array has %s", got)
	}
	if e := s.job(s.element(sweep, 1)); e.CachedFrom != nil || e.Spec.Env["BERTH_ARRAY_SIZE"] != "3" ||
		e.Variables["LR"] != "2" {
		t.Errorf("the element that runs is %+v", e)
	}
	s.finish(s.element(sweep, 1), 0)
	s.tend(sweep)
	s.tend(job.ID)
	if got := s.steps(job.ID); got != "prep succeeded, report submitted, sweep succeeded, train submitted*" {
		t.Errorf("steps are %s", got)
	}
	if names, _ := s.below(sweep, 2); !cmp.Equal(names, []string{"0", "1", "2"}) {
		t.Errorf("the elements are %v", names)
	}
}

func TestAResumeIsRefused(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	run := s.studied(0, 0, 0)
	refused := func(what string, id berth.JobID, p spec.Pipeline, code berth.Code, says string) {
		t.Helper()
		if _, err := s.resume(id, p); berth.CodeOf(err) != code || !strings.Contains(fmt.Sprint(err), says) {
			t.Errorf("%s: %v", what, err)
		}
	}
	live := s.submits("default", study(nil))
	refused("a live run", live, study(nil), berth.CodeConflict, "only ended jobs can be retried")
	refused("a step", s.step(run, "train"), study(nil), berth.CodeInvalid, "is a step of pipeline")
	refused("a job", s.step(run, "prep"), study(nil), berth.CodeInvalid, "is not a pipeline")
	refused("an unknown run", berth.NewJobID(time.Now()), study(nil), berth.CodeNotFound, "no such job")
	fixed := study(editStep("report", func(j *spec.Job) { j.Command = []string{"fixed"} }))
	job, err := s.resume(run, fixed)
	if err != nil {
		t.Fatal(err)
	}
	refused("a run with a successor", run, fixed, berth.CodeConflict, "as "+string(job.ID))
	s.finish(s.step(job.ID, "report"), 0)
	s.tend(job.ID)
	refused("nothing to run", job.ID, fixed, berth.CodeConflict, "nothing to run")
}

// TestARepeatedResumeIsOnePipeline checks that concurrent and repeated calls with one key create one pipeline.
func TestARepeatedResumeIsOnePipeline(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	run := s.studied(0, 0, 0)
	var wg sync.WaitGroup
	ids := make([]berth.JobID, 4)
	for i := range ids {
		wg.Go(func() {
			job, _, err := s.db.Jobs.SubmitPipeline(t.Context(),
				db.PipelineSubmission{Tenant: "default", Spec: study(nil), Actor: "user:test",
					Resume: &run, IdemKey: "once"})
			if err != nil {
				t.Error(err)
			}
			ids[i] = job.ID
		})
	}
	wg.Wait()
	for _, id := range ids {
		if id != ids[0] {
			t.Errorf("the calls created %v", ids)
		}
	}
	_, _, err := s.db.Jobs.SubmitPipeline(t.Context(),
		db.PipelineSubmission{Tenant: "default", Spec: study(nil), Actor: "user:test", IdemKey: "once"})
	if !berth.IsSlug(err, berth.SlugIdempotencyMismatch) {
		t.Errorf("the same key without the resume: %v", err)
	}
}

// TestAResumeRunsStepsWithoutTheirOutputs checks that a step runs again once an output of it was pruned, and that an
// output that was taken over outlives the run that it comes from.
func TestAResumeRunsStepsWithoutTheirOutputs(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	run := s.studied(0, 0, 0)
	fit := s.step(s.step(run, "train"), "fit")
	s.archiveAll()
	mustExec(t, s.pool, `DELETE FROM outputs WHERE job = $1`, fit)
	job, err := s.resume(run, study(nil))
	if err != nil {
		t.Fatal(err)
	}
	train := s.step(job.ID, "train")
	s.tend(train)
	if got := s.steps(job.ID) + "; " + s.steps(train); got !=
		"prep succeeded, report submitted, sweep succeeded, train queued; fit submitted*, test submitted" {
		t.Errorf("steps are %s", got)
	}
}

// TestACanceledResumeKeepsWhatWasTakenOver checks that a cancel right after the submit leaves steps and parents that
// were taken over as they are.
func TestACanceledResumeKeepsWhatWasTakenOver(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	run := s.studied(0, 0, 0)
	job, _, err := s.db.Jobs.SubmitPipeline(t.Context(),
		db.PipelineSubmission{Tenant: "default", Spec: study(nil), Actor: "user:test", Resume: &run})
	if err != nil {
		t.Fatal(err)
	}
	s.cancel(job.ID)
	s.tend(job.ID)
	if got := s.steps(job.ID); got != "prep succeeded, report canceled, sweep succeeded, train succeeded" {
		t.Errorf("steps are %s", got)
	}
	s.wantRun(job.ID, berth.Canceled)
	again, created, err := s.db.Retries.Retry(t.Context(), "default", job.ID, db.RetryOptions{Failed: true}, "user:test")
	if err != nil || !created {
		t.Fatal(created, err)
	}
	if steps := s.job(again.ID).Pipeline.Jobs; len(steps) != 1 {
		t.Errorf("a retry of what did not succeed has the steps %v", steps)
	}
}
