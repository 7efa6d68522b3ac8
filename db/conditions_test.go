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
	"berth/wire"
)

// conditions is graph with conditions: "undo?failure: deploy" has when: failure, and "clean!" is a
// final step.
func conditions(onFailure string, steps ...string) spec.Pipeline {
	p := graph(onFailure)
	for _, s := range steps {
		key, needs, _ := strings.Cut(s, ":")
		key, when, _ := strings.Cut(key, "?")
		name := strings.TrimSuffix(key, "!")
		when = strings.TrimSuffix(when, "!")
		p.Jobs[name] = spec.Job{Image: "busybox", Needs: strings.Fields(needs), When: when, Final: strings.HasSuffix(s, "!")}
	}
	return p.WithDefaults()
}

// wants reconciles the pipeline and compares its steps and its status.
func (s *stage) wants(id berth.JobID, status berth.State, steps string) {
	s.t.Helper()
	s.tend(id)
	if got := s.steps(id); got != steps {
		s.t.Errorf("steps are %s, want %s", got, steps)
	}
	if got := s.job(id).Status; got != status {
		s.t.Errorf("it is %s, want %s", got, status)
	}
	s.untended()
}

func (s *stage) reasonOf(pipeline berth.JobID, step string) string {
	s.t.Helper()
	r := s.job(s.step(pipeline, step)).Reason
	if r == nil {
		return ""
	}
	return string(r.Code) + ": " + r.Message
}

func TestAFailureStartsItsBranchAndCancelsTheOthers(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.stores(conditions(spec.FailFast, "build", "deploy: build", "other", "verify: deploy", "undo?failure: deploy",
		"report: undo", "note?always: build deploy", "clean!"))
	s.wants(id, berth.Queued, "build submitted*, clean submitted, deploy submitted, note submitted, other submitted*, report submitted, undo submitted, verify submitted")
	s.finish(s.step(id, "build"), 0)
	s.tend(id)
	s.finish(s.step(id, "deploy"), 1)
	s.wants(id, berth.Running, "build succeeded, clean submitted, deploy failed, note submitted*, other canceled, report submitted, undo submitted*, verify canceled")
	if got := s.reasonOf(id, "verify"); got != "upstream_failed: step deploy failed" {
		t.Errorf("verify: %s", got)
	}
	if got := s.reasonOf(id, "other"); got != "steps_failed: another step of the pipeline failed" {
		t.Errorf("other: %s", got)
	}
	// A failure inside the branch cancels no other branch.
	s.finish(s.step(id, "undo"), 2)
	s.wants(id, berth.Running, "build succeeded, clean submitted, deploy failed, note submitted*, other canceled, report canceled, undo failed, verify canceled")
	s.finish(s.step(id, "note"), 0)
	s.wants(id, berth.Running, "build succeeded, clean submitted*, deploy failed, note succeeded, other canceled, report canceled, undo failed, verify canceled")
	s.finish(s.step(id, "clean"), 0)
	s.wants(id, berth.Failed, "build succeeded, clean succeeded, deploy failed, note succeeded, other canceled, report canceled, undo failed, verify canceled")
	if j := s.job(id); j.Reason.Message != "2 of 8 steps failed: deploy, undo" {
		t.Errorf("it failed because of %+v", j.Reason)
	}
	steps := map[string]wire.Step{}
	for _, x := range s.job(id).Steps {
		steps[x.Name] = x
	}
	if x := steps["undo"]; x.When != "failure" || x.Final || strings.Join(x.Needs, " ") != "deploy" {
		t.Errorf("undo shows as %+v", x)
	}
	if x := steps["clean"]; x.When != "" || !x.Final {
		t.Errorf("clean shows as %+v", x)
	}
}

