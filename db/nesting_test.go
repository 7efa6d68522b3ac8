package db_test

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/db/dbtest"
	"berth/db/history"
	"berth/failure"
	"berth/spec"
	"berth/wire"
)

// nested stores a pipeline of steps in the notation of graph. A step that is a key of inner is itself a
// pipeline.
func (s *stage) nested(onFailure string, steps []string, inner map[string]spec.Pipeline) berth.JobID {
	s.t.Helper()
	return s.stores(nesting(onFailure, steps, inner))
}

func (s *stage) stores(p spec.Pipeline) berth.JobID {
	s.t.Helper()
	job, created, err := s.db.Jobs.SubmitPipeline(s.t.Context(), db.PipelineSubmission{Tenant: "default", Spec: p.WithDefaults(), Actor: "user:test"})
	if err != nil || !created {
		s.t.Fatal(created, err)
	}
	return job.ID
}

func nesting(onFailure string, steps []string, inner map[string]spec.Pipeline) spec.Pipeline {
	p := graph(onFailure, steps...)
	for key, in := range inner {
		p.Jobs[key] = spec.Job{Needs: p.Jobs[key].Needs, OnFailure: in.OnFailure, Jobs: in.Jobs}
	}
	return p.WithDefaults()
}

// at returns the step at a dotted path.
func (s *stage) at(pipeline berth.JobID, path string) berth.JobID {
	s.t.Helper()
	for _, step := range strings.Split(path, ".") {
		pipeline = s.step(pipeline, step)
	}
	return pipeline
}

// ends runs the step at a path to its end and reconciles all pipelines around it.
func (s *stage) ends(pipeline berth.JobID, path string, code int) {
	s.t.Helper()
	s.finish(s.at(pipeline, path), code)
	s.looks(pipeline, path)
}

// looks reconciles the pipelines around a step, the innermost first.
func (s *stage) looks(pipeline berth.JobID, path string) {
	s.t.Helper()
	for i := strings.LastIndexByte(path, '.'); i > 0; i = strings.LastIndexByte(path, '.') {
		path = path[:i]
		s.tend(s.at(pipeline, path))
	}
	s.tend(pipeline)
}

// want compares the steps of the pipeline at a path; "" is the outermost pipeline.
func (s *stage) want(pipeline berth.JobID, path, want string) {
	s.t.Helper()
	if path != "" {
		pipeline = s.at(pipeline, path)
	}
	if got := s.steps(pipeline); got != want {
		s.t.Errorf("steps of %q are %s, want %s", path, got, want)
	}
}

func TestANestedPipelineStartsWhenItsNeedsHaveSucceeded(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.nested(spec.FailFast, []string{"prep", "train: prep", "report: train"}, map[string]spec.Pipeline{
		"train": nesting(spec.FailFast, []string{"load", "fit: load"}, map[string]spec.Pipeline{"fit": graph(spec.Continue, "one", "two")}),
	})
	train, fit := s.at(id, "train"), s.at(id, "train.fit")
	if list, err := s.db.Jobs.SubmittedBefore(t.Context(), 0, 10); err != nil || len(list) != 2 { // the outermost and prep
		t.Errorf("the dispatcher starts %v, %v", list, err)
	}
	if n := one[int](s, `SELECT count(*)::int FROM jobs c JOIN jobs p ON p.id = c.parent WHERE c.id <= p.id`); n != 0 {
		t.Errorf("%d steps come before what they are in", n)
	}
	s.tend(id)
	for _, early := range []berth.JobID{train, fit} { // reconciling too early starts nothing
		if r, err := s.db.Parents.Reconcile(t.Context(), early); err != nil || r.State != berth.Submitted || len(r.Ready) > 0 || r.More {
			t.Errorf("looked at before its turn it is %+v, %v", r, err)
		}
	}
	s.want(id, "", "prep submitted*, report submitted, train submitted")
	s.want(id, "train", "fit submitted, load submitted")
	s.finish(s.at(id, "prep"), 0)
	r, err := s.db.Parents.Reconcile(t.Context(), id)
	if err != nil || len(r.Ready) != 1 || r.Ready[0] != (wire.Ready{Job: train, Kind: berth.KindPipeline,
		Name: r.Ready[0].Name}) {
		t.Fatalf("what may start is %+v, %v", r, err)
	}
	s.want(id, "train", "fit submitted, load submitted")
	s.tend(train)
	s.want(id, "train", "fit submitted, load submitted*")

	s.ends(id, "train.load", 0)
	s.tend(fit)
	s.want(id, "train.fit", "one submitted*, two submitted*")
	s.ends(id, "train.fit.one", 0)
	inner := s.db.Hub().Subscribe(db.TopicPoke, string(train))
	s.finish(s.at(id, "train.fit.two"), 0)
	if s.tend(fit); !hears(t, inner) {
		t.Error("the pipeline around was not told of the end")
	}
	s.looks(id, "train.fit")
	s.want(id, "", "prep succeeded, report submitted*, train succeeded")
	s.ends(id, "report", 0)
	j := s.job(id)
	if j.Status != berth.Succeeded || j.Tally.Total != 3 {
		t.Errorf("it is %s, %+v", j.Status, j.Tally)
	}
	for _, step := range j.Steps {
		if nests := step.Name == "train"; nests != (step.Kind == berth.KindPipeline) || nests != (step.Tally != nil) || nests && step.Tally.ByStatus[berth.Succeeded] != 2 {
			t.Errorf("step %s shows as %+v", step.Name, step)
		}
	}
}

