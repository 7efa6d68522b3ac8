package db_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/db"
	"berth/failure"
	"berth/spec"
)

// after makes a job wait for others under a condition.
func after(when string, jobs ...berth.JobID) func(*spec.Job) {
	return func(j *spec.Job) {
		j.When = when
		for _, id := range jobs {
			j.Needs = append(j.Needs, spec.NeedOf(id))
		}
	}
}

// waits compares a job's status; a star marks a submitted job that may start, and a reason
// follows in brackets.
func (s *stage) waits(id berth.JobID, want string) {
	s.t.Helper()
	j := s.job(id)
	got := string(j.Status)
	if got == "submitted" && !one[bool](s, `SELECT blocked FROM jobs WHERE id = $1`, id) {
		got += "*"
	}
	if j.Reason != nil {
		got += " (" + string(j.Reason.Code) + ": " + j.Reason.Message + ")"
	}
	if got != want {
		s.t.Errorf("job %s is %s, want %s", id, got, want)
	}
}

func (s *stage) judges(want int) {
	s.t.Helper()
	if n, err := s.db.Parents.JudgeDependents(s.t.Context(), 100); n != want || err != nil {
		s.t.Errorf("the reconciler judged %d dependents, %v; want %d", n, err, want)
	}
}

func TestAJobWaitsForOthers(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, b := s.submit(nil), s.submit(nil)
	ok, failed, always := s.submit(after("", a, b)), s.submit(after(spec.WhenFailure, a, b)), s.submit(after(spec.WhenAlways, a, b))
	for _, id := range []berth.JobID{ok, failed, always} {
		s.waits(id, "submitted")
	}
	if list, err := s.db.Jobs.SubmittedBefore(t.Context(), 0, 10); err != nil || len(list) != 2 {
		t.Errorf("the dispatcher starts %v, %v", list, err)
	}
	s.finish(a, 0)
	s.waits(ok, "submitted")
	start := s.db.Hub().Subscribe(db.TopicSubmit, string(ok))
	s.finish(b, 0)
	if !hears(t, start) {
		t.Error("the dispatcher has no hint")
	}
	s.waits(ok, "submitted*")
	s.waits(always, "submitted*")
	s.waits(failed, "canceled (skipped: no job that it needs has failed)")
	s.judges(0)
	s.finish(ok, 0)
	if j := s.job(ok); j.Status != berth.Succeeded {
		t.Errorf("it is %s", j.Status)
	}
}

func TestAFailureCascades(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, b := s.submit(nil), s.submit(nil)
	first := s.submit(after("", a, b))
	second := s.submit(after("", first))
	undo := s.submit(after(spec.WhenFailure, first))
	s.finish(a, 1)
	s.waits(first, "canceled (upstream_failed: job "+short(a)+" failed)")
	s.waits(second, "canceled (upstream_failed: job "+short(first)+" was canceled)")
	s.waits(undo, "submitted*")
	// An ended job is judged at the submit, also a canceled one.
	s.waits(s.submit(after("", a)), "canceled (upstream_failed: job "+short(a)+" failed)")
	s.waits(s.submit(after(spec.WhenFailure, first)), "submitted*")
	s.waits(s.submit(after(spec.WhenAlways, a, b)), "submitted")
	third := s.submit(after("", undo, b))
	s.cancel(b)
	s.waits(third, "canceled (upstream_failed: job "+short(b)+" was canceled)")
	s.judges(0)
}

func TestNeedsOfEveryKind(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	array := s.array(2, nil)
	pipeline := s.stores(graph(spec.FailFast, "x"))
	gang := s.submit(func(j *spec.Job) { j.Members = 2 })
	waitingArray := s.array(2, after("", array))
	file := graph(spec.FailFast, "p", "q: p")
	file.Needs = []string{spec.NeedOf(waitingArray), spec.NeedOf(gang)}
	waitingPipeline := s.stores(file)
	waitingGang := s.submit(func(j *spec.Job) { j.Members = 2; after(spec.WhenFailure, pipeline)(j) })
	step := s.submit(after("", s.step(waitingPipeline, "q")))
	for _, id := range []berth.JobID{waitingArray, waitingPipeline} {
		if got := s.tend(id); got != berth.Submitted {
			t.Errorf("a pass before the needs have ended: %s", got)
		}
	}
	if got := s.steps(waitingPipeline); got != "p submitted, q submitted" {
		t.Errorf("steps are %s", got)
	}
	s.tend(array)
	s.finish(s.element(array, 0), 0)
	s.finish(s.element(array, 1), 0)
	s.tend(array)
	s.waits(waitingArray, "submitted*")
	s.tend(waitingArray)
	s.finish(s.element(waitingArray, 0), 0)
	s.finish(s.element(waitingArray, 1), 1)
	s.waits(waitingPipeline, "submitted")
	s.tend(waitingArray)
	s.waits(waitingPipeline, "canceled (upstream_failed: job "+short(waitingArray)+" failed)")
	if got := s.steps(waitingPipeline); got != "p canceled, q canceled" {
		t.Errorf("steps are %s", got)
	}
	s.judges(0) // the one that needs a step was judged with its end
	s.waits(step, "canceled (upstream_failed: job "+short(s.step(waitingPipeline, "q"))+" was canceled)")
	s.tend(pipeline)
	s.finish(s.step(pipeline, "x"), 1)
	s.waits(waitingGang, "submitted")
	s.tend(pipeline)
	s.waits(waitingGang, "submitted*")

	again := graph(spec.FailFast, "p", "q: p")
	again.Needs, again.When = []string{spec.NeedOf(pipeline)}, spec.WhenFailure
	id := s.stores(again)
	s.waits(id, "submitted*")
	s.wants(id, berth.Queued, "p submitted*, q submitted")
}

