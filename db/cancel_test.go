package db_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/db"
	"berth/failure"
	"berth/spec"
	"berth/wire"
)

func TestCancelOfAWaitingJobIsImmediate(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	submitted := s.submit(nil)
	queued := s.submit(nil)
	s.load(queued)
	retrying, attempt := s.started(nil)
	s.orphan(retrying, attempt, 0)
	s.settle(retrying, attempt)
	for _, id := range []berth.JobID{submitted, queued, retrying} {
		if got := s.cancel(id); got != berth.Canceled {
			t.Errorf("state after it is %s", got)
		}
		if got := s.cancel(id); got != berth.Canceled {
			t.Errorf("state after a second one is %s", got)
		}
		j := s.job(id)
		if e := lastEvent(s, id); j.Status != berth.Canceled || e.To != berth.Canceled || e.Actor != "user:test" || e.Reason.Code != berth.ReasonCanceledByUser {
			t.Errorf("job is %s, last event %+v", j.Status, e)
		}
	}
}

func TestCancelOfARunningJobStopsItsMachines(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.submit(func(j *spec.Job) { j.Members = 3 })
	attempt := s.place(id, "m0", "m1", "m2")
	s.claim(id, attempt, 0, 1)
	s.exit(id, attempt, 1, exited(1))
	machine := s.db.Hub().Subscribe(db.TopicMachine, "m0")
	why := &berth.Reason{Code: berth.ReasonUpstreamFailed, Message: "a step before it failed"}
	state, err := s.db.Jobs.RequestCancel(t.Context(), "default", id, "workflow", why)
	if err != nil || state != berth.Canceling {
		t.Fatalf("got %s, %v", state, err)
	}
	if !hears(t, machine) {
		t.Error("the machine was not told")
	}
	want := []string{`active {"stop": true, "grace_ms": 30000}`, `exited {}`, `released {"forget": true}`}
	if diff := cmp.Diff(want, s.ranks(id, attempt)); diff != "" {
		t.Errorf("ranks (-want +got):\n%s", diff)
	}
	if v := s.load(id); v.StopBy.IsZero() || !v.CancelSeen {
		t.Errorf("view is %+v", v)
	}
	s.exit(id, attempt, 0, failure.Exit{Cause: failure.CauseOrdered, Code: 143, StartedAt: ranAt, FinishedAt: ranAt})
	s.settle(id, attempt)
	if j := s.job(id); j.Status != berth.Canceled || j.Reason.Code != berth.ReasonUpstreamFailed {
		t.Errorf("job is %s because of %+v", j.Status, j.Reason)
	}
	s.freed()
}

func TestCancelOfAForeignJobIsNotFound(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.submit(nil)
	if _, err := s.db.Jobs.RequestCancel(t.Context(), "other", id, "user:test", nil); berth.CodeOf(err) != berth.CodeNotFound {
		t.Errorf("got %v", err)
	}
	if j := s.job(id); j.Status != berth.Submitted {
		t.Errorf("job is %s", j.Status)
	}
}

func TestCancelChangesNoTerminalJob(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id, attempt := s.started(nil)
	s.exit(id, attempt, 0, exited(0))
	s.settle(id, attempt)
	if got := s.cancel(id); got != berth.Succeeded {
		t.Errorf("state is %s", got)
	}
}

func TestManyCancelsAreOne(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id, _ := s.started(nil)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() { s.cancel(id) })
	}
	wg.Wait()
	if n := one[int](s, `SELECT count(*)::int FROM job_events WHERE job = $1 AND to_state = 'canceling'`, id); n != 1 {
		t.Errorf("%d events", n)
	}
}

func TestStopAttemptStopsTheRestOfAGang(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.submit(func(j *spec.Job) { j.Members = 3 })
	attempt := s.place(id, "m0", "m1", "m2")
	s.claim(id, attempt, 0, 1)
	s.exit(id, attempt, 0, exited(1))
	for range 2 {
		if stopped, err := s.db.Attempts.Stop(t.Context(), id, attempt); err != nil || !stopped {
			t.Fatal(stopped, err)
		}
	}
	want := []string{`exited {}`, `active {"stop": true, "grace_ms": 20000, "checkpoint": true}`, `released {"forget": true}`}
	if diff := cmp.Diff(want, s.ranks(id, attempt)); diff != "" {
		t.Errorf("ranks (-want +got):\n%s", diff)
	}
	if e := lastEvent(s, id); e.Kind != wire.EventOrdered || !strings.Contains(e.Detail, "member 1 on m1") {
		t.Errorf("last event is %+v", e)
	}
	// The withdrawn rank is no suspect: the verdict is that of the first bad one.
	s.exit(id, attempt, 1, failure.Exit{Cause: failure.CauseOrdered, StartedAt: ranAt, FinishedAt: ranAt})
	s.settle(id, attempt)
	if j := s.job(id); j.Status != berth.Failed || j.Reason.Code != berth.ReasonExitCode {
		t.Errorf("job is %s because of %+v", j.Status, j.Reason)
	}
	s.freed()
}