func TestAPipelineRunsWhileOnlyWhatIsInItDoes(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.nested(spec.FailFast, []string{"a"}, map[string]spec.Pipeline{"a": nesting(spec.FailFast, []string{"b"}, map[string]spec.Pipeline{"b": graph(spec.FailFast, "c")})})
	a, b := s.at(id, "a"), s.at(id, "a.b")
	for _, p := range []berth.JobID{id, a, b} {
		s.tend(p)
	}
	told := s.db.Hub().Subscribe(db.TopicPoke, string(a))
	s.begins(s.at(id, "a.b.c"))
	for around, p := range []berth.JobID{a, id} {
		if !hears(t, told) {
			t.Errorf("%d around it: the pipeline was not told", around+1)
		}
		told = s.db.Hub().Subscribe(db.TopicPoke, string(id))
		s.tend(p)
	}
	for _, p := range []berth.JobID{id, a, b} {
		if j := s.job(p); j.Status != berth.Running {
			t.Errorf("%s %s is %s", j.Name, j.Step, j.Status)
		}
	}
}

// begins has the leader place a step.
func (s *stage) begins(id berth.JobID) {
	s.t.Helper()
	s.load(id)
	if c := s.commit(s.term(), s.start(id, on("m0"))); len(c.Started) != 1 {
		s.t.Fatalf("it is not placed: %+v", c)
	}
}

// TestEachLevelFailsByItsOwnPolicy checks that on_failure applies to its own level: a nested pipeline that
// fails counts as one failed step of the pipeline around it.
func TestEachLevelFailsByItsOwnPolicy(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ outer, inner, steps, inside, says string }{
		{spec.FailFast, spec.FailFast, "after canceled, other canceled, train failed", "a failed, b canceled, c canceled", "1 of 3 steps failed: train"},
		{spec.Continue, spec.FailFast, "after canceled, other submitted*, train failed", "a failed, b canceled, c canceled", ""},
		{spec.FailFast, spec.Continue, "after submitted, other submitted*, train queued", "a failed, b canceled, c submitted*", ""},
	} {
		s := newStage(t)
		id := s.nested(row.outer, []string{"train", "after: train", "other"}, map[string]spec.Pipeline{"train": graph(row.inner, "a", "b: a", "c")})
		s.tend(id)
		s.tend(s.at(id, "train"))
		s.ends(id, "train.a", 1)
		what := fmt.Sprintf("%s around %s", row.outer, row.inner)
		if got := s.steps(id); got != row.steps && got != strings.Replace(row.steps, "train queued", "train running", 1) {
			t.Errorf("%s: steps are %s, want %s", what, got, row.steps)
		}
		if got := s.steps(s.at(id, "train")); got != row.inside {
			t.Errorf("%s: inside are %s, want %s", what, got, row.inside)
		}
		if r := s.job(s.at(id, "train.b")).Reason; r.Code != berth.ReasonUpstreamFailed {
			t.Errorf("%s: b is canceled because of %+v", what, r)
		}
		if j := s.job(id); row.says != "" && (j.Status != berth.Failed || j.Reason.Message != row.says) {
			t.Errorf("%s: it is %s because of %+v", what, j.Status, j.Reason)
		}
	}
}

// TestAFailureAroundStopsWhatIsInside checks that a failed step of the outer pipeline stops all of a running
// nested pipeline in one transaction.
func TestAFailureAroundStopsWhatIsInside(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.nested(spec.FailFast, []string{"bad", "train", "later: train"}, map[string]spec.Pipeline{
		"train": nesting(spec.Continue, []string{"a", "b", "c: a"}, map[string]spec.Pipeline{"c": graph(spec.FailFast, "x", "y: x")}),
		"later": graph(spec.FailFast, "z"),
	})
	s.tend(id)
	s.tend(s.at(id, "train"))
	attempt := s.place(s.at(id, "train.a"), "m0")
	s.claim(s.at(id, "train.a"), attempt, 0)
	s.run(s.at(id, "train.a"))
	s.finish(s.at(id, "bad"), 1)
	if _, err := s.db.Parents.Reconcile(t.Context(), id); err != nil { // one pass
		t.Fatal(err)
	}
	s.want(id, "", "bad failed, later canceled, train canceling")
	s.want(id, "train", "a canceling, b canceled, c canceled")
	s.want(id, "train.c", "x canceled, y canceled")
	s.want(id, "later", "z canceled")
	s.exit(s.at(id, "train.a"), attempt, 0, failure.Exit{Cause: failure.CauseOrdered, Code: 143, StartedAt: ranAt, FinishedAt: ranAt})
	s.settle(s.at(id, "train.a"), attempt)
	s.looks(id, "train.a")
	s.want(id, "", "bad failed, later canceled, train canceled")
	if j := s.job(id); j.Status != berth.Failed || j.Reason.Message != "1 of 3 steps failed: bad" {
		t.Errorf("it is %s because of %+v", j.Status, j.Reason)
	}
	s.freed()
}

