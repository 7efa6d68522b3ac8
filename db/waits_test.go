package db_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/db"
	"berth/failure"
	"berth/spec"
	"berth/wire"
)

// member is a rank's row as its waiter reads it.
func (s *stage) member(alloc berth.AllocationID) wire.MemberView {
	s.t.Helper()
	list, err := s.db.Attempts.Members(s.t.Context(), silence, []berth.AllocationID{alloc, 1 << 40})
	if err != nil || len(list) != 1 || list[0].Alloc != alloc {
		s.t.Fatalf("members are %+v, %v", list, err)
	}
	return list[0]
}

// unheard are the jobs whose workflows should act on an end, as the replica finds
// them that recorded it and as the leader does.
func (s *stage) unheard(allocs ...berth.AllocationID) []berth.JobID {
	s.t.Helper()
	recorded, err := s.db.Attempts.Unheard(s.t.Context(), allocs)
	if err != nil {
		s.t.Fatal(err)
	}
	swept, err := s.db.Attempts.UnheardFor(s.t.Context(), 0, 100)
	if err != nil {
		s.t.Fatal(err)
	}
	var found []berth.JobID
	for _, j := range swept {
		found = append(found, j.ID)
	}
	slices.Sort(recorded)
	slices.Sort(found)
	if !slices.Equal(recorded, found) {
		s.t.Errorf("the replica finds %v, the leader %v", recorded, found)
	}
	return found
}

func (s *stage) rankAlloc(id berth.JobID, attempt, rank int) berth.AllocationID {
	s.t.Helper()
	return berth.AllocationID(one[int64](s, `SELECT id FROM allocations WHERE job = $1 AND attempt = $2 AND rank = $3`, id, attempt, rank))
}

func TestAWaiterReadsWhatItsMemberIsAt(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id, attempt := s.started(nil)
	alloc := s.alloc(id, attempt)
	mustExec(t, s.pool, `UPDATE allocations SET progress = '{"step": 7, "total": 9}', log_bytes = 12 WHERE id = $1`, int64(alloc))
	v := s.member(alloc)
	want := wire.RunProgress{Phase: berth.PhaseRunning, Step: 7, Total: 9, Percent: 77, Machine: "m0", LogOffset: 12}
	if !v.Live() || v.Sealed || v.Exit != nil || v.Overdue || v.Progress != want {
		t.Errorf("while it runs: %+v", v)
	}
	s.exit(id, attempt, 0, exited(3))
	if v := s.member(alloc); v.Live() || !v.Sealed || v.Exit == nil || v.Exit.Code != 3 {
		t.Errorf("after its end: %+v", v)
	}
	if ended, err := s.db.Attempts.EndedMembers(t.Context()); err != nil || !slices.Equal(ended, []berth.AllocationID{alloc}) {
		t.Errorf("ended are %v, %v", ended, err)
	}
	s.settle(id, attempt)
	if v := s.member(alloc); v.Live() || !v.Sealed || v.Exit == nil {
		t.Errorf("a waiter that comes after the verdict reads %+v", v)
	}
	if ended, err := s.db.Attempts.EndedMembers(t.Context()); err != nil || len(ended) != 0 {
		t.Errorf("after the verdict ended are %v, %v", ended, err)
	}
}

func TestAMemberOfASupersededAttemptIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id, attempt := s.started(nil)
	alloc := s.alloc(id, attempt)
	s.orphan(id, attempt, 0)
	if v := s.member(alloc); v.Live() || v.Sealed {
		t.Errorf("orphaned it is %+v", v)
	}
	s.settle(id, attempt)
	s.place(id, "m1")
	if v := s.member(alloc); v.Current || v.Live() {
		t.Errorf("superseded it is %+v", v)
	}
}

// A waiter of a machine that a verdict is due on sends no heartbeat; while no
// verdict may be passed it does, or every activity would be repeated in an outage.
func TestAMemberIsOverdueOnlyWhileAVerdictMayBePassed(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id, attempt := s.started(nil) // on m0, with the default lost_after
	alloc := s.alloc(id, attempt)
	s.quiet("m0", spec.DefaultLostAfter-5*time.Second)
	if s.member(alloc).Overdue {
		t.Error("before lost_after")
	}
	s.quiet("m0", spec.DefaultLostAfter+5*time.Second)
	if !s.member(alloc).Overdue {
		t.Error("not after lost_after")
	}
	s.quiet("m1", time.Minute)
	if !s.member(alloc).Overdue {
		t.Error("not with two silent machines")
	}
	s.quiet("m2", time.Minute)
	if s.member(alloc).Overdue {
		t.Error("while verdicts are frozen")
	}
	s.quiet("m2", 0)
	mustExec(t, s.pool, `INSERT INTO leases (name, holder, epoch, expires_at) VALUES ('api', 'x', 1, now() - interval '1 second')
		ON CONFLICT (name) DO UPDATE SET expires_at = excluded.expires_at`)
	if s.member(alloc).Overdue {
		t.Error("while no API can hear machines")
	}
}

