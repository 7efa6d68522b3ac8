package db_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/db"
	"berth/failure"
	"berth/spec"
	"berth/wire"
)

// pipeline stores a pipeline. Each string is a step and its needs: "a", "b: a", ...
func (s *stage) pipeline(onFailure string, steps ...string) berth.JobID {
	s.t.Helper()
	job, created, err := s.db.Jobs.SubmitPipeline(s.t.Context(), db.PipelineSubmission{Tenant: "default", Spec: graph(onFailure, steps...), Actor: "user:test"})
	if err != nil || !created {
		s.t.Fatal(created, err)
	}
	return job.ID
}

func graph(onFailure string, steps ...string) spec.Pipeline {
	p := spec.Pipeline{Kind: "pipeline", Name: "p", OnFailure: onFailure, Jobs: map[string]spec.Job{}}
	for _, s := range steps {
		key, needs, _ := strings.Cut(s, ":")
		p.Jobs[key] = spec.Job{Image: "busybox", Needs: strings.Fields(needs)}
	}
	return p.WithDefaults()
}

func (s *stage) step(pipeline berth.JobID, name string) berth.JobID {
	s.t.Helper()
	return berth.JobID(one[string](s, `SELECT id::text FROM jobs WHERE parent = $1 AND step = $2`, pipeline, name))
}

// steps shows the status of each step. A star marks a submitted step that may start.
func (s *stage) steps(pipeline berth.JobID) string {
	s.t.Helper()
	return one[string](s, `
		SELECT string_agg(step || ' ' || state || CASE WHEN state = 'submitted' AND NOT blocked THEN '*' ELSE '' END, ', ' ORDER BY step)
		FROM jobs WHERE parent = $1`, pipeline)
}

func TestStepsStartWhenTheirNeedsHaveSucceeded(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.pipeline(spec.FailFast, "a", "b: a", "c: a", "d: b c")
	if got := s.steps(id); got != "a submitted*, b submitted, c submitted, d submitted" {
		t.Errorf("steps are %s", got)
	}
	if list, err := s.db.Jobs.SubmittedBefore(t.Context(), 0, 10); err != nil || len(list) != 2 { // the pipeline and a
		t.Errorf("the dispatcher starts %v, %v", list, err)
	}
	first, err := s.db.Parents.Reconcile(t.Context(), id)
	want := wire.ReconcileResult{State: berth.Queued, Tenant: "default", User: "test",
		Ready: []wire.Ready{{Job: s.step(id, "a"), Kind: berth.KindJob, Name: "a", Image: "busybox"}}}
	if diff := cmp.Diff(want, first); err != nil || diff != "" {
		t.Errorf("%v, (-want +got):\n%s", err, diff)
	}
	for i, want := range []string{
		"a succeeded, b submitted*, c submitted*, d submitted",
		"a succeeded, b succeeded, c submitted*, d submitted",
		"a succeeded, b succeeded, c succeeded, d submitted*",
	} {
		poke := s.db.Hub().Subscribe(db.TopicPoke, string(id))
		s.finish(s.step(id, string(rune('a'+i))), 0)
		if !hears(t, poke) {
			t.Error("the coordinator was not told")
		}
		s.tend(id)
		if got := s.steps(id); got != want {
			t.Errorf("steps are %s, want %s", got, want)
		}
	}
	s.finish(s.step(id, "d"), 0)
	if got := s.tend(id); got != berth.Succeeded {
		t.Errorf("it is %s", got)
	}
	j := s.job(id)
	if j.Pipeline == nil || j.Spec != nil || len(j.Steps) != 4 || fmt.Sprint(j.Steps[3].Needs) != "[b c]" || j.Tally.ByStatus[berth.Succeeded] != 4 {
		t.Errorf("it shows as %+v", j)
	}
}