func TestASkippedStepIsNoFailure(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.stores(conditions(spec.FailFast, "a", "undo?failure: a", "report: undo", "more?failure: report", "done?always: report", "ok?success!", "bad?failure!", "clean!"))
	s.tend(id)
	s.finish(s.step(id, "a"), 0)
	s.wants(id, berth.Running, "a succeeded, bad submitted, clean submitted, done submitted*, more canceled, ok submitted, report canceled, undo canceled")
	for step, want := range map[string]string{
		"undo":   "skipped: no job that it needs has failed",
		"report": "skipped: step undo was skipped",
		"more":   "skipped: no job that it needs has failed",
	} {
		if got := s.reasonOf(id, step); got != want {
			t.Errorf("%s: %s, want %s", step, got, want)
		}
	}
	s.finish(s.step(id, "done"), 0)
	s.wants(id, berth.Running, "a succeeded, bad canceled, clean submitted*, done succeeded, more canceled, ok submitted*, report canceled, undo canceled")
	s.finish(s.step(id, "ok"), 0)
	s.finish(s.step(id, "clean"), 0)
	s.wants(id, berth.Succeeded, "a succeeded, bad canceled, clean succeeded, done succeeded, more canceled, ok succeeded, report canceled, undo canceled")
}

func TestAFailedFinalStepFailsThePipeline(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.stores(conditions(spec.FailFast, "a", "clean!", "post!"))
	s.tend(id)
	s.finish(s.step(id, "a"), 0)
	s.tend(id)
	s.finish(s.step(id, "clean"), 1)
	s.wants(id, berth.Running, "a succeeded, clean failed, post submitted*")
	s.finish(s.step(id, "post"), 0)
	s.wants(id, berth.Failed, "a succeeded, clean failed, post succeeded")
}

func TestTheFinalStepRunsAfterACancel(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.stores(conditions(spec.FailFast, "a", "b: a", "undo?failure: a", "bad?failure!", "good?success!", "clean!"))
	s.tend(id)
	attempt := s.place(s.step(id, "a"), "m0")
	s.claim(s.step(id, "a"), attempt, 0)
	s.run(s.step(id, "a"))
	s.tend(id)
	if got := s.cancel(id); got != berth.Running {
		t.Errorf("it is %s", got)
	}
	s.wants(id, berth.Running, "a canceling, b canceled, bad submitted, clean submitted, good submitted, undo canceled")
	version := one[int](s, `SELECT version FROM jobs WHERE id = $1`, id)
	if got := s.cancel(id); got != berth.Running || one[int](s, `SELECT version FROM jobs WHERE id = $1`, id) != version {
		t.Errorf("canceled again it is %s", got)
	}
	s.exit(s.step(id, "a"), attempt, 0, failure.Exit{Cause: failure.CauseOrdered, Code: 143, StartedAt: ranAt, FinishedAt: ranAt})
	s.settle(s.step(id, "a"), attempt)
	s.wants(id, berth.Running, "a canceled, b canceled, bad submitted*, clean submitted*, good canceled, undo canceled")
	s.finish(s.step(id, "clean"), 0)
	s.finish(s.step(id, "bad"), 0)
	s.wants(id, berth.Canceled, "a canceled, b canceled, bad succeeded, clean succeeded, good canceled, undo canceled")
	if r := s.job(id).Reason; r == nil || r.Code != berth.ReasonCanceledByUser {
		t.Errorf("it was canceled because of %+v", r)
	}
	early := s.stores(conditions(spec.FailFast, "a", "clean!"))
	if got := s.cancel(early); got != berth.Canceled || s.steps(early) != "a canceled, clean canceled" {
		t.Errorf("canceled before it began it is %s: %s", got, s.steps(early))
	}
}

func TestACancelNowReachesFinalSteps(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	p := conditions(spec.FailFast, "a", "clean!", "inner")
	p.Jobs["inner"] = spec.Job{Name: "inner", Jobs: conditions(spec.FailFast, "x", "tidy!").Jobs, OnFailure: spec.FailFast}
	id := s.stores(p)
	s.tend(id)
	s.tend(s.step(id, "inner"))
	s.cancel(id)
	s.want(id, "inner", "tidy submitted*, x canceled") // its own final step runs; the cancel has reconciled it
	s.wants(id, berth.Queued, "a canceled, clean submitted, inner queued")
	if got, err := s.db.Parents.CancelNow(t.Context(), "", id, "user:test", nil); err != nil || got != berth.Canceled {
		t.Errorf("it is %s, %v", got, err)
	}
	s.wants(id, berth.Canceled, "a canceled, clean canceled, inner canceled")
	s.want(id, "inner", "tidy canceled, x canceled")
}