// TestUpstreamFailedReachesEveryDepth checks that a nested pipeline is canceled with all its steps when a
// step that it needs did not succeed.
func TestUpstreamFailedReachesEveryDepth(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.nested(spec.Continue, []string{"bad", "train: bad", "after: train", "other"}, map[string]spec.Pipeline{
		"train": nesting(spec.FailFast, []string{"a", "b: a"}, map[string]spec.Pipeline{"b": graph(spec.FailFast, "x")}),
	})
	s.tend(id)
	s.ends(id, "bad", 1)
	s.want(id, "", "after canceled, bad failed, other submitted*, train canceled")
	s.want(id, "train", "a canceled, b canceled")
	s.want(id, "train.b", "x canceled")
	for path, says := range map[string]string{"train": "step bad failed", "train.b.x": "step bad failed, and train needs it", "after": "step train was canceled"} {
		if r := s.job(s.at(id, path)).Reason; r.Code != berth.ReasonUpstreamFailed || r.Message != says {
			t.Errorf("%s is canceled because of %+v", path, r)
		}
	}
	s.ends(id, "other", 0)
	if j := s.job(id); j.Status != berth.Failed {
		t.Errorf("it is %s", j.Status)
	}
}

func TestCancelReachesEveryDepthInOneTransaction(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	pipeline := nesting(spec.Continue, []string{"train", "later: train", "plain"}, map[string]spec.Pipeline{
		"train": nesting(spec.FailFast, []string{"a", "b", "c: a", "many"}, map[string]spec.Pipeline{"c": graph(spec.FailFast, "x", "y: x")}),
		"later": graph(spec.FailFast, "z"),
	})
	many := pipeline.Jobs["train"].Jobs["many"]
	many.Array = &spec.Array{Size: 3}
	pipeline.Jobs["train"].Jobs["many"] = many
	id := s.stores(pipeline)
	s.tend(id)
	s.tend(s.at(id, "train"))
	s.tend(s.at(id, "train.many"))
	attempt := s.place(s.at(id, "train.a"), "m0")
	s.claim(s.at(id, "train.a"), attempt, 0)
	s.run(s.at(id, "train.a"))
	poke := s.db.Hub().Subscribe(db.TopicPoke, string(s.at(id, "train")))
	if got := s.cancel(id); got != berth.Canceling {
		t.Errorf("it is %s", got)
	}
	if !hears(t, poke) {
		t.Error("the nested pipeline's workflow was not told")
	}
	s.want(id, "", "later canceled, plain canceled, train canceling")
	s.want(id, "train", "a canceling, b canceled, c canceled, many canceled")
	s.want(id, "train.c", "x canceled, y canceled")
	if n := one[int](s, `SELECT count(DISTINCT xid)::int FROM jobs WHERE state = 'canceled' AND array_index IS NULL AND coalesce(step, '') <> 'many' OR id = $1`, id); n != 1 {
		t.Errorf("the rows were written by %d transactions", n)
	}
	s.cancel(id) // a repeated cancel changes nothing
	s.exit(s.at(id, "train.a"), attempt, 0, failure.Exit{Cause: failure.CauseOrdered, Code: 143, StartedAt: ranAt, FinishedAt: ranAt})
	s.settle(s.at(id, "train.a"), attempt)
	s.looks(id, "train.a")
	for _, path := range []string{"train", "train.c"} {
		if j := s.job(s.at(id, path)); j.Status != berth.Canceled || j.Reason.Code != berth.ReasonCanceledByUser {
			t.Errorf("%s is %s because of %+v", path, j.Status, j.Reason)
		}
	}
	if j := s.job(id); j.Status != berth.Canceled {
		t.Errorf("it is %s", j.Status)
	}
	s.freed()
	early := s.stores(pipeline)
	if got := s.cancel(early); got != berth.Canceled || s.steps(s.at(early, "train")) != "a canceled, b canceled, c canceled, many canceled" {
		t.Errorf("canceled before anybody has looked it is %s: %s", got, s.steps(early))
	}
	inner := s.stores(pipeline)
	s.tend(inner)
	if got := s.cancel(s.at(inner, "later")); got != berth.Canceled { // only the nested pipeline, before it may start
		t.Errorf("a nested pipeline that has not begun is %s", got)
	}
	s.want(inner, "later", "z canceled")
}