func TestOnFailureEndsTheRestOrGoesOn(t *testing.T) {
	t.Parallel()
	for policy, want := range map[string]struct{ after, end, says string }{
		spec.FailFast: {"a failed, b canceled, c canceled, d canceled, e canceled", "", "1 of 5 steps failed: a"},
		spec.Continue: {"a failed, b canceled, c canceled, d submitted*, e submitted", "a failed, b canceled, c canceled, d succeeded, e succeeded", "1 of 5 steps failed: a"},
	} {
		s := newStage(t)
		id := s.pipeline(policy, "a", "b: a", "c: b d", "d", "e: d")
		s.tend(id)
		s.finish(s.step(id, "a"), 1)
		s.tend(id)
		if got := s.steps(id); got != want.after {
			t.Errorf("%s: steps are %s", policy, got)
		}
		if r := s.job(s.step(id, "c")).Reason; r.Code != berth.ReasonUpstreamFailed || r.Message != "step b was canceled" {
			t.Errorf("%s: c was canceled because of %+v", policy, r)
		}
		if want.end != "" {
			s.finish(s.step(id, "d"), 0)
			s.tend(id)
			s.finish(s.step(id, "e"), 0)
			s.tend(id)
			if got := s.steps(id); got != want.end {
				t.Errorf("%s: steps end as %s", policy, got)
			}
		}
		if j := s.job(id); j.Status != berth.Failed || j.Reason.Message != want.says {
			t.Errorf("%s: it is %s because of %+v", policy, j.Status, j.Reason)
		}
	}
}

func TestRetryFailedResumesAHalfDoneGraph(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.pipeline(spec.FailFast, "a", "b: a", "c: b", "d: a c")
	for _, step := range []string{"a", "b"} {
		s.tend(id)
		s.finish(s.step(id, step), 0)
	}
	s.tend(id)
	s.finish(s.step(id, "c"), 1)
	if got := s.tend(id); got != berth.Failed {
		t.Fatalf("it is %s", got)
	}
	again, created, err := s.db.Retries.Retry(t.Context(), "default", id, db.RetryOptions{Failed: true}, "user:test")
	if err != nil || !created || *again.RetryOf != id || again.Tally.Total != 2 {
		t.Fatalf("%+v, %v", again, err)
	}
	s.tend(again.ID)
	if got := s.steps(again.ID); got != "c submitted*, d submitted" {
		t.Errorf("steps are %s", got)
	}
	if twice, created, err := s.db.Retries.Retry(t.Context(), "default", id, db.RetryOptions{Failed: true}, "user:test"); err != nil || created || twice.ID != again.ID {
		t.Errorf("again it is %s, created %t, %v", twice.ID, created, err)
	}
	for _, step := range []string{"c", "d"} {
		s.finish(s.step(again.ID, step), 0)
		s.tend(again.ID)
	}
	if j := s.job(again.ID); j.Status != berth.Succeeded {
		t.Errorf("it is %s because of %+v", j.Status, j.Reason)
	}
	whole, _, err := s.db.Retries.Retry(t.Context(), "default", again.ID, db.RetryOptions{}, "user:test")
	if err != nil || whole.Tally.Total != 2 {
		t.Errorf("as a whole it is %+v, %v", whole, err)
	}
}

func TestCancelOfAPipelineReachesAllItsSteps(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.pipeline(spec.Continue, "a", "b: a", "c")
	s.tend(id)
	attempt := s.place(s.step(id, "a"), "m0")
	s.claim(s.step(id, "a"), attempt, 0)
	s.run(s.step(id, "a"))
	if got := s.cancel(id); got != berth.Canceling {
		t.Errorf("it is %s", got)
	}
	if got := s.steps(id); got != "a canceling, b canceled, c canceled" {
		t.Errorf("steps are %s", got)
	}
	s.exit(s.step(id, "a"), attempt, 0, failure.Exit{Cause: failure.CauseOrdered, Code: 143, StartedAt: ranAt, FinishedAt: ranAt})
	s.settle(s.step(id, "a"), attempt)
	if got := s.tend(id); got != berth.Canceled {
		t.Errorf("it is %s", got)
	}
	early := s.pipeline(spec.FailFast, "a", "b: a")
	if got := s.cancel(early); got != berth.Canceled || s.steps(early) != "a canceled, b canceled" {
		t.Errorf("canceled before its coordinator looked it is %s: %s", got, s.steps(early))
	}
}