func TestAWaitingJobIsCanceledAndHeldLikeAnother(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a := s.submit(nil)
	canceled, held, gone := s.submit(after("", a)), s.submit(after("", a)), s.submit(after("", a))
	if got := s.cancel(canceled); got != berth.Canceled {
		t.Errorf("it is %s", got)
	}
	s.hold(held)
	s.finish(a, 0)
	s.waits(held, "submitted")
	s.waits(gone, "submitted*")
	s.judges(0)
	s.release(held)
	s.waits(held, "submitted*")
	// The end of a job that others still wait for stays until they are judged.
	b := s.ended()
	mustExec(t, s.pool, `UPDATE allocations SET forgotten_at = now()`)
	waiting := s.submit(after("", b))
	mustExec(t, s.pool, `UPDATE jobs SET held = true, held_at = now(), blocked = true WHERE id = $1`, waiting)
	s.archive(2) // a and the job that was canceled
	s.release(waiting)
	s.waits(waiting, "submitted*")
	s.archive(1)
	s.waits(s.submit(after("", b)), "submitted*")
	s.waits(s.submit(after(spec.WhenFailure, b)), "canceled (skipped: no job that it needs has failed)")
	s.waits(s.submit(after("", canceled)), "canceled (upstream_failed: job "+short(canceled)+" was canceled)")
}

func TestUnknownAndForeignNeedsAreAlike(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	mustExec(t, s.pool, `INSERT INTO tenants (id) VALUES ('other') ON CONFLICT DO NOTHING`)
	foreign, _, err := s.db.Jobs.Submit(t.Context(), db.Submission{Tenant: "other", Spec: s.spec(nil), Actor: "user:test"})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []berth.JobID{foreign.ID, "0190b5a0-0000-7000-8000-000000000000"} {
		for range 2 {
			_, _, err := s.db.Jobs.Submit(t.Context(), db.Submission{Tenant: "default", Spec: s.spec(after("", id)), Actor: "user:test", IdemKey: "k"})
			if berth.CodeOf(err) != berth.CodeNotFound || !berth.IsSlug(err, db.SlugNoJob) || !strings.Contains(err.Error(), string(id)) {
				t.Errorf("%s: %v", id, err)
			}
		}
		file := graph(spec.FailFast, "p")
		file.Needs = []string{spec.NeedOf(id)}
		if _, _, err := s.db.Jobs.SubmitPipeline(t.Context(), db.PipelineSubmission{Tenant: "default", Spec: file, Actor: "user:test", IdemKey: "k"}); !berth.IsSlug(err, db.SlugNoJob) {
			t.Errorf("a pipeline that needs %s: %v", id, err)
		}
	}
	if n := one[int](s, `SELECT count(*)::int FROM jobs WHERE tenant = 'default'`); n != 0 {
		t.Errorf("%d jobs are stored", n)
	}
}

func TestARetryDoesNotWaitAgain(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a := s.submit(nil)
	file := graph(spec.FailFast, "p")
	file.Needs = []string{spec.NeedOf(a)}
	for _, id := range []berth.JobID{s.submit(after("", a)), s.stores(file)} {
		if s.job(a).Status != berth.Failed {
			s.finish(a, 1)
		}
		again, _, err := s.db.Retries.Retry(t.Context(), "default", id, db.RetryOptions{}, "user:test")
		if err != nil {
			t.Fatal(err)
		}
		s.waits(again.ID, "submitted*")
	}
}