// TestTheReconcilerGoesOnWithNestedPipelines checks that the reconciler alone completes a start, a hold or a
// cancel that no other process continues.
func TestTheReconcilerGoesOnWithNestedPipelines(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	untended := func() int {
		t.Helper()
		list, err := s.db.Parents.Untended(t.Context(), 0, 10)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range list {
			s.tend(p.ID)
		}
		return len(list)
	}
	inner := map[string]spec.Pipeline{"train": graph(spec.FailFast, "a", "b: a")}
	after := s.nested(spec.FailFast, []string{"prep", "train: prep"}, inner)
	s.tend(after)
	if n := untended(); n != 0 {
		t.Errorf("with nothing to do the reconciler finds %d", n)
	}
	s.finish(s.at(after, "prep"), 0)
	if n := untended(); n != 1 { // the outer pipeline unblocks train; the dispatcher starts train's workflow
		t.Errorf("it finds %d to go on with", n)
	}
	s.cancel(after)
	id := s.nested(spec.FailFast, []string{"train"}, inner)
	train := s.at(id, "train")
	s.tend(id)
	s.tend(train)
	s.begins(s.at(id, "train.a"))
	if n := untended(); n != 1 || s.job(id).Status != berth.Running {
		t.Errorf("it finds %d that run, and the outer is %s", n, s.job(id).Status)
	}
	mustExec(t, s.pool, `UPDATE jobs SET held = true, held_at = now() WHERE id = $1`, id)
	if n := untended(); n != 1 || !s.job(train).Held {
		t.Errorf("it finds %d of a hold", n)
	}
	if n := untended(); n != 1 || !s.job(s.at(id, "train.b")).Held {
		t.Errorf("it finds %d of the hold inside", n)
	}
	// The cancel commits, and then its process dies.
	mustExec(t, s.pool, `UPDATE jobs SET state = 'canceling', version = version + 1, cancel_requested_at = now() WHERE id = ANY($1)`, []string{string(id), string(train)})
	if n := untended(); n != 1 {
		t.Errorf("it finds %d of the cancel", n)
	}
	s.want(id, "train", "a canceling, b canceled")
	if n := untended(); n != 0 {
		t.Errorf("it finds %d more", n)
	}
}

func TestHoldPriorityAndReleaseReachEveryDepth(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.nested(spec.FailFast, []string{"plain", "train"}, map[string]spec.Pipeline{
		"train": nesting(spec.FailFast, []string{"a", "b: a", "c"}, map[string]spec.Pipeline{"b": graph(spec.FailFast, "x")}),
	})
	s.tend(id)
	s.tend(s.at(id, "train"))
	s.begins(s.at(id, "train.c")) // a running pipeline can be held too
	if err := s.db.Jobs.Hold(t.Context(), "default", id, "user:test"); err != nil {
		t.Fatal(err)
	}
	held := func() string {
		return one[string](s, `SELECT coalesce(string_agg(coalesce(step, 'it'), ' ' ORDER BY step), '') FROM jobs WHERE held`)
	}
	if got := held(); got != "a b plain train x it" {
		t.Errorf("held are %s", got)
	}
	high := spec.PriorityHigh
	blue := "blue"
	if err := s.db.Jobs.Update(t.Context(), "default", id, spec.JobPatch{Priority: &high, Labels: map[string]*string{"team": &blue}}, "user:test"); err != nil {
		t.Fatal(err)
	}
	if x := s.job(s.at(id, "train.b.x")); x.Priority != high || x.Labels["team"] != "blue" || *x.Spec.Priority != high {
		t.Errorf("the innermost step is %+v with %+v", x, x.Spec)
	}
	if err := s.db.Jobs.Release(t.Context(), "default", id, "user:test"); err != nil {
		t.Fatal(err)
	}
	if got := held(); got != "" {
		t.Errorf("after the release %s are held", got)
	}
	// A held nested pipeline is unblocked when its turn comes, and its steps stay held.
	if err := s.db.Jobs.Hold(t.Context(), "default", s.at(id, "train.b"), "user:test"); err != nil {
		t.Fatal(err)
	}
	s.ends(id, "train.a", 0)
	s.tend(s.at(id, "train.b"))
	if x := s.job(s.at(id, "train.b.x")); !x.Held {
		t.Error("what is in a held pipeline is not")
	}
}

