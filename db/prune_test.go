package db_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth"
)

// What a machine was is kept for its retention, and beyond it as long as a job
// is there that may have been placed by it; what is in force is kept for ever.
func TestTheHistoryOfMachinesIsPrunedBehindTheJobs(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	mustExec(t, s.pool, `DELETE FROM machine_events`)
	for _, e := range []struct {
		state string
		gpu   *int
		days  int
	}{
		{"joining", nil, 120}, {"ready", nil, 110}, {"suspect", nil, 100}, {"ready", nil, 95}, {"draining", nil, 50}, {"ready", nil, 1},
		{"healthy", new(int), 120},
	} {
		mustExec(t, s.pool, `
			INSERT INTO machine_events (machine_id, state, gpu, at)
			VALUES ('m0', $1, $2, now() - $3::int * interval '1 day')`, e.state, e.gpu, e.days)
	}
	fault := func(days int) {
		mustExec(t, s.pool, `
			INSERT INTO machine_faults (job, attempt, machine_id, tenant, rule, at)
			VALUES (gen_random_uuid(), 1, 'm0', 'default', 'x', now() - $1::int * interval '1 day')`, days)
	}
	fault(100)
	fault(1)
	old := s.submit(nil)
	left := func() []string {
		return one[[]string](s, `SELECT array_agg(state ORDER BY seq) FROM machine_events`)
	}
	prune := func(want int) {
		t.Helper()
		if n, err := s.db.PruneMachineHistory(t.Context(), s.term(), 90*24*time.Hour, 100); err != nil || n != want {
			t.Errorf("pruned %d rows, err %v; want %d", n, err, want)
		}
	}

	mustExec(t, s.pool, `UPDATE jobs SET submitted_at = now() - interval '105 days' WHERE id = $1`, old)
	prune(1) // the job may have been placed while the machine was ready, or suspect
	if diff := cmp.Diff([]string{"ready", "suspect", "ready", "draining", "ready", "healthy"}, left()); diff != "" {
		t.Errorf("beside an old job (-want +got):\n%s", diff)
	}
	mustExec(t, s.pool, `UPDATE jobs SET submitted_at = now() WHERE id = $1`, old)
	prune(3)
	prune(0)
	if diff := cmp.Diff([]string{"ready", "draining", "ready", "healthy"}, left()); diff != "" {
		t.Errorf("of 90 days (-want +got):\n%s", diff)
	}
	if n := one[int](s, `SELECT count(*) FROM machine_faults`); n != 1 {
		t.Errorf("%d faults are left, want the young one", n)
	}
}

// A leader that looks for what attempts have left behind does not look at those
// that can have left nothing.
func TestAttemptsWithoutCheckpointsNeedNoSweep(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for _, checkpoint := range []*berth.CheckpointPolicy{nil, {Path: "/c", Keep: 2}} {
		id, attempt := s.started(func(j *berth.JobSpec) { j.Checkpoint = checkpoint })
		s.exit(id, attempt, 0, exited(0))
		s.settle(id, attempt)
		if unswept := one[bool](s, `SELECT swept_at IS NULL FROM attempts WHERE job = $1`, id); unswept != (checkpoint != nil) {
			t.Errorf("checkpoint %v: to be swept %v", checkpoint, unswept)
		}
	}
}
