package db_test

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/db"
	"berth/failure"
	"berth/lifecycle"
	"berth/spec"
	"berth/wire"
)

func TestSettle(t *testing.T) {
	t.Parallel()
	retries := func(j *spec.Job) { j.Retry.MaxAttempts = 2 }
	grow := func(j *spec.Job) { j.Retry.OnOOM = "grow" }
	ordered := failure.Exit{Cause: failure.CauseOrdered, Code: 143, StartedAt: ranAt, FinishedAt: ranAt}
	complete := failure.Exit{Cause: failure.CauseOrdered, Complete: true, StartedAt: ranAt, FinishedAt: ranAt}
	oom := exited(137)
	oom.OOMKilled = true
	cases := []struct {
		claim string // behavior that the case shows
		spec  func(*spec.Job)
		act   func(s *stage, id berth.JobID, attempt int)

		next       berth.State
		reason     berth.ReasonCode
		deadLetter bool
		failures   int
		losses     int
		avoid      []string
		rank       string // state of rank 0 after the settle
	}{
		{claim: "exit 0 succeeds", next: berth.Succeeded, rank: "released",
			act: func(s *stage, id berth.JobID, a int) { s.exit(id, a, 0, exited(0)) }},
		{claim: "exit 1 without retries fails", next: berth.Failed, reason: berth.ReasonExitCode, failures: 1, rank: "released",
			act: func(s *stage, id berth.JobID, a int) { s.exit(id, a, 0, exited(1)) }},
		{claim: "exit 1 with a retry left waits", spec: retries, next: berth.Retrying, reason: berth.ReasonExitCode, failures: 1, rank: "released",
			act: func(s *stage, id berth.JobID, a int) { s.exit(id, a, 0, exited(1)) }},
		{claim: "the last retry goes to the dead letter", spec: retries, next: berth.Failed, reason: berth.ReasonExitCode, deadLetter: true, failures: 2, rank: "released",
			act: func(s *stage, id berth.JobID, a int) {
				mustExec(s.t, s.pool, `UPDATE jobs SET failures = 1 WHERE id = $1`, id)
				s.exit(id, a, 0, exited(1))
			}},
		{claim: "a silent machine's rank stays where it is", next: berth.Retrying, reason: berth.ReasonMachineLost, losses: 1, avoid: []string{"m0"}, rank: "orphaned",
			act: func(s *stage, id berth.JobID, a int) { s.orphan(id, a, 0) }},
		{claim: "a confirmed orphan is still a loss", next: berth.Retrying, reason: berth.ReasonMachineLost, losses: 1, avoid: []string{"m0"}, rank: "released",
			act: func(s *stage, id berth.JobID, a int) {
				s.orphan(id, a, 0)
				mustExec(s.t, s.pool, `UPDATE allocations SET state = 'released', released_at = now() WHERE job = $1`, id)
			}},
		{claim: "too many losses go to the dead letter", next: berth.Failed, reason: berth.ReasonBudgetSpent, deadLetter: true, losses: 20, rank: "orphaned",
			act: func(s *stage, id berth.JobID, a int) {
				mustExec(s.t, s.pool, `UPDATE jobs SET losses = 19 WHERE id = $1`, id)
				s.orphan(id, a, 0)
			}},
		{claim: "a permanent fault fails at once", spec: retries, next: berth.Failed, reason: berth.ReasonImageNotFound, failures: 1, rank: "released",
			act: func(s *stage, id berth.JobID, a int) {
				s.exit(id, a, 0, failure.Exit{Cause: failure.CauseImageNotFound, Message: "no such image", FinishedAt: ranAt})
			}},
		{claim: "a victim waits for its next turn at no cost", next: berth.Retrying, reason: berth.ReasonPreempted, rank: "released",
			act: func(s *stage, id berth.JobID, a int) {
				mustExec(s.t, s.pool, `UPDATE jobs SET preempted_for = $2 WHERE id = $1`, id, jobB)
				s.move(id, berth.Preempting)
				s.exit(id, a, 0, ordered)
			}},
		{claim: "a victim that was complete has succeeded", next: berth.Succeeded, rank: "released",
			act: func(s *stage, id berth.JobID, a int) {
				s.move(id, berth.Preempting)
				s.exit(id, a, 0, complete)
			}},
		{claim: "a drained machine is avoided at no cost", next: berth.Retrying, reason: berth.ReasonDrained, avoid: []string{"m0"}, rank: "released",
			act: func(s *stage, id berth.JobID, a int) {
				mustExec(s.t, s.pool, `UPDATE machines SET state = 'draining', drain_reason = 'new disk' WHERE id = 'm0'`)
				s.exit(id, a, 0, ordered)
			}},
		{claim: "a canceled job ends canceled", next: berth.Canceled, reason: berth.ReasonCanceledByUser, rank: "released",
			act: func(s *stage, id berth.JobID, a int) {
				s.cancel(id)
				s.exit(id, a, 0, ordered)
			}},
		{claim: "a job that was done before the cancel has succeeded", next: berth.Succeeded, rank: "released",
			act: func(s *stage, id berth.JobID, a int) {
				s.cancel(id)
				s.exit(id, a, 0, exited(0))
			}},
		{claim: "a canceled job on a silent machine ends canceled", next: berth.Canceled, reason: berth.ReasonCanceledByUser, rank: "orphaned",
			act: func(s *stage, id berth.JobID, a int) {
				s.cancel(id)
				s.orphan(id, a, 0)
			}},
		{claim: "memory grows once", spec: grow, next: berth.Retrying, reason: berth.ReasonOOM, failures: 1, rank: "released",
			act: func(s *stage, id berth.JobID, a int) { s.exit(id, a, 0, oom) }},
		{claim: "memory grows no second time", spec: grow, next: berth.Failed, reason: berth.ReasonOOM, failures: 1, rank: "released",
			act: func(s *stage, id berth.JobID, a int) {
				mustExec(s.t, s.pool, `UPDATE jobs SET oom_grown = true WHERE id = $1`, id)
				s.exit(id, a, 0, oom)
			}},
	}
	s := newStage(t)
	for _, c := range cases {
		// The cases share one database, one after the other: each must release all its capacity.
		s.t = t
		id, attempt := s.started(c.spec)
		mustExec(t, s.pool, `UPDATE allocations SET progress = '{"step":7}' WHERE job = $1`, id)
		c.act(s, id, attempt)
		if got := s.settle(id, attempt); got.Next != c.next || got.NotReady {
			t.Errorf("%s: settled as %+v, want %s", c.claim, got, c.next)
		}
		j := s.job(id)
		var reason berth.ReasonCode
		if j.Reason != nil {
			reason = j.Reason.Code
		}
		avoid := one[[]string](s, `SELECT avoid FROM jobs WHERE id = $1`, id)
		if j.Status != c.next || reason != c.reason || j.DeadLetter != c.deadLetter || j.Failures != c.failures || j.Losses != c.losses || !slices.Equal(avoid, c.avoid) {
			t.Errorf("%s: row is %s, reason %q, dead letter %v, %d failures, %d losses, avoid %v", c.claim, j.Status, reason, j.DeadLetter, j.Failures, j.Losses, avoid)
		}
		a := j.Attempts[0]
		if a.EndedAt == nil || a.Next != c.next || a.LastStep == nil || *a.LastStep != 7 || (a.Outcome != nil) != (c.reason != "") {
			t.Errorf("%s: attempt is %+v", c.claim, a)
		}
		ranks := s.ranks(id, attempt)
		if !strings.HasPrefix(ranks[0], c.rank) || (c.rank == "released" && !strings.Contains(ranks[0], "forget") && !strings.Contains(ranks[0], "kill")) {
			t.Errorf("%s: rank is %s", c.claim, ranks[0])
		}
		again := s.settle(id, attempt)
		if again.Next != c.next || s.job(id).Failures != c.failures {
			t.Errorf("%s: settled again as %+v", c.claim, again)
		}
		mustExec(t, s.pool, `UPDATE allocations SET state = 'released' WHERE state = 'orphaned'`)
		mustExec(t, s.pool, `UPDATE machines SET state = 'ready', drain_reason = NULL`)
		s.freed()
	}
}

