package db_test

import (
	"testing"
	"time"

	"berth"
	"berth/spec"
	"berth/wire"
)

func TestPausesAndResumptionsAreRecordedOnce(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	set := func(paused bool, reason, actor string) wire.Admission {
		t.Helper()
		a, err := s.db.Cluster.SetAdmission(t.Context(), paused, reason, actor)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	if a, err := s.db.Cluster.Admission(t.Context()); err != nil || a != (wire.Admission{}) {
		t.Errorf("admission of a fresh cluster is %+v, %v", a, err)
	}
	set(false, "nothing to resume", "operator:a")
	first := set(true, "upgrade", "operator:a")
	again := set(true, "me too", "operator:b")
	if !first.Paused || first.Reason != "upgrade" || first.Actor != "operator:a" || again.Actor != "operator:a" || !again.Since.Equal(*first.Since) {
		t.Errorf("paused as %+v, then %+v", first, again)
	}
	if p, err := s.db.Cluster.Pressure(t.Context(), 0, time.Minute); err != nil || !p.Paused {
		t.Errorf("pressure is %+v, %v", p, err)
	}
	if a := set(false, "done", "operator:b"); a.Paused || a.Actor != "operator:b" {
		t.Errorf("resumed as %+v", a)
	}
	var rows int
	if err := s.pool.QueryRow(t.Context(), `SELECT count(*) FROM admission_changes`).Scan(&rows); err != nil || rows != 2 {
		t.Errorf("%d changes on record, %v; want the pause and the resumption", rows, err)
	}
}

func TestPressureCountsJobsThatEndedAndAreNotSettled(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	count := func(from, to time.Duration) int {
		t.Helper()
		p, err := s.db.Cluster.Pressure(t.Context(), from, to)
		if err != nil {
			t.Fatal(err)
		}
		return p.Unsettled
	}
	start := func(machine string) (berth.JobID, int) {
		id := s.submit(nil)
		attempt := s.place(id, machine)
		s.claim(id, attempt, 0)
		s.run(id)
		return id, attempt
	}
	start("m0") // runs on
	id, attempt := start("m0")
	other, second := start("m1")
	s.exit(id, attempt, 0, exited(0))
	s.exit(other, second, 0, exited(1))
	if n := count(0, time.Minute); n != 2 {
		t.Errorf("%d jobs have ended and are not settled, want 2", n)
	}
	if n := count(time.Minute, time.Hour); n != 0 {
		t.Errorf("%d of them for over a minute", n)
	}
	s.ago(`UPDATE allocations SET sealed_at = now() - interval '2 min' WHERE job = $1`, id)
	if n := count(30*time.Second, time.Minute); n != 0 {
		t.Errorf("%d count although one is stuck and the other young", n)
	}
	s.settle(id, attempt)
	s.settle(other, second)
	if n := count(0, time.Hour); n != 0 {
		t.Errorf("%d count after they were settled", n)
	}
}

func TestAGangCountsOnceAllItsRanksHaveEnded(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.submit(func(j *spec.Job) { j.Members = 2 })
	attempt := s.place(id, "m0", "m1")
	s.claim(id, attempt, 0)
	s.claim(id, attempt, 1)
	s.run(id)
	for rank, want := range []int{0, 1} {
		s.exit(id, attempt, rank, exited(0))
		p, err := s.db.Cluster.Pressure(t.Context(), 0, time.Minute)
		if err != nil || p.Unsettled != want {
			t.Errorf("after the end of %d of 2 ranks %d jobs count, %v; want %d", rank+1, p.Unsettled, err, want)
		}
	}
}

// TestAPauseInQuarantineOutlastsIt checks that an operator can pause a quarantined cluster, which stays paused after
// the adoption, and cannot resume it.
func TestAPauseInQuarantineOutlastsIt(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.quarantined()
	if _, err := s.db.Cluster.SetAdmission(t.Context(), true, "upgrade", "operator:a"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.db.Cluster.SetAdmission(t.Context(), false, "done", "operator:a"); berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("resumed in quarantine: %v", err)
	}
	if _, err := s.db.Leader.Adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a, err := s.db.Cluster.Admission(t.Context()); err != nil || !a.Paused || a.Reason != "upgrade" {
		t.Errorf("after the adoption admission is %+v, %v", a, err)
	}
}