// TestNothingInsideIsPlacedOfWhatIsHeldAround checks that the leader does not place a step inside a held
// pipeline. The leader checks only the step's parent, since a hold or cancel covers all levels inside.
func TestNothingInsideIsPlacedOfWhatIsHeldAround(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.nested(spec.FailFast, []string{"train"}, map[string]spec.Pipeline{"train": graph(spec.FailFast, "a")})
	s.tend(id)
	s.tend(s.at(id, "train"))
	a := s.at(id, "train.a")
	s.load(a)
	if err := s.db.Jobs.Hold(t.Context(), "default", id, "user:test"); err != nil {
		t.Fatal(err)
	}
	// As if the hold had not reached the step yet.
	mustExec(t, s.pool, `UPDATE jobs SET held = false, held_at = NULL, version = version + 1 WHERE id = $1`, a)
	s.mustRefuse(s.term(), s.start(a, on("m0")), "held")
}

func TestRetryFailedGoesIntoHalfDonePipelines(t *testing.T) {
	t.Parallel()
	for _, archived := range []bool{false, true} {
		s := newStage(t)
		id := s.nested(spec.Continue, []string{"prep", "train: prep", "good", "report: train"}, map[string]spec.Pipeline{
			"train": nesting(spec.FailFast, []string{"a", "b: a", "c: b"}, map[string]spec.Pipeline{"b": graph(spec.Continue, "x", "y", "z: y")}),
			"good":  graph(spec.FailFast, "g"),
		})
		s.tend(id)
		s.ends(id, "prep", 0)
		s.tend(s.at(id, "good"))
		s.ends(id, "good.g", 0)
		s.tend(s.at(id, "train"))
		s.ends(id, "train.a", 0)
		s.tend(s.at(id, "train.b"))
		s.ends(id, "train.b.x", 0)
		s.ends(id, "train.b.y", 1)
		if j := s.job(id); j.Status != berth.Failed {
			t.Fatalf("it is %s", j.Status)
		}
		if archived {
			mustExec(t, s.pool, `UPDATE allocations SET forgotten_at = now()`)
			for _, n := range []int{1, 4, 4, 3} { // from the outside in, one level each
				s.archive(n)
			}
		}
		again, created, err := s.db.Retries.Retry(t.Context(), "default", id, db.RetryOptions{Failed: true}, "user:test")
		if err != nil || !created || *again.RetryOf != id || again.Tally.Total != 2 {
			t.Fatalf("archived %t: %+v, %v", archived, again, err)
		}
		s.tend(again.ID)
		s.want(again.ID, "", "report submitted, train submitted*")
		s.tend(s.at(again.ID, "train"))
		s.want(again.ID, "train", "b submitted*, c submitted")
		s.tend(s.at(again.ID, "train.b"))
		s.want(again.ID, "train.b", "y submitted*, z submitted")
		for _, path := range []string{"train.b.y", "train.b.z", "train.c", "report"} {
			s.ends(again.ID, path, 0)
		}
		if j := s.job(again.ID); j.Status != berth.Succeeded {
			t.Errorf("it is %s because of %+v", j.Status, j.Reason)
		}
	}
}

// TestANestedPipelineIsRetriedByItself checks that the retry of a nested pipeline is a pipeline without a
// parent, which takes the same outputs of the original's siblings.
func TestANestedPipelineIsRetriedByItself(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id, prep := s.handing()
	s.does(s.at(id, "train"), "load", "b", "")
	s.ends(id, "train.fit", 1)
	train := s.at(id, "train")
	again, _, err := s.db.Retries.Retry(t.Context(), "default", train, db.RetryOptions{Failed: true}, "user:test")
	if err != nil || again.Parent != nil || again.Step != "" || again.Tally.Total != 1 {
		t.Fatalf("it is %+v, %v", again, err)
	}
	s.tend(again.ID)
	if got := s.inputs(s.at(again.ID, "fit")); got != s.inputs(s.at(id, "train.fit")) || !strings.Contains(got, string(prep)) {
		t.Errorf("it takes %s", got)
	}
	one, _, err := s.db.Retries.Retry(t.Context(), "default", s.at(id, "train.fit"), db.RetryOptions{}, "user:test")
	if err != nil || s.inputs(one.ID) != s.inputs(s.at(id, "train.fit")) {
		t.Errorf("a step by itself takes %s, %v", s.inputs(one.ID), err)
	}
}

// handing stores a pipeline whose steps take each other's outputs across levels. It completes the first step
// and reconciles the nested pipeline.
func (s *stage) handing() (id, prep berth.JobID) {
	s.t.Helper()
	out := func(p spec.Pipeline, step, name string, from ...string) {
		j := p.Jobs[step]
		j.Outputs = []spec.Output{{Name: name, Path: "/out"}}
		for i, f := range from {
			j.Inputs = append(j.Inputs, spec.Input{From: f, To: fmt.Sprintf("/in%d", i)})
		}
		p.Jobs[step] = j
	}
	inner := graph(spec.FailFast, "load", "fit: load")
	out(inner, "load", "data")
	out(inner, "fit", "model", "job:prep/data", "job:load/data")
	p := nesting(spec.FailFast, []string{"prep", "train: prep", "report: train"}, map[string]spec.Pipeline{"train": inner})
	out(p, "prep", "data")
	out(p, "report", "text", "job:train.fit/model", "job:prep/data")
	id = s.stores(p)
	s.tend(id)
	prep = s.does(id, "prep", "a", "")
	s.tend(s.at(id, "train"))
	return id, prep
}