func (s *stage) cancel(id berth.JobID) berth.State {
	s.t.Helper()
	state, err := s.db.Jobs.RequestCancel(s.t.Context(), "", id, "user:test", nil)
	if err != nil {
		s.t.Fatal(err)
	}
	return state
}

// TestAnEndThatComesBeforeTheNewsOfTheStartIsOfAJobThatRan checks that a short job whose exit arrives before
// the report of its start counts as a job that ran, in its history and in its attempt.
func TestAnEndThatComesBeforeTheNewsOfTheStartIsOfAJobThatRan(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.submit(nil)
	attempt := s.place(id, "m0")
	s.claim(id, attempt, 0)
	s.exit(id, attempt, 0, exited(0)) // the exit reports a run of one second
	mustExec(t, s.pool, `UPDATE allocations SET started_at = now(), reserved_at = now() - interval '3 s' WHERE job = $1`, id)
	if got := s.settle(id, attempt); got.Next != berth.Succeeded {
		t.Fatalf("settled as %+v", got)
	}
	j := s.job(id)
	if j.StartedAt == nil || j.Attempts[0].StartedAt == nil {
		t.Fatalf("the job started %v, its attempt %v", j.StartedAt, j.Attempts[0].StartedAt)
	}
	if ran := one[int64](s, `SELECT ran_ms FROM jobs WHERE id = $1`, id); ran != 1000 {
		t.Errorf("it ran for %d ms, want what its machine said", ran)
	}
	events, err := s.db.Jobs.Events(t.Context(), "", id, 0, 100)
	if err != nil || !slices.ContainsFunc(events, func(e wire.Event) bool { return e.To == berth.Running }) {
		t.Errorf("its history does not say that it ran: %+v, %v", events, err)
	}
}