// A pipeline that stops after a failure has failed. A cancel that also reaches the final steps of a
// nested pipeline changes nothing about that.
func TestACancelNowLeavesAFailureAFailure(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	p := conditions(spec.FailFast, "a", "inner")
	p.Jobs["inner"] = spec.Job{Name: "inner", Jobs: conditions(spec.FailFast, "x", "tidy!").Jobs, OnFailure: spec.FailFast}
	id := s.stores(p.WithDefaults())
	s.tend(id)
	inner := s.step(id, "inner")
	s.tend(inner)
	s.ends(id, "inner.x", 0)
	s.tend(inner)
	s.finish(s.step(id, "a"), 1)
	s.tend(id)
	s.tend(inner)
	s.want(id, "", "a failed, inner running")
	s.want(id, "inner", "tidy submitted*, x succeeded")
	for range 2 {
		if _, err := s.db.Parents.CancelNow(t.Context(), "", id, "user:test", nil); err != nil {
			t.Fatal(err)
		}
	}
	s.want(id, "inner", "tidy canceled, x succeeded")
	s.wants(id, berth.Failed, "a failed, inner canceled")
	if r := s.job(id).Reason; r == nil || r.Code != berth.ReasonStepsFailed {
		t.Errorf("it failed because of %+v", r)
	}
}

// When the outer pipeline fails, the final steps of a nested pipeline run only if the nested pipeline
// had begun.
func TestNestedPipelinesRunTheirOwnFinalSteps(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	p := conditions(spec.FailFast, "a", "began", "later: a", "undo?failure: a")
	for name, needs := range map[string][]string{"began": nil, "later": {"a"}} {
		p.Jobs[name] = spec.Job{Needs: needs, Jobs: conditions(spec.FailFast, "x", "tidy!").Jobs}
	}
	p.Jobs["undo"] = spec.Job{Needs: []string{"a"}, When: spec.WhenFailure, Jobs: graph(spec.FailFast, "back", "check: back").Jobs}
	id := s.stores(p.WithDefaults())
	s.tend(id)
	s.tend(s.step(id, "began"))
	s.finish(s.at(id, "began.x"), 0)
	s.tend(s.step(id, "began"))
	s.finish(s.step(id, "a"), 1)
	s.tend(id)
	s.want(id, "", "a failed, began running, later canceled, undo submitted*")
	s.want(id, "began", "tidy submitted*, x succeeded")
	s.want(id, "later", "tidy canceled, x canceled")
	s.want(id, "undo", "back submitted, check submitted")
	s.tend(s.step(id, "undo"))
	s.ends(id, "undo.back", 0)
	s.ends(id, "undo.check", 0)
	s.ends(id, "began.tidy", 0)
	s.wants(id, berth.Failed, "a failed, began succeeded, later canceled, undo succeeded")
}

func TestASkippedNestedPipelineEndsWithItsContents(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	p := conditions(spec.FailFast, "a", "undo?failure: a")
	p.Jobs["undo"] = spec.Job{Needs: []string{"a"}, When: spec.WhenFailure, Jobs: conditions(spec.FailFast, "back", "tidy!").Jobs}
	id := s.stores(p.WithDefaults())
	s.tend(id)
	s.finish(s.step(id, "a"), 0)
	s.wants(id, berth.Succeeded, "a succeeded, undo canceled")
	s.want(id, "undo", "back canceled, tidy canceled")
	if got := s.reasonOf(s.step(id, "undo"), "back"); got != "skipped: undo was skipped: no job that it needs has failed" {
		t.Errorf("inside: %s", got)
	}
}

func TestAHeldPipelineRunsItsFinalStepsAfterTheRelease(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.stores(conditions(spec.FailFast, "a", "clean!"))
	s.tend(id)
	s.hold(id)
	s.cancel(id)
	s.wants(id, berth.Queued, "a canceled, clean submitted")
	s.release(id)
	s.wants(id, berth.Queued, "a canceled, clean submitted*")
	s.finish(s.step(id, "clean"), 0)
	s.wants(id, berth.Canceled, "a canceled, clean succeeded")
}