func TestStopAttemptLeavesAGangInOrderAlone(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.submit(func(j *spec.Job) { j.Members = 2 })
	attempt := s.place(id, "m0", "m1")
	s.claim(id, attempt, 0, 1)
	s.run(id)
	s.exit(id, attempt, 0, exited(0))
	if stopped, err := s.db.Attempts.Stop(t.Context(), id, attempt); err != nil || stopped {
		t.Fatal(stopped, err)
	}
	if got := s.ranks(id, attempt)[1]; got != "active {}" {
		t.Errorf("rank 1 is %s", got)
	}
}

func TestEscalateKillsWhatIsLate(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id, attempt := s.started(nil)
	s.cancel(id)
	escalate := func() {
		t.Helper()
		if err := s.db.Attempts.Escalate(t.Context(), id, attempt); err != nil {
			t.Fatal(err)
		}
	}
	if escalate(); strings.Contains(s.ranks(id, attempt)[0], "kill") {
		t.Error("killed within its grace")
	}
	mustExec(t, s.pool, `UPDATE allocations SET stop_by = now() - interval '1 second' WHERE job = $1`, id)
	if escalate(); !strings.Contains(s.ranks(id, attempt)[0], `"kill": true`) {
		t.Errorf("rank is %s", s.ranks(id, attempt)[0])
	}
	if e := lastEvent(s, id); e.Kind != wire.EventOrdered || e.Detail != "kill: member 0 on m0" {
		t.Errorf("last event is %+v", e)
	}
	seq := lastEvent(s, id).Seq
	if escalate(); lastEvent(s, id).Seq != seq {
		t.Error("ordered twice")
	}
	if v := s.load(id); !v.StopBy.IsZero() {
		t.Errorf("still to be escalated at %s", v.StopBy)
	}
}

func TestOrdersOfASupersededAttemptAreIgnored(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id, first := s.started(nil)
	s.orphan(id, first, 0)
	s.settle(id, first)
	second := s.place(id, "m1")
	s.claim(id, second, 0)
	if stopped, err := s.db.Attempts.Stop(t.Context(), id, first); err != nil || stopped {
		t.Fatal(stopped, err)
	}
	if got := s.ranks(id, second)[0]; got != "active {}" {
		t.Errorf("rank of the second attempt is %s", got)
	}
}

func TestHeldTimeDoesNotCountTowardsTheQueueTimeout(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.submit(func(j *spec.Job) { j.QueueTimeout = spec.Duration(3600e9) })
	deadline := func() float64 {
		return one[float64](s, `SELECT extract(epoch FROM queue_deadline - submitted_at)::float8 FROM jobs WHERE id = $1`, id)
	}
	for range 2 {
		if err := s.db.Jobs.Hold(t.Context(), "default", id, "user:test"); err != nil {
			t.Fatal(err)
		}
	}
	if j := s.job(id); !j.Held || s.load(id).Placeable {
		t.Errorf("job is %+v", j)
	}
	mustExec(t, s.pool, `UPDATE jobs SET held_at = held_at - interval '100 seconds' WHERE id = $1`, id)
	queue := s.db.Hub().Subscribe(db.TopicQueue, "*")
	for range 2 {
		if err := s.db.Jobs.Release(t.Context(), "default", id, "user:test"); err != nil {
			t.Fatal(err)
		}
	}
	if got := deadline(); got < 3700 || got > 3760 {
		t.Errorf("deadline is %.1f s after the submit", got)
	}
	if j := s.job(id); j.Held || !hears(t, queue) {
		t.Error("still held, or the leader was not told")
	}
	if e := lastEvent(s, id); e.Kind != wire.EventUpdated || e.Detail != "released from hold" {
		t.Errorf("last event is %+v", e)
	}
}

func TestOnlyWaitingJobsCanBeHeld(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id, _ := s.started(nil)
	if err := s.db.Jobs.Hold(t.Context(), "", id, "user:test"); berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("got %v", err)
	}
	if err := s.db.Jobs.Hold(t.Context(), "other", id, "user:test"); berth.CodeOf(err) != berth.CodeNotFound {
		t.Errorf("got %v", err)
	}
}