func (s *stage) hold(id berth.JobID) {
	s.t.Helper()
	if err := s.db.Jobs.Hold(s.t.Context(), "", id, "user:test"); err != nil {
		s.t.Fatal(err)
	}
}

func (s *stage) release(id berth.JobID) {
	s.t.Helper()
	if err := s.db.Jobs.Release(s.t.Context(), "", id, "user:test"); err != nil {
		s.t.Fatal(err)
	}
}

func (s *stage) untended(want ...berth.JobID) {
	s.t.Helper()
	list, err := s.db.Parents.Untended(s.t.Context(), 0, 10)
	if err != nil {
		s.t.Fatal(err)
	}
	var got []berth.JobID
	for _, x := range list {
		got = append(got, x.ID)
	}
	if !slices.Equal(got, want) {
		s.t.Errorf("untended are %v, want %v", got, want)
	}
}

// TestAHeldPipelineLetsNothingGo checks that a held pipeline unblocks no step, that steps whose needs failed
// are canceled all the same, and that the reconciler has nothing else to do. The release unblocks the steps
// that became ready meanwhile.
func TestAHeldPipelineLetsNothingGo(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.pipeline(spec.Continue, "a", "b: a", "c", "d: c")
	s.tend(id)
	s.hold(id)
	s.finish(s.step(id, "a"), 0)
	s.untended()
	s.finish(s.step(id, "c"), 1)
	s.untended(id) // for d
	s.tend(id)
	if got := s.steps(id); got != "a succeeded, b submitted, c failed, d canceled" {
		t.Errorf("steps are %s", got)
	}
	s.untended()
	poke := s.db.Hub().Subscribe(db.TopicPoke, string(id))
	if s.release(id); !hears(t, poke) {
		t.Error("the coordinator was not told of the release")
	}
	if r, err := s.db.Parents.Reconcile(t.Context(), id); err != nil || len(r.Ready) != 1 || r.Ready[0].Job != s.step(id, "b") {
		t.Errorf("after the release: %+v, %v", r, err)
	}
}

func TestAHeldStepIsNotLetGo(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.pipeline(spec.FailFast, "a", "b: a", "c: a")
	b := s.step(id, "b")
	s.hold(b)
	s.tend(id)
	s.finish(s.step(id, "a"), 0)
	s.tend(id)
	if got := s.steps(id); got != "a succeeded, b submitted, c submitted*" {
		t.Errorf("steps are %s", got)
	}
	s.untended()
	poke := s.db.Hub().Subscribe(db.TopicPoke, string(id))
	if s.release(b); !hears(t, poke) {
		t.Error("the coordinator was not told of the release")
	}
	s.untended(id)
	s.tend(id)
	if got := s.steps(id); got != "a succeeded, b submitted*, c submitted*" {
		t.Errorf("steps are %s", got)
	}
}

// TestTheHoldOfAStepCountsOnce checks that the time for which a blocked step was held counts once, whether
// the release or the success of its needs comes first.
func TestTheHoldOfAStepCountsOnce(t *testing.T) {
	t.Parallel()
	for what, act := range map[string]func(s *stage, id berth.JobID){
		"released first": func(s *stage, id berth.JobID) { s.release(id); s.finish(s.step(id, "a"), 0); s.tend(id) },
		"ready first":    func(s *stage, id berth.JobID) { s.finish(s.step(id, "a"), 0); s.tend(id); s.release(id) },
	} {
		s := newStage(t)
		pipeline := graph(spec.FailFast, "a", "b: a")
		editStep("b", func(j *spec.Job) { j.QueueTimeout = spec.Duration(time.Hour) })(&pipeline)
		id := s.submits("default", pipeline)
		s.hold(id)
		b := s.step(id, "b")
		mustExec(t, s.pool, `UPDATE jobs SET submitted_at = now() - interval '5 hours', held_at = now() - interval '3 hours' WHERE id = $1`, b)
		act(s, id)
		if got := s.steps(id); got != "a succeeded, b submitted*" {
			t.Fatalf("%s: steps are %s", what, got)
		}
		unaged := one[float64](s, `SELECT unaged_ms / 3600000.0::float8 FROM jobs WHERE id = $1`, b)
		left := one[float64](s, `SELECT (extract(epoch FROM queue_deadline - now()) / 3600)::float8 FROM jobs WHERE id = $1`, b)
		if unaged < 5 || unaged > 6 || left > 1 {
			t.Errorf("%s: %.2f hours do not age it, want 5; %.2f are left of its queue_timeout, want 1", what, unaged, left)
		}
	}
}