func TestRetryOfFailedStepsKeepsTheirBranches(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.stores(conditions(spec.FailFast, "build", "deploy: build", "undo?failure: build deploy", "report: undo", "fix?failure: build", "clean!"))
	s.tend(id)
	s.finish(s.step(id, "build"), 0)
	s.tend(id)
	s.finish(s.step(id, "deploy"), 1)
	for _, step := range []string{"undo", "report", "clean"} {
		s.tend(id)
		s.finish(s.step(id, step), 0)
	}
	s.wants(id, berth.Failed, "build succeeded, clean succeeded, deploy failed, fix canceled, report succeeded, undo succeeded")
	again, _, err := s.db.Retries.Retry(t.Context(), "default", id, db.RetryOptions{Failed: true}, "user:test")
	if err != nil {
		t.Fatal(err)
	}
	s.wants(again.ID, berth.Queued, "clean submitted, deploy submitted*, report submitted, undo submitted")
	s.finish(s.step(again.ID, "deploy"), 0)
	s.wants(again.ID, berth.Running, "clean submitted*, deploy succeeded, report canceled, undo canceled")
	s.finish(s.step(again.ID, "clean"), 0)
	s.wants(again.ID, berth.Succeeded, "clean succeeded, deploy succeeded, report canceled, undo canceled")
	if _, _, err := s.db.Retries.Retry(t.Context(), "default", again.ID, db.RetryOptions{Failed: true}, "user:test"); berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("a retry of nothing: %v", err)
	}
	// A failed step that is retried alone is a job without a pipeline.
	alone, _, err := s.db.Retries.Retry(t.Context(), "default", s.step(id, "undo"), db.RetryOptions{}, "user:test")
	if err != nil || alone.Parent != nil || alone.Status != berth.Submitted {
		t.Errorf("%+v, %v", alone, err)
	}
	s.finish(alone.ID, 0)
}

func TestAResumeDecidesConditionsAgain(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	file := func(edit func(*spec.Job)) spec.Pipeline {
		p := conditions(spec.Continue, "build", "undo?failure: build", "after: undo", "note?always: build undo", "deploy: build", "clean!")
		p.Jobs["inner"] = spec.Job{Jobs: conditions(spec.FailFast, "x", "y?failure: x", "tidy!").Jobs}
		deploy := p.Jobs["deploy"]
		edit(&deploy)
		p.Jobs["deploy"] = deploy
		return p.WithDefaults()
	}
	id := s.stores(file(func(*spec.Job) {}))
	s.tend(id)
	s.tend(s.step(id, "inner"))
	s.ends(id, "inner.x", 0)
	s.ends(id, "inner.tidy", 0)
	s.finish(s.step(id, "build"), 0)
	s.tend(id)
	s.finish(s.step(id, "note"), 0)
	s.finish(s.step(id, "deploy"), 1)
	s.tend(id)
	s.finish(s.step(id, "clean"), 0)
	s.wants(id, berth.Failed, "after canceled, build succeeded, clean succeeded, deploy failed, inner succeeded, note succeeded, undo canceled")
	job, err := s.resume(id, file(func(j *spec.Job) { j.Command = []string{"true"} }))
	if err != nil {
		t.Fatal(err)
	}
	s.wants(job.ID, berth.Running, "after canceled, build succeeded, clean submitted, deploy submitted*, inner succeeded, note succeeded, undo canceled")
	s.want(job.ID, "inner", "tidy succeeded, x succeeded, y canceled")
	s.finish(s.step(job.ID, "deploy"), 0)
	s.tend(job.ID)
	s.finish(s.step(job.ID, "clean"), 0)
	s.wants(job.ID, berth.Succeeded, "after canceled, build succeeded, clean succeeded, deploy succeeded, inner succeeded, note succeeded, undo canceled")
	if _, err := s.resume(job.ID, file(func(j *spec.Job) { j.Command = []string{"true"} })); berth.CodeOf(err) != berth.CodeConflict || !strings.Contains(err.Error(), "nothing to run") {
		t.Errorf("a resume of nothing: %v", err)
	}
}

