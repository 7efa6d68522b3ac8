package db_test

import (
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/lifecycle"
	"berth/spec"
)

// repaired checks that a repair changes the given number of rows once and none in a second pass.
func repaired(t *testing.T, what string, want int, f func() (int, error)) {
	t.Helper()
	if n, err := f(); err != nil || n != want {
		t.Errorf("%s: %d, %v; want %d", what, n, err, want)
	}
	if n, err := f(); err != nil || n != 0 {
		t.Errorf("%s, second pass: %d, %v", what, n, err)
	}
}

func (s *stage) ago(sql string, args ...any) {
	s.t.Helper()
	mustExec(s.t, s.pool, sql, args...)
}

func TestUnclaimedRanksAreFound(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.submit(nil)
	attempt := s.place(id, "m0")
	list := func() []db.Aged {
		t.Helper()
		l, err := s.db.Attempts.Unclaimed(t.Context(), 15*time.Second, 10)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	if l := list(); len(l) != 0 {
		t.Errorf("at once: %v", l)
	}
	s.ago(`UPDATE allocations SET reserved_at = now() - interval '121 s'`)
	l := list()
	if len(l) != 1 || l[0].ID != id || l[0].Attempt != attempt || l[0].Age < lifecycle.UnclaimedAfter {
		t.Fatalf("%+v", l)
	}
	if r := s.settle(id, attempt); r.Next != berth.Retrying {
		t.Errorf("settled to %+v", r)
	}
	s.freed()
	if l := list(); len(l) != 0 {
		t.Errorf("after settling: %v", l)
	}
}

func TestUnsettledAttemptsAreFound(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id, attempt := s.started(nil)
	running, _ := s.started(nil)
	s.exit(id, attempt, 0, exited(0))
	list := func(age time.Duration) []db.Aged {
		t.Helper()
		l, err := s.db.Attempts.Unsettled(t.Context(), age, 10)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	if l := list(time.Minute); len(l) != 0 {
		t.Errorf("too soon: %v", l)
	}
	if l := list(0); len(l) != 1 || l[0].ID != id {
		t.Errorf("%+v, and %s runs", l, running)
	}
	s.settle(id, attempt)
	if l := list(0); len(l) != 0 {
		t.Errorf("after settling: %v", l)
	}
}

func TestLateRanksAreKilledOnce(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	id, attempt := s.started(nil)
	if _, err := s.db.Jobs.RequestCancel(t.Context(), "", id, "user:test", nil); err != nil {
		t.Fatal(err)
	}
	repaired(t, "in time", 0, func() (int, error) { return s.db.Attempts.KillOverdue(t.Context(), term, 30*time.Second, 10) })
	s.ago(`UPDATE allocations SET stop_by = now() - interval '31 s'`)
	repaired(t, "late", 1, func() (int, error) { return s.db.Attempts.KillOverdue(t.Context(), term, 30*time.Second, 10) })
	if ids, err := s.db.Machines.Disobedient(t.Context(), 30*time.Second); err != nil || len(ids) != 1 || ids[0] != "m0" {
		t.Errorf("disobedient %v, %v", ids, err)
	}
	s.exit(id, attempt, 0, exited(137))
	if ids, err := s.db.Machines.Disobedient(t.Context(), 0); err != nil || len(ids) != 0 {
		t.Errorf("disobedient after the end %v, %v", ids, err)
	}
}

func TestRanksOfOldAttemptsAreKilled(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	id, attempt := s.started(nil)
	waiting := s.submit(nil)
	s.place(waiting, "m1")
	current, _ := s.started(nil)
	s.move(id, berth.Retrying)      // its rank is still active
	s.move(waiting, berth.Retrying) // its rank was never claimed
	repaired(t, "strays", 2, func() (int, error) { return s.db.Attempts.KillStray(t.Context(), term, 10) })
	if r := s.ranks(id, attempt); r[0] != `active {"kill": true}` {
		t.Errorf("claimed: %s", r[0])
	}
	if r := s.ranks(waiting, 1); r[0] != `released {"forget": true}` {
		t.Errorf("unclaimed: %s", r[0])
	}
	if r := s.ranks(current, 1); r[0] != `active {}` {
		t.Errorf("current: %s", r[0])
	}
	if c, _ := used(t, s.pool, "m1"); c.CPUMilli != 0 {
		t.Errorf("m1 uses %+v", c)
	}
	if c, _ := used(t, s.pool, "m0"); c.CPUMilli != 2000 {
		t.Errorf("m0 uses %+v", c)
	}
}

func TestWrongCountersAreFoundAndLeft(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.started(nil)
	list := func() []db.Miscount {
		t.Helper()
		l, err := s.db.Cluster.Miscounts(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	if l := list(); len(l) != 0 {
		t.Errorf("%v", l)
	}
	mustExec(t, s.pool, `UPDATE machines SET cpu_m_used = 500 WHERE id = 'm0'`)
	mustExec(t, s.pool, `UPDATE gpu_devices SET milli_used = 250 WHERE machine_id = 'm2' AND idx = 1`)
	if l := list(); len(l) != 2 || l[0].Machine != "m0" || l[1].Machine != "m2" {
		t.Errorf("%v", l)
	}
	if l := list(); len(l) != 2 {
		t.Errorf("corrected by itself: %v", l)
	}
}

func TestQueueDeadlineFailsWaitingJobs(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	limited := func(j *spec.Job) { j.QueueTimeout = spec.Duration(time.Hour) }
	late, held, early := s.queued(limited), s.queued(limited), s.queued(limited)
	if err := s.db.Jobs.Hold(t.Context(), "", held, "user:test"); err != nil {
		t.Fatal(err)
	}
	s.ago(`UPDATE jobs SET queue_deadline = now() - interval '1 s' WHERE id = ANY($1)`, []berth.JobID{late, held})
	if ids, err := s.db.Jobs.FailExpired(t.Context(), term, []berth.JobID{early, held}, 10); err != nil || len(ids) != 0 {
		t.Errorf("failed %v, %v", ids, err)
	}
	repaired(t, "late", 1, func() (int, error) {
		ids, err := s.db.Jobs.FailExpired(t.Context(), term, nil, 10)
		return len(ids), err
	})
	if j := s.job(late); j.Status != berth.Failed || j.Reason.Code != berth.ReasonQueueTimeout {
		t.Errorf("job is %s, %+v", j.Status, j.Reason)
	}
	if e := lastEvent(s, late); e.Actor != "leader" || e.To != berth.Failed {
		t.Errorf("event %+v", e)
	}
}

func TestNominationsEndWithTheirBeneficiary(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	waiting, ended := s.queued(nil), s.queued(nil)
	victim, _ := s.started(nil)
	for _, id := range []berth.JobID{waiting, ended} {
		mustExec(t, s.pool, `INSERT INTO nominations (beneficiary, machine_id, expires_at) VALUES ($1, 'm0', now() + interval '1 hour')`, id)
	}
	mustExec(t, s.pool, `INSERT INTO nominations (beneficiary, machine_id, expires_at) VALUES ($1, 'm1', now() - interval '1 s')`, waiting)
	mustExec(t, s.pool, `UPDATE jobs SET preempted_for = $2 WHERE id = $1`, victim, ended)
	s.move(ended, berth.Failed)
	repaired(t, "nominations", 3, func() (int, error) { return s.db.Queue.ClearNominations(t.Context(), term) })
	if n := one[int](s, `SELECT count(*) FROM nominations WHERE beneficiary = $1 AND machine_id = 'm0'`, waiting); n != 1 {
		t.Error("a nomination of a waiting job is gone")
	}
}

func TestJobsAreListedForComparisonWithWorkflows(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	live, done := s.queued(nil), s.queued(nil)
	s.move(done, berth.Failed)
	if l, err := s.db.Jobs.ListLive(t.Context(), time.Hour); err != nil || len(l) != 0 {
		t.Errorf("live for an hour: %v, %v", l, err)
	}
	if l, err := s.db.Jobs.ListLive(t.Context(), 0); err != nil || len(l) != 1 || l[0].ID != live || l[0].State != berth.Queued {
		t.Errorf("live: %v, %v", l, err)
	}
	if l, err := s.db.Jobs.StatesOf(t.Context(), []berth.JobID{done, jobB}); err != nil || len(l) != 1 || l[0].State != berth.Failed {
		t.Errorf("states: %v, %v", l, err)
	}
}