// A job may read an output of a job that it waits for. It is bound when that job has succeeded.
func TestAnOutputOfANeededJobIsBoundAtTheStart(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a := s.submit(func(j *spec.Job) { j.Outputs = []spec.Output{{Name: "model", Path: "/out"}} })
	both := func(name string) func(*spec.Job) {
		return func(j *spec.Job) { after("", a)(j); takes(a, name)(j) }
	}
	if _, _, err := s.db.Jobs.Submit(t.Context(), db.Submission{Tenant: "default", Spec: s.spec(both("other")), Actor: "user:test"}); !berth.IsSlug(err, berth.SlugInvalidSpec) || !strings.Contains(err.Error(), "other") {
		t.Errorf("an output that is not declared: %v", err)
	}
	reader := s.submit(both("model"))
	if n := one[int](s, `SELECT count(*)::int FROM job_inputs WHERE job = $1`, reader); n != 0 {
		t.Errorf("%d inputs are bound", n)
	}
	s.leaves(a, 1, 0, "model", "1")
	s.finish(a, 0)
	s.waits(reader, "submitted*")
	if n := one[int](s, `SELECT count(*)::int FROM job_inputs WHERE job = $1 AND source = $2`, reader, a); n != 1 {
		t.Errorf("%d inputs are bound", n)
	}
}

// TestAnEndAndASubmitAtOnce checks that a dependent which is submitted while its need ends is judged
// without the reconciler, whichever commits first.
func TestAnEndAndASubmitAtOnce(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for i := range 8 {
		a := s.submit(nil)
		attempt := s.place(a, "m0")
		s.claim(a, attempt, 0)
		s.run(a)
		s.exit(a, attempt, 0, exited(i%2))
		var group sync.WaitGroup
		var dependent berth.JobID
		group.Go(func() {
			if _, err := s.db.Attempts.Settle(context.WithoutCancel(t.Context()), a, attempt); err != nil {
				t.Error(err)
			}
		})
		group.Go(func() {
			job, _, err := s.db.Jobs.Submit(context.WithoutCancel(t.Context()), db.Submission{Tenant: "default", Spec: s.spec(after("", a)), Actor: "user:test"})
			if err != nil {
				t.Error(err)
			}
			dependent = job.ID
		})
		group.Wait()
		want := "submitted*"
		if i%2 == 1 {
			want = "canceled (upstream_failed: job " + short(a) + " failed)"
		}
		s.waits(dependent, want)
	}
}

// TestASubmitWaitsForTheEndThatItsNeedIsIn checks that a submit which finds its need being settled waits for the
// commit, and then judges the end: the settlement has not seen the new job.
func TestASubmitWaitsForTheEndThatItsNeedIsIn(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a := s.submit(nil)
	attempt := s.place(a, "m0")
	s.claim(a, attempt, 0)
	s.run(a)
	done := make(chan berth.JobID, 1)
	if err := pgx.BeginFunc(t.Context(), s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `UPDATE jobs SET state = 'failed', version = version + 1 WHERE id = $1`, a); err != nil {
			return err
		}
		go func() {
			job, _, err := s.db.Jobs.Submit(context.WithoutCancel(t.Context()), db.Submission{Tenant: "default", Spec: s.spec(after("", a)), Actor: "user:test"})
			if err != nil {
				t.Error(err)
			}
			done <- job.ID
		}()
		s.blocked(1)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	s.waits(<-done, "canceled (upstream_failed: job "+short(a)+" failed)")
}

// The reconciler judges a dependent where the process that ended its need died before it could.
func TestALostHintOfAnEndIsRepaired(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a := s.submit(nil)
	waiting := s.submit(after("", a))
	attempt := s.place(a, "m0")
	s.claim(a, attempt, 0)
	s.run(a)
	s.exit(a, attempt, 0, failure.Exit{Code: 0, StartedAt: ranAt, FinishedAt: ranAt})
	mustExec(t, s.pool, `UPDATE jobs SET state = 'succeeded', version = version + 1 WHERE id = $1`, a)
	s.waits(waiting, "submitted")
	s.judges(1)
	s.waits(waiting, "submitted*")
	s.judges(0)
}

// TestTheEndOfAJobJudgesAFewAndTheLeaderTheRest bounds the work inside a settlement, also for jobs
// that end because of it.
func TestTheEndOfAJobJudgesAFewAndTheLeaderTheRest(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	needed, chain := s.submit(nil), s.submit(nil)
	first := s.submit(after("", chain))
	for range 120 {
		s.submit(after("", needed))
		s.submit(after("", first))
	}
	blocked := func() int { return one[int](s, `SELECT count(*) FROM jobs WHERE state = 'submitted' AND blocked`) }
	s.finish(needed, 0)
	if n := blocked(); n != 1+20+120 {
		t.Errorf("%d jobs still wait", n)
	}
	s.finish(chain, 1) // first is canceled, and 99 of its dependents
	if n := blocked(); n != 20+21 {
		t.Errorf("after a failure %d jobs still wait", n)
	}
	s.judges(41)
	s.judges(0)
	if n := blocked(); n != 0 {
		t.Errorf("%d jobs wait for nothing", n)
	}
}

// short is the reference to a job in a stored reason.
func short(id berth.JobID) string { return strings.TrimLeft(string(id)[len(id)-12:], "0") }