// inputs returns the source job and name of each output that a job takes, in input order.
func (s *stage) inputs(id berth.JobID) string {
	s.t.Helper()
	return one[string](s, `SELECT coalesce(string_agg(source::text || '/' || name, ' ' ORDER BY input), '') FROM job_inputs WHERE job = $1`, id)
}

func TestOutputsAreHandedAcrossLevels(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id, prep := s.handing()
	load := s.does(s.at(id, "train"), "load", "b", "")
	if got, want := s.inputs(s.at(id, "train.fit")), fmt.Sprintf("%s/data %s/data", prep, load); got != want {
		t.Errorf("fit takes %s, want %s", got, want)
	}
	fit := s.does(s.at(id, "train"), "fit", "c", "")
	s.looks(id, "train.fit")
	if got, want := s.inputs(s.at(id, "report")), fmt.Sprintf("%s/model %s/data", fit, prep); got != want {
		t.Errorf("report takes %s, want %s", got, want)
	}
	if p := s.job(id).Pipeline; p.Jobs["report"].Inputs[0].From != "job:train.fit/model" {
		t.Errorf("the pipeline shows %+v", p.Jobs["report"].Inputs)
	}
}

func TestAKeyIsOnePipelineWithAllInIt(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	submit := func(inner ...string) (wire.Job, bool, error) {
		p := nesting(spec.FailFast, []string{"a", "b: a"}, map[string]spec.Pipeline{"b": graph(spec.FailFast, inner...)})
		return s.db.Jobs.SubmitPipeline(t.Context(), db.PipelineSubmission{Tenant: "default", Spec: p, Actor: "user:test", IdemKey: "k"})
	}
	first, _, err := submit("x", "y: x")
	if err != nil {
		t.Fatal(err)
	}
	if again, created, err := submit("x", "y: x"); err != nil || created || again.ID != first.ID {
		t.Errorf("a repeat is %s, created %t, %v", again.ID, created, err)
	}
	if _, _, err := submit("x", "y"); !berth.IsSlug(err, berth.SlugIdempotencyMismatch) {
		t.Errorf("another body inside: %v", err)
	}
	if n := one[int](s, `SELECT count(*)::int FROM jobs`); n != 5 {
		t.Errorf("there are %d rows", n)
	}
}

// TestWhatIsNestedWaitsOutsideTheQuota checks that max_queued counts the steps that may start, and not the
// blocked steps of a nested pipeline.
func TestWhatIsNestedWaitsOutsideTheQuota(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	mustExec(t, s.pool, `UPDATE tenants SET max_queued = 2 WHERE id = 'default'`)
	id := s.nested(spec.FailFast, []string{"a", "b", "train: a"}, map[string]spec.Pipeline{"train": graph(spec.FailFast, "x", "y", "z")})
	_, _, err := s.db.Jobs.Submit(t.Context(), db.Submission{Tenant: "default", Spec: s.spec(nil), Actor: "user:test"})
	if !berth.IsSlug(err, berth.SlugQuota) {
		t.Errorf("one more: %v", err)
	}
	s.want(id, "train", "x submitted, y submitted, z submitted")
}

// TestWhatIsNestedIsStoredWholeOrNotAtAll checks that an invalid step at any level stores nothing, and that
// the error names the full path of the step.
func TestWhatIsNestedIsStoredWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	inner := graph(spec.FailFast, "fit")
	fit := inner.Jobs["fit"]
	fit.Secrets = []string{"NOBODY"}
	inner.Jobs["fit"] = fit
	_, _, err := s.db.Jobs.SubmitPipeline(t.Context(), db.PipelineSubmission{Tenant: "default", Actor: "user:test",
		Spec: nesting(spec.FailFast, []string{"a", "train"}, map[string]spec.Pipeline{"train": inner})})
	refused, _ := errors.AsType[*berth.Error](err)
	if fields := fieldsOf(refused); len(fields) != 1 || fields[0] != "jobs.train.jobs.fit.secrets[0]" || !strings.Contains(err.Error(), "step train.fit") {
		t.Errorf("refused with %v: %v", fields, err)
	}
	if n := one[int](s, `SELECT count(*)::int FROM jobs`); n != 0 {
		t.Errorf("there are %d rows", n)
	}
}