// TestAnAttemptRanAsLongAsItsExitsSay checks that an attempt's run time comes from its exits, however wrong
// the machines' clocks are. It is at most the time since the reservation and does not include time after the
// exit.
func TestAnAttemptRanAsLongAsItsExitsSay(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	at := func(start time.Time, ran time.Duration) failure.Exit {
		return failure.Exit{Cause: failure.CauseExited, StartedAt: start, FinishedAt: start.Add(ran)}
	}
	for what, row := range map[string]struct {
		exits    []failure.Exit
		min, max time.Duration
	}{
		"a report that came late":    {[]failure.Exit{at(ranAt, 20*time.Second)}, 20 * time.Second, 20 * time.Second},
		"a clock that is years off":  {[]failure.Exit{at(ranAt.AddDate(-30, 0, 0), 20*time.Second)}, 20 * time.Second, 20 * time.Second},
		"the longest of a gang":      {[]failure.Exit{at(ranAt, time.Second), at(ranAt, 30*time.Second)}, 30 * time.Second, 30 * time.Second},
		"a clock that was set back":  {[]failure.Exit{at(ranAt, -time.Hour)}, 0, 0},
		"a clock that was set ahead": {[]failure.Exit{at(ranAt, 9000*time.Hour)}, time.Hour, 2 * time.Hour},
		"no word of it":              {[]failure.Exit{{Cause: failure.CauseVanished, Message: "gone"}}, 40 * time.Second, time.Hour},
	} {
		id := s.submit(nil)
		machines := []string{"m0", "m1"}[:len(row.exits)]
		attempt := s.place(id, machines...)
		for rank := range row.exits {
			s.claim(id, attempt, rank)
		}
		s.run(id)
		for rank, x := range row.exits {
			s.exit(id, attempt, rank, x)
		}
		mustExec(t, s.pool, `UPDATE attempts SET started_at = now() - interval '40 s' WHERE job = $1`, id)
		mustExec(t, s.pool, `UPDATE allocations SET reserved_at = now() - interval '1 hour' WHERE job = $1`, id)
		s.settle(id, attempt)
		ran := time.Duration(one[int64](s, `SELECT ran_ms FROM jobs WHERE id = $1`, id)) * time.Millisecond
		if ran < row.min || ran > row.max {
			t.Errorf("%s: it ran %s, want %s to %s", what, ran, row.min, row.max)
		}
	}
}

func TestSettleIsNotReadyBeforeEveryRankHasEnded(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.submit(func(j *spec.Job) { j.Members = 3 })
	attempt := s.place(id, "m0", "m1", "m2")
	notReady := func(when string) {
		t.Helper()
		if r := s.settle(id, attempt); !r.NotReady || r.Next != "" {
			t.Errorf("%s: settled as %+v", when, r)
		}
	}
	notReady("all reserved")
	s.claim(id, attempt, 0, 1, 2)
	s.run(id)
	s.exit(id, attempt, 0, exited(0))
	s.orphan(id, attempt, 1)
	notReady("one still active")
	mustExec(t, s.pool, `UPDATE allocations SET state = 'exited', exit = $2 WHERE job = $1 AND rank = 2`, id, exited(0))
	notReady("one not sealed")
	mustExec(t, s.pool, `UPDATE allocations SET sealed_at = now() WHERE job = $1 AND rank = 2`, id)
	if r := s.settle(id, attempt); r.Next != berth.Retrying {
		t.Errorf("settled as %+v", r)
	}
}

func TestUnclaimedReservationIsALossAfterItsLimit(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.submit(nil)
	attempt := s.place(id, "m0")
	mustExec(t, s.pool, `UPDATE allocations SET reserved_at = now() - $2::interval WHERE job = $1`, id, lifecycle.UnclaimedAfter+time.Second)
	queue := s.db.Hub().Subscribe(db.TopicQueue, "*")
	if r := s.settle(id, attempt); r.Next != berth.Retrying {
		t.Errorf("settled as %+v", r)
	}
	if j := s.job(id); j.Reason.Code != berth.ReasonUnclaimed || j.Losses != 1 {
		t.Errorf("job is %+v", j)
	}
	if !hears(t, queue) {
		t.Error("the leader was not told of the free capacity")
	}
	s.freed()
}

