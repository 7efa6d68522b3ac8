package db_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/db"
	"berth/spec"
)

// ended runs a job to its end and confirms its clean-up.
func (s *stage) ended() berth.JobID {
	s.t.Helper()
	id, attempt := s.started(func(j *spec.Job) { j.Labels = map[string]string{"k": "v"} })
	mustExec(s.t, s.pool, `UPDATE allocations SET progress = '{"step": 7, "total": 10}' WHERE job = $1`, id)
	mustExec(s.t, s.pool, `INSERT INTO checkpoints (job, step, attempt, ranks, state, bytes) VALUES ($1, 5, $2, 1, 'verified', 99)`, id, attempt)
	mustExec(s.t, s.pool, `INSERT INTO checkpoint_shards (job, step, attempt, rank, manifest, sha256, bytes) VALUES ($1, 5, $2, 0, 'm', 'abc', 99)`, id, attempt)
	mustExec(s.t, s.pool, `INSERT INTO log_chunks (job, attempt, rank, off, bytes, lines) VALUES ($1, $2, 0, 0, 10, 1)`, id, attempt)
	s.exit(id, attempt, 0, exited(0))
	s.settle(id, attempt)
	return id
}

func (s *stage) archive(want int) {
	s.t.Helper()
	n, err := s.db.Jobs.ArchiveTerminal(s.t.Context(), s.term(), 0, 100)
	if err != nil || n != want {
		s.t.Fatalf("archived %d jobs, err %v; want %d", n, err, want)
	}
}

func TestAnArchivedJobLooksAsItDid(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.ended()
	live := s.submit(nil)
	before := s.job(id)
	history, err := s.db.Jobs.Events(t.Context(), "", id, 0, 100)
	if err != nil {
		t.Fatal(err)
	}
	if before.Status != berth.Succeeded || len(before.Attempts) != 1 || len(before.Attempts[0].GPUs) != 1 ||
		before.Progress == nil || len(before.Checkpoints) != 1 || before.Checkpoints[0].SHA256 != "abc" {
		t.Fatalf("the job to archive is not whole: %+v", before)
	}
	list, _, err := s.db.Jobs.List(t.Context(), db.JobFilter{})
	if err != nil {
		t.Fatal(err)
	}

	s.archive(0) // m0 has not confirmed that nothing is left
	mustExec(t, s.pool, `UPDATE allocations SET forgotten_at = now() WHERE job = $1`, id)
	s.archive(1)
	s.archive(0)

	for _, table := range []string{"attempts", "allocations", "checkpoints", "checkpoint_shards", "job_events", "job_specs"} {
		if n := one[int](s, `SELECT count(*) FROM `+table+` WHERE job = $1`, id); n != 0 {
			t.Errorf("%d rows of the archived job are left in %s", n, table)
		}
	}
	if n := one[int](s, `SELECT count(*) FROM device_allocations`); n != 0 {
		t.Errorf("%d device allocations are left", n)
	}
	if n := one[int](s, `SELECT count(*) FROM log_chunks WHERE job = $1`, id); n != 1 {
		t.Error("the archive took the log along")
	}
	if diff := cmp.Diff(before, s.job(id)); diff != "" {
		t.Errorf("the archived job (-before +after):\n%s", diff)
	}
	after, err := s.db.Jobs.Events(t.Context(), "default", id, 0, 100)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(history, after); diff != "" {
		t.Errorf("its history (-before +after):\n%s", diff)
	}
	if rest, err := s.db.Jobs.Events(t.Context(), "default", id, history[1].Seq, 1); err != nil || len(rest) != 1 || rest[0].Seq != history[2].Seq {
		t.Errorf("a page of its history: %+v, %v", rest, err)
	}
	relisted, _, err := s.db.Jobs.List(t.Context(), db.JobFilter{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(list, relisted); diff != "" {
		t.Errorf("the list (-before +after):\n%s", diff)
	}
	if _, err := s.db.Jobs.Get(t.Context(), "b", id); berth.CodeOf(err) != berth.CodeNotFound {
		t.Errorf("another tenant reads the archived job: %v", err)
	}
	if got, err := s.db.Jobs.Resolve(t.Context(), "default", string(id)); got != id || err != nil {
		t.Errorf("resolve the archived job: %s, %v", got, err)
	}
	for _, job := range []berth.JobID{id, live} {
		want := s.job(job)
		for _, tenant := range []berth.TenantID{"", "default"} {
			l, err := s.db.Logs.Job(t.Context(), tenant, job)
			if err != nil || l != (db.LogJob{Tenant: "default", Attempt: want.Attempt, Members: want.Spec.Members}) {
				t.Errorf("a reader of the logs of job %s sees %+v, %v", job, l, err)
			}
		}
		if l, err := s.db.Logs.Job(t.Context(), "other", job); berth.CodeOf(err) != berth.CodeNotFound {
			t.Errorf("another tenant's reader of logs sees %+v, %v", l, err)
		}
	}
	if state, attempt, err := s.db.Jobs.State(t.Context(), "default", id); state != berth.Succeeded || attempt != 1 || err != nil {
		t.Errorf("its state is %s, attempt %d, %v", state, attempt, err)
	}
	if s.job(live).Status != berth.Submitted {
		t.Error("the live job was touched")
	}
}

func TestAnArchivedJobCanBeRetried(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.ended()
	mustExec(t, s.pool, `UPDATE allocations SET forgotten_at = now()`)
	s.archive(1)
	job, created, err := s.db.Retries.Retry(t.Context(), "default", id, db.RetryOptions{}, "user:test")
	if err != nil || !created || job.RetryOf == nil || *job.RetryOf != id {
		t.Fatalf("retry: %+v, created %v, %v", job, created, err)
	}
	if old := s.job(id); old.RetriedBy == nil || *old.RetriedBy != job.ID {
		t.Errorf("the archived job says retried_by %v, want %s", old.RetriedBy, job.ID)
	}
}

func TestTheArchiveWaitsForRetentionAndForSilentMachines(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id, attempt := s.started(nil)
	s.orphan(id, attempt, 0)
	s.cancel(id)
	s.settle(id, attempt)
	if s.job(id).Status != berth.Canceled {
		t.Fatalf("the job is %s", s.job(id).Status)
	}
	s.archive(0) // its rank may live on a silent machine
	mustExec(t, s.pool, `DELETE FROM machine_leases`)
	if _, err := s.db.Machines.ConfirmDead(t.Context(), "m0", "operator:test"); err != nil {
		t.Fatal(err)
	}
	if n, err := s.db.Jobs.ArchiveTerminal(t.Context(), s.term(), time.Hour, 10); n != 0 || err != nil {
		t.Errorf("archived %d jobs that ended now with a retention of 1h, %v", n, err)
	}
	s.archive(1)
}