// TestNestedPipelinesKeepTheLockOrder checks that concurrent cancels, holds, reconciles and commits of the
// leader do not deadlock at any depth: rows are locked from the outside in.
func TestNestedPipelinesKeepTheLockOrder(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	log := &syncBuffer{}
	s.db = dbtest.Open(t, s.pool.Config().ConnString(), db.Options{Logger: slog.New(slog.NewTextHandler(log, nil))})
	term := s.term()
	outermost := map[berth.JobID][]berth.JobID{}
	mustExec(t, s.pool, `UPDATE machines SET cpu_m = 1000000, mem_mb = 1000000`)
	var all sync.WaitGroup
	for range 6 {
		id := s.nested(spec.Continue, []string{"p", "train", "q: train"}, map[string]spec.Pipeline{
			"train": nesting(spec.Continue, []string{"a", "b", "c"}, map[string]spec.Pipeline{"c": graph(spec.Continue, "x", "y")}),
			"q":     graph(spec.FailFast, "z"),
		})
		s.tend(id)
		s.tend(s.at(id, "train"))
		s.tend(s.at(id, "train.c"))
		train, c := s.at(id, "train"), s.at(id, "train.c")
		parents := []berth.JobID{id, train, c}
		outermost[id] = parents
		leaves := []berth.JobID{s.at(id, "p"), s.at(id, "train.a"), s.at(id, "train.b"), s.at(id, "train.c.x"), s.at(id, "train.c.y")}
		var starts []berth.Start
		for _, l := range leaves {
			s.load(l)
			starts = append(starts, s.start(l, on("m0")))
		}
		do := func(f func() error) {
			all.Go(func() {
				if err := f(); err != nil && berth.CodeOf(err) != berth.CodeConflict {
					t.Error(err)
				}
			})
		}
		for _, p := range parents {
			do(func() error { _, err := s.db.Parents.ReconcileThrough(t.Context(), p, new(math.MaxInt)); return err })
			do(func() error { return s.db.Jobs.Hold(t.Context(), "default", p, "user:test") })
			do(func() error { return s.db.Jobs.Release(t.Context(), "default", p, "user:test") })
		}
		do(func() error { _, err := s.db.Queue.CommitStarts(t.Context(), term, starts); return err })
		do(func() error { _, err := s.db.Jobs.RequestCancel(t.Context(), "", c, "user:test", nil); return err })
		do(func() error { _, err := s.db.Jobs.RequestCancel(t.Context(), "", id, "user:test", nil); return err })
	}
	all.Wait()
	for id, parents := range outermost {
		for _, p := range slices.Backward(parents) {
			s.tend(p)
		}
		if got := s.job(id).Status; got != berth.Canceled && got != berth.Canceling {
			t.Errorf("it is %s", got)
		}
	}
	if text := log.String(); strings.Contains(text, "transaction retried") {
		t.Errorf("transactions were tried again:\n%s", text)
	}
}

// TestManyStepsAreStoredAndCanceledTogether checks that a submit and a cancel with more rows than fit into
// one statement use one transaction each.
func TestManyStepsAreStoredAndCanceledTogether(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	names := make([]string, spec.MaxSteps)
	for i := range names {
		names[i] = fmt.Sprintf("s%d", i)
	}
	inner := map[string]spec.Pipeline{}
	for _, name := range names[:manyLevels] {
		inner[name] = graph(spec.FailFast, names...)
	}
	begun := time.Now()
	id := s.nested(spec.FailFast, names, inner)
	t.Logf("stored in %s", time.Since(begun))
	begun = time.Now()
	if got := s.cancel(id); got != berth.Canceled {
		t.Errorf("it is %s", got)
	}
	t.Logf("canceled in %s", time.Since(begun))
	if n := one[int](s, `SELECT count(DISTINCT xid)::int FROM jobs WHERE state = 'canceled'`); n != 1 || one[int](s, `SELECT count(*)::int FROM jobs`) != 1+(manyLevels+1)*len(names) {
		t.Errorf("%d transactions canceled them", n)
	}
}

const manyLevels = 3