// TestTheLastNeedsEndAtOnce checks that two needs which end at the same time, with passes of many
// replicas, start the failure step once, and that no pass skips it.
func TestTheLastNeedsEndAtOnce(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.stores(conditions(spec.Continue, "a", "b", "undo?failure: a b", "clean!"))
	s.tend(id)
	ends := map[berth.JobID]int{s.step(id, "a"): 0, s.step(id, "b"): 1}
	attempts := map[berth.JobID]int{}
	for step, code := range ends {
		attempts[step] = s.place(step, "m0")
		s.claim(step, attempts[step], 0)
		s.run(step)
		s.exit(step, attempts[step], 0, exited(code))
	}
	var group sync.WaitGroup
	for step := range ends {
		group.Go(func() {
			if _, err := s.db.Attempts.Settle(t.Context(), step, attempts[step]); err != nil {
				t.Error(err)
			}
			for range 4 {
				group.Go(func() {
					if _, err := s.db.Parents.Reconcile(context.WithoutCancel(t.Context()), id); err != nil {
						t.Error(err)
					}
				})
			}
		})
	}
	group.Wait()
	s.wants(id, berth.Running, "a succeeded, b failed, clean submitted, undo submitted*")
}

// The statements of the version before migration 0049 that judge blocked steps.
const (
	oldHopeless = `
		SELECT count(*)::text
		FROM jobs j
		WHERE j.parent = @id AND j.state = 'submitted' AND j.blocked AND EXISTS (
			SELECT 1
			FROM deps d
			JOIN jobs n ON n.id = d.needs
			WHERE d.job = j.id AND n.state IN ('failed', 'canceled'))`
	oldUnblockable = `
		SELECT count(*)::text
		FROM jobs j
		WHERE j.parent = @id AND j.state = 'submitted' AND j.blocked AND NOT j.held AND NOT EXISTS (
			SELECT 1
			FROM deps d
			JOIN jobs n ON n.id = d.needs
			WHERE d.job = j.id AND n.state <> 'succeeded')`
	oldOverdrawn = `
		SELECT count(*)::text
		FROM jobs p
		WHERE p.id = @id AND p.max_failures < (SELECT count(*) FROM jobs c WHERE c.parent = p.id AND c.state = 'failed')`
)

// TestTheVersionBeforeLeavesConditionsAlone checks that a replica of that version neither starts nor
// cancels a conditional step, does not stop its pipeline after a failure, and cannot fail a pipeline with
// skipped steps.
func TestTheVersionBeforeLeavesConditionsAlone(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	old := func(id berth.JobID) {
		t.Helper()
		for what, sql := range map[string]string{"cancel": oldHopeless, "start": oldUnblockable, "stop": oldOverdrawn} {
			if n := oldText(s, sql, id); n != "0" {
				t.Errorf("the version before would %s %s", what, n)
			}
		}
	}
	id := s.stores(conditions(spec.FailFast, "a", "undo?failure: a", "note?always: a", "clean!"))
	old(id)
	s.tend(id)
	s.finish(s.step(id, "a"), 1)
	old(id)
	s.wants(id, berth.Running, "a failed, clean submitted, note submitted*, undo submitted*")
	id = s.stores(conditions(spec.FailFast, "a", "undo?failure: a", "clean!"))
	s.tend(id)
	s.finish(s.step(id, "a"), 0)
	old(id)
	s.wants(id, berth.Running, "a succeeded, clean submitted*, undo canceled")
	s.finish(s.step(id, "clean"), 0)
	refuses(t, s.pool, "BT004", `UPDATE jobs SET state = 'failed', version = version + 1 WHERE id = $1`, id)
	s.wants(id, berth.Succeeded, "a succeeded, clean succeeded, undo canceled")
}

func oldText(s *stage, sql string, id berth.JobID) (value string) {
	s.t.Helper()
	if err := s.pool.QueryRow(s.t.Context(), sql, pgx.NamedArgs{"id": id}).Scan(&value); err != nil {
		s.t.Fatal(err)
	}
	return value
}