func TestUpdateJobChangesRowAndSpec(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.submit(func(j *spec.Job) { j.Labels = map[string]string{"a": "1", "b": "2"} })
	high, limit, c := spec.PriorityHigh, spec.Duration(3600e9), "3"
	patch := spec.JobPatch{Priority: &high, TimeLimit: &limit, Labels: map[string]*string{"a": nil, "c": &c}}
	if err := s.db.Jobs.Update(t.Context(), "default", id, patch, "user:test"); err != nil {
		t.Fatal(err)
	}
	j := s.job(id)
	want := map[string]string{"b": "2", "c": "3"}
	if j.Priority != high || *j.Spec.Priority != high || j.Spec.TimeLimit != limit || !cmp.Equal(j.Labels, want) || !cmp.Equal(j.Spec.Labels, want) {
		t.Errorf("job is %+v, spec %+v", j, j.Spec)
	}
	if ms := one[int64](s, `SELECT run_limit_ms FROM jobs WHERE id = $1`, id); ms != 3600e3 {
		t.Errorf("run limit is %d ms", ms)
	}
	many := map[string]*string{} // each change is small, their sum is not
	for i := range spec.MaxLabels - 1 {
		many[fmt.Sprint("k", i)] = &c
	}
	if err := s.db.Jobs.Update(t.Context(), "default", id, spec.JobPatch{Labels: many}, "user:test"); berth.CodeOf(err) != berth.CodeInvalid {
		t.Errorf("%d labels: %v", len(many)+2, err)
	}
	if got := s.job(id).Labels; !cmp.Equal(got, want) {
		t.Errorf("labels are %v", got)
	}
	s.cancel(id)
	if err := s.db.Jobs.Update(t.Context(), "default", id, patch, "user:test"); berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("a terminal job: %v", err)
	}
}

// An array of thousands that is canceled must not cost a commit for each of its
// elements, one after another.
func TestTheElementsOfACanceledArrayShareCommits(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.array(db.FollowUp, nil)
	s.tend(id)
	for _, state := range []berth.State{berth.Queued, berth.Scheduled, berth.Running} {
		mustExec(t, s.pool, `UPDATE jobs SET state = $2, version = version + 1 WHERE parent = $1`, id, state)
	}
	s.cancel(id)
	if got := s.tally(id); got != fmt.Sprintf("%d, %d canceling", db.FollowUp, db.FollowUp) {
		t.Fatalf("tally is %s", got)
	}
	if n := one[int](s, `SELECT count(DISTINCT xmin::text)::int FROM jobs WHERE parent = $1`, id); n > 2 {
		t.Errorf("%d elements took %d commits", db.FollowUp, n)
	}
	if n := one[int](s, `SELECT count(*)::int FROM job_events e JOIN jobs j ON j.id = e.job WHERE j.parent = $1 AND e.to_state = 'canceling'`, id); n != db.FollowUp {
		t.Errorf("%d events", n)
	}
}

func TestElementsStopTogetherAsTheyDoAlone(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for _, m := range []string{"w0", "w1"} {
		insertMachine(t, s.pool, m, 4)
	}
	id := s.array(4, func(j *spec.Job) { j.Members = 2 })
	s.tend(id)
	var attempts [4]int
	for i := range attempts {
		attempts[i] = s.place(s.element(id, i), "w0", "w1")
	}
	s.claim(s.element(id, 0), attempts[0], 0, 1)
	s.run(s.element(id, 0))
	s.claim(s.element(id, 1), attempts[1], 0) // no agent has claimed its other member
	s.claim(s.element(id, 2), attempts[2], 0, 1)
	s.exit(s.element(id, 2), attempts[2], 1, exited(1))
	s.claim(s.element(id, 3), attempts[3], 0, 1)
	mustExec(t, s.pool, `UPDATE allocations SET orders = '{"stop": true, "grace_ms": 5}', stop_by = now() WHERE job = $1`, s.element(id, 3))
	queue, machine := s.db.Hub().Subscribe(db.TopicQueue, "*"), s.db.Hub().Subscribe(db.TopicMachine, "w1")
	for range 2 { // twice is no different from once
		if got := s.cancel(id); got != berth.Canceling {
			t.Errorf("it is %s", got)
		}
	}
	if got := s.tally(id); got != "4, 4 canceling" {
		t.Errorf("tally is %s", got)
	}
	if !hears(t, queue) || !hears(t, machine) {
		t.Error("the leader and the machine were not told")
	}
	const stop = `active {"stop": true, "grace_ms": 30000}`
	for i, want := range [][]string{
		{stop, stop},
		{stop, `released {"forget": true}`},
		{stop, `exited {}`},
		{`active {"stop": true, "grace_ms": 5}`, `active {"stop": true, "grace_ms": 5}`},
	} {
		if diff := cmp.Diff(want, s.ranks(s.element(id, i), attempts[i])); diff != "" {
			t.Errorf("element %d (-want +got):\n%s", i, diff)
		}
	}
	if v := s.load(s.element(id, 0)); v.StopBy.IsZero() || !v.CancelSeen {
		t.Errorf("view is %+v", v)
	}
	if j := s.job(s.element(id, 0)); j.Reason == nil || j.Reason.Code != berth.ReasonCanceledByUser {
		t.Errorf("its reason is %+v", j.Reason)
	}
}