func TestAnArrayIsAStep(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	pipeline := graph(spec.FailFast, "a", "b: a")
	a := pipeline.Jobs["a"]
	a.Array = &spec.Array{Size: 2}
	pipeline.Jobs["a"] = a
	job, _, err := s.db.Jobs.SubmitPipeline(t.Context(), db.PipelineSubmission{Tenant: "default", Spec: pipeline, Actor: "user:test"})
	if err != nil {
		t.Fatal(err)
	}
	s.tend(job.ID)
	array := s.step(job.ID, "a")
	s.tend(array)
	poke := s.db.Hub().Subscribe(db.TopicPoke, string(job.ID))
	for i := range 2 {
		s.finish(s.element(array, i), 0)
	}
	if s.tend(array); !hears(t, poke) {
		t.Error("the pipeline was not told of its array's end")
	}
	s.tend(job.ID)
	if got := s.steps(job.ID); got != "a succeeded, b submitted*" {
		t.Errorf("steps are %s", got)
	}
	other, _, err := s.db.Jobs.SubmitPipeline(t.Context(), db.PipelineSubmission{Tenant: "default", Spec: pipeline, Actor: "user:test"})
	if err != nil {
		t.Fatal(err)
	}
	s.tend(other.ID)
	s.tend(s.step(other.ID, "a"))
	if got := s.cancel(other.ID); got != berth.Canceled {
		t.Errorf("canceled with its array it is %s: %s", got, s.steps(other.ID))
	}
}

func TestAKeyIsOnePipeline(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	submit := func(p spec.Pipeline) (wire.Job, bool, error) {
		return s.db.Jobs.SubmitPipeline(t.Context(), db.PipelineSubmission{Tenant: "default", Spec: p, Actor: "user:test", IdemKey: "k"})
	}
	first, _, err := submit(graph(spec.FailFast, "a", "b: a"))
	if err != nil {
		t.Fatal(err)
	}
	if again, created, err := submit(graph(spec.FailFast, "a", "b: a")); err != nil || created || again.ID != first.ID {
		t.Errorf("a repeat is %s, created %t, %v", again.ID, created, err)
	}
	if _, _, err := submit(graph(spec.FailFast, "a", "b")); !berth.IsSlug(err, berth.SlugIdempotencyMismatch) {
		t.Errorf("another body: %v", err)
	}
	if n := one[int](s, `SELECT count(*)::int FROM jobs`); n != 3 {
		t.Errorf("there are %d rows", n)
	}
	address := berth.Address("sha256:" + strings.Repeat("a", 64))
	withCode := graph(spec.FailFast, "a")
	editStep("a", func(j *spec.Job) { j.Workdir = string(address) })(&withCode)
	mustExec(t, s.pool, `INSERT INTO uploads (tenant, address, folder, files, bytes) VALUES ('default', $1, 'f', 1, 1)`, address)
	repeat := func() (wire.Job, bool, error) {
		return s.db.Jobs.SubmitPipeline(t.Context(), db.PipelineSubmission{Tenant: "default", Spec: withCode, Actor: "user:test", IdemKey: "code"})
	}
	if first, _, err = repeat(); err != nil {
		t.Fatal(err)
	}
	mustExec(t, s.pool, `DELETE FROM uploads`)
	if again, created, err := repeat(); err != nil || created || again.ID != first.ID {
		t.Errorf("a repeat, whose upload is gone, is %s, created %t, %v", again.ID, created, err)
	}
}