// TestTheHistoryOfAStepIsOfAllInIt checks that the checker sees the time in which the jobs inside a nested
// step used capacity.
func TestTheHistoryOfAStepIsOfAllInIt(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.nested(spec.FailFast, []string{"prep", "train: prep"}, map[string]spec.Pipeline{"train": nesting(spec.FailFast, []string{"a"}, map[string]spec.Pipeline{"a": graph(spec.FailFast, "x")})})
	s.tend(id)
	s.ends(id, "prep", 0)
	s.tend(s.at(id, "train"))
	s.tend(s.at(id, "train.a"))
	s.begins(s.at(id, "train.a.x"))
	h, err := db.OpenHistory(t.Context(), s.pool.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Close() })
	families := map[berth.JobID]history.Family{}
	if err := h.Families(t.Context(), time.Time{}, func(f history.Family) error {
		families[f.ID] = f
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if len(families) != 3 {
		t.Errorf("there are %d families", len(families))
	}
	children := families[id].Children
	slices.SortFunc(children, func(a, b history.Child) int { return strings.Compare(a.Step, b.Step) })
	if len(children) != 2 || len(children[0].Spans) != 1 || len(children[1].Spans) != 1 || children[0].Spans[0].Until >= children[1].Spans[0].Taken || children[1].Spans[0].Until != 0 {
		t.Errorf("the steps took room as %+v", children)
	}
}

// TestTheHistoryTellsWhatBlockedStepsWaitFor checks that the checker sees the causes that keep a step
// blocked: holds of the step and of all pipelines around it, with the time of the last change.
func TestTheHistoryTellsWhatBlockedStepsWaitFor(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.nested(spec.FailFast, []string{"train"}, map[string]spec.Pipeline{"train": graph(spec.FailFast, "a", "b: a")})
	s.tend(id)
	train := s.at(id, "train")
	s.tend(train)
	blocked := func() (f history.Family, c history.Child) {
		h, err := db.OpenHistory(t.Context(), s.pool.Config().ConnString())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = h.Close() }()
		if err := h.Families(t.Context(), time.Time{}, func(x history.Family) error {
			if x.ID == train {
				f = x
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return f, f.Children[slices.IndexFunc(f.Children, func(c history.Child) bool { return c.Step == "b" })]
	}
	f, b := blocked()
	if f.Held || b.Held || !b.Blocked || b.UpdatedAt != nil || f.StateAt.IsZero() {
		t.Errorf("before the hold it is %+v of %+v", b, f)
	}
	// Only the outermost pipeline is held.
	mustExec(t, s.pool, `UPDATE jobs SET held = true, held_at = now(), version = version + 1 WHERE id = $1`, id)
	if f, b = blocked(); !f.Held || b.Held {
		t.Errorf("held around it is %+v of %+v", b, f)
	}
	s.release(id)
	s.hold(train)
	s.release(train)
	if f, b = blocked(); f.Held || b.UpdatedAt == nil {
		t.Errorf("after the release it is %+v of %+v", b, f)
	}
}

// TestALookTellsSoManyToStop checks that one reconcile or cancel of a large pipeline stops a bounded number
// of jobs, because it is one step of a workflow. The reconciler stops the rest.
func TestALookTellsSoManyToStop(t *testing.T) {
	t.Parallel()
	for what, stop := range map[string]func(s *stage, id berth.JobID){
		"a look after a failure": func(s *stage, id berth.JobID) {
			s.finish(s.at(id, "bad"), 1)
			if _, err := s.db.Parents.Reconcile(t.Context(), id); err != nil {
				t.Fatal(err)
			}
		},
		"a request": func(s *stage, id berth.JobID) {
			if got := s.cancel(id); got != berth.Canceling {
				t.Errorf("it is %s", got)
			}
		},
	} {
		s := newStage(t)
		const steps, inner = db.FollowUp, 3
		names := make([]string, steps)
		for i := range names {
			names[i] = fmt.Sprintf("s%d", i)
		}
		pipelines := map[string]spec.Pipeline{}
		for i := range inner {
			pipelines[fmt.Sprintf("p%d", i)] = graph(spec.FailFast, names...)
		}
		id := s.nested(spec.FailFast, []string{"bad", "p0", "p1", "p2"}, pipelines)
		s.tend(id)
		for i := range inner {
			s.tend(s.at(id, fmt.Sprintf("p%d", i)))
		}
		for _, state := range []berth.State{berth.Queued, berth.Scheduled, berth.Running} {
			mustExec(t, s.pool, `UPDATE jobs SET state = $1, version = version + 1 WHERE step LIKE 's%'`, state)
		}
		count := func(state berth.State) int {
			return one[int](s, `SELECT count(*)::int FROM jobs WHERE step LIKE 's%' AND state = $1`, state)
		}
		began := time.Now()
		stop(s, id)
		t.Logf("%s took %s for %d of %d jobs", what, time.Since(began), count(berth.Canceling), inner*steps)
		if told := count(berth.Canceling); told == 0 || told > db.FollowUp+50 {
			t.Errorf("%s: %d jobs were told, of %d", what, told, inner*steps)
		}
		if n := one[int](s, `SELECT count(*)::int FROM jobs WHERE kind = 'pipeline' AND state <> 'canceling'`); n != 0 {
			t.Errorf("%s: %d pipelines may start more", what, n)
		}
		list, err := s.db.Parents.Untended(t.Context(), 0, 10)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range list {
			s.tend(p.ID)
		}
		if n := count(berth.Running); n != 0 {
			t.Errorf("%s: %d jobs run on after the reconciler's pass", what, n)
		}
	}
}