func TestAnEndIsHintedAtWhenItIsSealed(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	id := s.submit(nil)
	attempt := s.place(id, "m0")
	a.mustClaim(id, attempt)
	a.report(id, attempt, berth.PhasePrepared, nil)
	hints := s.db.Hub().EndHints(db.Here)
	defer hints.Close()
	a.report(id, attempt, berth.PhaseExited, withExit(0))
	if list, _ := hints.Take(); len(list) != 0 {
		t.Errorf("hinted at before the seal: %v", list)
	}
	a.report(id, attempt, berth.PhaseSealed, withExit(0))
	select {
	case <-hints.News():
	default:
		t.Error("no hint")
	}
	if list, missed := hints.Take(); missed || len(list) != 1 || list[0] != a.alloc(id, attempt) {
		t.Errorf("hinted at: %v, missed %v", list, missed)
	}
	a.report(id, attempt, berth.PhaseSealed, withExit(0)) // as after an answer that was lost
	if list, _ := hints.Take(); len(list) != 0 {
		t.Errorf("hinted at again: %v", list)
	}
}

func TestAnEndIsUnheardUntilItsAttemptIsSettled(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id, attempt := s.started(nil)
	alloc := s.alloc(id, attempt)
	if jobs := s.unheard(alloc); len(jobs) != 0 {
		t.Errorf("while it runs: %v", jobs)
	}
	mustExec(t, s.pool, `UPDATE allocations SET state = 'exited', exit = $2, exited_at = now() WHERE id = $1`, int64(alloc), exited(0))
	if jobs := s.unheard(alloc); len(jobs) != 0 {
		t.Errorf("before the seal: %v", jobs)
	}
	s.exit(id, attempt, 0, exited(0))
	if jobs := s.unheard(alloc); !slices.Equal(jobs, []berth.JobID{id}) {
		t.Errorf("after the seal: %v", jobs)
	}
	if old, err := s.db.Attempts.UnheardFor(t.Context(), time.Hour, 10); err != nil || len(old) != 0 {
		t.Errorf("for an hour: %v, %v", old, err)
	}
	s.settle(id, attempt)
	if jobs := s.unheard(alloc); len(jobs) != 0 {
		t.Errorf("after the verdict: %v", jobs)
	}
}

// A poke costs a job's workflow as much as a fifth of the job: members that did
// their work while others run must not cost one each.
func TestAGangsWorkflowIsWantedByABadEndAndByTheLast(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		says string
		exit failure.Exit
		want bool
	}{
		{"it did its work", exited(0), false},
		{"it failed", exited(1), true},
		{"it never started", failure.Exit{Cause: failure.CauseImageNotFound}, true},
		{"it was stopped", failure.Exit{Cause: failure.CauseOrdered, StartedAt: ranAt, FinishedAt: ranAt}, true},
		{"it was stopped with its work complete", failure.Exit{Cause: failure.CauseOrdered, Complete: true, StartedAt: ranAt, FinishedAt: ranAt}, false},
	} {
		t.Run(c.says, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			id := s.submit(nil)
			attempt := s.place(id, "m0", "m1")
			s.claim(id, attempt, 0, 1)
			s.run(id)
			s.exit(id, attempt, 0, c.exit)
			first := s.rankAlloc(id, attempt, 0)
			if got := len(s.unheard(first)) > 0; got != c.want || c.want == c.exit.Done() {
				t.Errorf("wanted: %v", got)
			}
			stopped, err := s.db.Attempts.Stop(t.Context(), id, attempt)
			if err != nil || stopped != c.want {
				t.Errorf("stopped: %v, %v", stopped, err)
			}
			if jobs := s.unheard(first); len(jobs) != 0 {
				t.Errorf("after the other was told to stop: %v", jobs)
			}
			s.exit(id, attempt, 1, exited(0))
			if jobs := s.unheard(s.rankAlloc(id, attempt, 1)); !slices.Equal(jobs, []berth.JobID{id}) {
				t.Errorf("after the last end: %v", jobs)
			}
			if one[int64](s, fmt.Sprintf(`SELECT count(*) FROM allocations WHERE job = '%s'`, id)) != 2 {
				t.Error("more than two members")
			}
		})
	}
}

// TestAYoungDatabaseReadsRowsByKey: the plan of a database with some hundred jobs stays while they become thousands.
// It must not read a whole table for the jobs of a few members.
func TestAYoungDatabaseReadsRowsByKey(t *testing.T) {
	t.Parallel()
	const jobs, most = 400, 10
	s := newStage(t)
	mustExec(t, s.pool, `
		WITH j AS (
			INSERT INTO jobs (id, tenant, name, class, priority, preemptible, state, grace_ms, lost_after_ms, actor, finished_at)
			SELECT gen_random_uuid(), 'default', 'x', 'c', 500, true, 'succeeded', 0, 0, 'test', now()
			FROM generate_series(1, $1::int)
			RETURNING id
		)
		INSERT INTO allocations (job, attempt, rank, machine_id, machine_epoch, cpu_m, mem_mb, disk_mb, gpu_milli, state)
		SELECT id, 1, 0, 'm0', 1, 0, 0, 0, 0, 'released'
		FROM j`, jobs)
	mustExec(t, s.pool, `ANALYZE jobs, allocations`)
	conn, err := s.db.Pool().Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	found, read := rowsRead(t, conn.Conn(), `
		SELECT a.id, j.state
		FROM allocations a
		JOIN jobs j ON j.id = a.job
		WHERE a.id = ANY(@allocs::bigint[])`, pgx.NamedArgs{"allocs": "{1,2,3}"})
	if found != 3 || read > most {
		t.Errorf("%d members are found after reading %d rows; at most %d should do", found, read, most)
	}
}