func TestGrownMemoryIsInTheClassAndNotInTheSpec(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id, attempt := s.started(func(j *spec.Job) { j.Retry.OnOOM = "grow" })
	oom := exited(137)
	oom.OOMKilled = true
	s.exit(id, attempt, 0, oom)
	s.settle(id, attempt)
	got := one[spec.Request](s, `SELECT c.request FROM jobs j JOIN classes c ON c.class = j.class WHERE j.id = $1`, id)
	want := s.job(id).Spec.Request()
	if want.MemoryMiB != int64(spec.DefaultMemory) {
		t.Errorf("the spec says %d MiB", want.MemoryMiB)
	}
	want.MemoryMiB = want.MemoryMiB * 3 / 2
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
	if class := one[string](s, `SELECT class FROM jobs WHERE id = $1`, id); class != want.Class() {
		t.Errorf("class is %s, want %s", class, want.Class())
	}
}

func TestBackoffIsInTheRow(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id, attempt := s.started(func(j *spec.Job) { j.Retry.MaxAttempts = 3 })
	s.exit(id, attempt, 0, exited(1))
	s.settle(id, attempt)
	j := s.job(id)
	want := j.Spec.Retry.Backoff.Delay(id, 1)
	got := time.Duration(one[float64](s, `SELECT extract(epoch FROM eligible_at - state_at)::float8 FROM jobs WHERE id = $1`, id) * float64(time.Second))
	if d := got - want; d < -time.Second || d > time.Second {
		t.Errorf("eligible after %s, want %s", got, want)
	}
}

func TestSettleOfAnEarlierAttemptAnswersWhatWasDecided(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id, first := s.started(nil)
	s.orphan(id, first, 0)
	s.settle(id, first)
	second := s.place(id, "m1")
	if r := s.settle(id, first); r.Next != berth.Retrying {
		t.Errorf("the first attempt answers %+v", r)
	}
	if r := s.settle(id, second); !r.NotReady {
		t.Errorf("the second attempt answers %+v", r)
	}
	if _, err := s.db.Attempts.Settle(t.Context(), id, second+1); berth.CodeOf(err) != berth.CodeInvalid {
		t.Errorf("an attempt to come: %v", err)
	}
}

func TestConcurrentSettlesAgree(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id, attempt := s.started(nil)
	s.orphan(id, attempt, 0)
	var wg sync.WaitGroup
	results := make([]wire.SettleResult, 8)
	for i := range results {
		wg.Go(func() { results[i] = s.settle(id, attempt) })
	}
	wg.Wait()
	for _, r := range results {
		if r.Next != berth.Retrying {
			t.Errorf("settled as %+v", r)
		}
	}
	lost := db.End{Next: berth.Retrying, Reason: berth.ReasonMachineLost}
	if n := s.db.Attempts.EndCounts()[lost]; n.Attempts != 1 || len(s.db.Attempts.EndCounts()) != 1 {
		t.Errorf("counted %+v; want the one attempt once, however often it was settled", s.db.Attempts.EndCounts())
	}
	if j := s.job(id); j.Losses != 1 {
		t.Errorf("%d losses", j.Losses)
	}
}

// TestSettleAgainstCancel checks that a cancel and a settle that race for the row produce exactly one
// terminal event, in either order.
func TestSettleAgainstCancel(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for range 40 {
		id, attempt := s.started(nil)
		s.exit(id, attempt, 0, exited(0))
		var wg sync.WaitGroup
		wg.Go(func() { s.settle(id, attempt) })
		wg.Go(func() { s.cancel(id) })
		wg.Wait()
		s.settle(id, attempt)
		if j := s.job(id); j.Status != berth.Succeeded {
			t.Fatalf("job is %s", j.Status)
		}
		n := one[int](s, `SELECT count(*)::int FROM job_events WHERE job = $1 AND to_state IN ('succeeded', 'failed', 'canceled')`, id)
		if n != 1 {
			t.Fatalf("%d terminal events", n)
		}
	}
	s.freed()
}

func TestSettleTellsTheMachine(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id, attempt := s.started(nil)
	s.exit(id, attempt, 0, exited(0))
	machine, job := s.db.Hub().Subscribe(db.TopicMachine, "m0"), s.db.Hub().Subscribe(db.TopicJob, string(id))
	s.settle(id, attempt)
	if !hears(t, machine) || !hears(t, job) {
		t.Error("machine or followers were not told")
	}
}
