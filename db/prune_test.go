package db_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/db"
	"berth/db/dbtest"
	"berth/spec"
)

// TestTheHistoryOfMachinesIsPrunedBehindTheJobs checks that past machine states are kept for the retention,
// and longer while a job exists whose placement may have depended on them. The current state is never pruned.
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
		if n, err := s.db.Machines.PruneHistory(t.Context(), s.term(), 90*24*time.Hour, 100); err != nil || n != want {
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

// TestAttemptsWithoutCheckpointsNeedNoSweep checks that the sweep for leftover data of attempts skips
// attempts without checkpoints, which can leave no data.
func TestAttemptsWithoutCheckpointsNeedNoSweep(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for _, checkpoint := range []*spec.CheckpointPolicy{nil, {Path: "/c", Keep: 2}} {
		id, attempt := s.started(func(j *spec.Job) { j.Checkpoint = checkpoint })
		s.exit(id, attempt, 0, exited(0))
		s.settle(id, attempt)
		if unswept := one[bool](s, `SELECT swept_at IS NULL FROM attempts WHERE job = $1`, id); unswept != (checkpoint != nil) {
			t.Errorf("checkpoint %v: to be swept %v", checkpoint, unswept)
		}
	}
}

// TestAttemptsWithUnregisteredOutputsAreSwept checks that an attempt whose declared outputs were not all
// registered waits for the sweep: their objects may be stored.
func TestAttemptsWithUnregisteredOutputsAreSwept(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for _, registered := range []bool{false, true} {
		id, attempt := s.started(func(j *spec.Job) { j.Outputs = []spec.Output{{Name: "model", Path: "/m"}} })
		if registered {
			mustExec(t, s.pool, `INSERT INTO outputs (job, attempt, rank, name, address, files, bytes, stored_bytes, sha256, object)
				VALUES ($1, $2, 0, 'model', 'sha256:a', 1, 1, 1, 'x', 'object')`, id, attempt)
		}
		s.exit(id, attempt, 0, exited(1))
		s.settle(id, attempt)
		if unswept := one[bool](s, `SELECT swept_at IS NULL FROM attempts WHERE job = $1`, id); unswept == registered {
			t.Errorf("output registered %v: to be swept %v", registered, unswept)
		}
	}
}

// archivedLog stores an archived job that ended the given time ago, with a log of the given number of
// ten-byte pieces.
func (s *stage) archivedLog(ago time.Duration, pieces int) (id berth.JobID) {
	s.t.Helper()
	id = berth.NewJobID(time.Now().Add(-ago))
	mustExec(s.t, s.pool, `
		INSERT INTO archived_jobs (id, tenant, name, state, labels, submitted_at, finished_at, job, events)
		VALUES ($1, 'default', 'n', 'succeeded', '{}', now() - $2::interval, now() - $2::interval, '{}', '[]')`, id, ago)
	mustExec(s.t, s.pool, `
		INSERT INTO log_chunks (job, attempt, rank, off, bytes, lines)
		SELECT $1::uuid, 1, 0, 10 * n, 10, 1 FROM generate_series(0, $2::int - 1) AS n`, id, pieces)
	return id
}

// TestALongLogIsPrunedInParts checks that one transaction of the leader deletes a bounded part of a long log,
// from the log's end backwards, and that the objects are deleted after the last part.
func TestALongLogIsPrunedInParts(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	long, short := s.archivedLog(4*time.Hour, 25_000), s.archivedLog(3*time.Hour, 1)
	left := func(id berth.JobID) int {
		return one[int](s, `SELECT count(*) FROM log_chunks WHERE job = $1 AND off < 10 * (SELECT count(*) FROM log_chunks WHERE job = $1)`, id)
	}
	doomed := func() []string {
		return one[[]string](s, `SELECT coalesce(array_agg(prefix ORDER BY prefix), '{}') FROM doomed_objects`)
	}
	for _, want := range []struct{ logs, long, short, doomed int }{{1, 15_000, 1, 0}, {1, 5_000, 1, 0}, {2, 0, 0, 2}, {0, 0, 0, 2}} {
		n, err := s.db.Logs.Prune(t.Context(), s.term(), 2*time.Hour, 500)
		if err != nil || n != want.logs {
			t.Fatalf("pruned %d logs, err %v; want %d", n, err, want.logs)
		}
		if l, r, d := left(long), left(short), doomed(); l != want.long || r != want.short || len(d) != want.doomed {
			t.Fatalf("%d and %d pieces are left, and %v are to be deleted; want %+v", l, r, d, want)
		}
		s.countsAgree("after a part")
	}
}

// TestPruningLogsPassesOverLogsThatStay checks that pruning reads only the beginning of a log that it keeps
// because the job ended recently.
func TestPruningLogsPassesOverLogsThatStay(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	// The statistics would include the reads of autovacuum.
	mustExec(t, s.pool, `ALTER TABLE log_chunks SET (autovacuum_enabled = off)`)
	s.archivedLog(time.Hour, 100_000)
	s.archivedLog(3*time.Hour, 5)
	mustExec(t, s.pool, `ANALYZE`)
	url, term := s.pool.Config().ConnString(), s.term()
	read := func() int64 {
		s.reset() // a session adds its reads to the statistics when it ends
		s.alone()
		return one[int64](s, `
			SELECT sum(heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit)::bigint
			FROM pg_statio_user_tables
			WHERE relname = 'log_chunks'`)
	}
	before := read()
	d := dbtest.Open(t, url, db.Options{})
	if n, err := d.Logs.Prune(t.Context(), term, 2*time.Hour, 500); n != 1 || err != nil {
		t.Errorf("pruned %d logs, err %v", n, err)
	}
	d.Close()
	if n := read() - before; n > 100 {
		t.Errorf("%d blocks of log_chunks are read for a log of 5 pieces", n)
	}
}
