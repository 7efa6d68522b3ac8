package db_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/failure"
	"berth/internal/lib/poll"
	"berth/spec"
	"berth/wire"
)

// waitLimit bounds each wait for a condition. It is far above the need of a slow machine:
// only a test that fails waits so long.
const waitLimit = 5 * time.Minute

// errRolledBack ends a transaction that only held locks.
var errRolledBack = errors.New("rolled back")

// holding runs f while the rows of a query are locked, and lets them go after.
func (s *stage) holding(lock string, f func()) {
	s.t.Helper()
	err := pgx.BeginFunc(s.t.Context(), s.beside(), func(tx pgx.Tx) error {
		if _, err := tx.Exec(s.t.Context(), lock); err != nil {
			return err
		}
		f()
		return errRolledBack
	})
	if !errors.Is(err, errRolledBack) {
		s.t.Fatal(err)
	}
}

// blocked waits until that many sessions wait for a lock.
func (s *stage) blocked(n int) {
	s.t.Helper()
	s.until(fmt.Sprintf("%d sessions wait for a lock", n), func() bool { return s.waiting() >= n })
}

// unblocked waits until no session waits for a lock.
func (s *stage) unblocked() {
	s.t.Helper()
	s.until("no session waits for a lock", func() bool { return s.waiting() == 0 })
}

// waiting counts the sessions that wait for a lock. Its connection is not one of the database's own: while
// statements are slow, the calls that wait have all of those.
func (s *stage) waiting() (n int) {
	s.t.Helper()
	err := s.beside().QueryRow(s.t.Context(), `
		SELECT count(*)
		FROM pg_stat_activity
		WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&n)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

// until waits until is holds.
func (s *stage) until(what string, is func() bool) {
	s.t.Helper()
	if !poll.Until(waitLimit, 25*time.Millisecond, is) {
		s.t.Fatalf("never: %s", what)
	}
}

func TestReportOfAProcessThatWasReplacedMeanwhileChangesNothing(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	old, _ := s.register("host1", "agent1")
	id := s.submit(nil)
	attempt := s.place(id, "m0")
	old.mustClaim(id, attempt)
	alloc := s.alloc(id, attempt)
	seen := wire.ContainerSeen{Alloc: alloc, Job: id, Attempt: attempt}
	now := &agent{stage: s, machine: "m0", host: "host1", boot: "agent2"}
	done := make(chan error, 2)
	s.holding(`SELECT 1 FROM machine_leases WHERE machine_id = 'm0' FOR UPDATE`, func() {
		go func() { // registers, and waits with everything else locked
			r, _, err := s.db.Agents.Register(context.WithoutCancel(t.Context()), "m0", now.request(seen))
			now.epoch = r.Epoch
			done <- err
		}()
		s.blocked(1)
		go func() { // was under way when its process was replaced
			req := wire.SyncRequest{AgentBoot: old.boot, Epoch: old.epoch, Seq: 57, Reports: []wire.RankReport{
				{Alloc: alloc, Job: id, Attempt: attempt, Phase: berth.PhasePulling},
			}}
			_, err := s.db.Agents.Sync(context.WithoutCancel(t.Context()), "m0", req)
			for berth.CodeOf(err) == berth.CodeUnavailable { // the locks were held for too long, and agents repeat the call
				_, err = s.db.Agents.Sync(context.WithoutCancel(t.Context()), "m0", req)
			}
			if !berth.IsSlug(err, berth.SlugStaleEpoch) {
				done <- errors.Join(errors.New("the old process was not refused"), err)
				return
			}
			done <- nil
		}()
		s.blocked(2)
	})
	for range 2 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if phase := one[string](s, `SELECT phase FROM allocations`); phase != "claimed" {
		t.Errorf("the old process made the phase %s", phase)
	}
	now.report(id, attempt, berth.PhaseExited, withExit(1))
	if st := one[string](s, `SELECT state FROM allocations`); st != "exited" {
		t.Errorf("the new process reports an exit, and the rank is %s", st)
	}
}

// unsealed begins an attempt on m0 whose rank has ended and still uploads.
func (s *stage) unsealed(edit func(*spec.Job)) (berth.JobID, int) {
	s.t.Helper()
	id, attempt := s.started(edit)
	mustExec(s.t, s.pool, `UPDATE allocations SET state = 'exited', phase = 'exited', exit = $2, exited_at = now() WHERE job = $1`, id, exited(0))
	return id, attempt
}

func TestUploadsOfAMachineThatIsLostAlreadyAreGivenUpToo(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	patient := func(j *spec.Job) { j.LostAfter = spec.Duration(10 * time.Minute) }
	id, attempt := s.unsealed(patient)
	s.quiet("m0", 2*time.Minute)
	if v := s.judge(term, "m0"); !v.Lost || len(v.Jobs) != 0 {
		t.Fatalf("after two minutes: %+v", v)
	}
	if due, _ := s.overdue(); len(due) != 0 {
		t.Errorf("due before the job's own patience is over: %v", due)
	}
	if r := s.settle(id, attempt); !r.NotReady {
		t.Fatalf("settled before: %+v", r)
	}
	s.quiet("m0", 11*time.Minute)
	due, _ := s.overdue()
	if len(due) != 1 || due[0].Machine != "m0" || !due[0].Ranks {
		t.Fatalf("due: %v", due)
	}
	if v := s.judge(term, "m0"); v.Lost || len(v.Jobs) != 1 {
		t.Errorf("verdict: %+v", v)
	}
	if r := s.settle(id, attempt); r.Next != berth.Succeeded {
		t.Errorf("settled as %+v", r)
	}
	if due, _ := s.overdue(); len(due) != 0 {
		t.Errorf("still due: %v", due)
	}
}

func TestConfirmDeadGivesUpUploads(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id, attempt := s.unsealed(nil)
	s.lease("m0", -time.Second)
	jobs, err := s.db.Machines.ConfirmDead(t.Context(), "m0", "operator:test")
	if err != nil || len(jobs) != 1 {
		t.Fatalf("confirm-dead: %v, %v", jobs, err)
	}
	if r := s.settle(id, attempt); r.Next != berth.Succeeded {
		t.Errorf("settled as %+v", r)
	}
	s.freed()
}

func TestRetireWaitsForUploads(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id, attempt := s.unsealed(nil)
	if err := s.db.Machines.Retire(t.Context(), "m0", "operator:test"); berth.CodeOf(err) != berth.CodeConflict {
		t.Fatalf("retire while a rank uploads: %v, want conflict", err)
	}
	s.exit(id, attempt, 0, exited(0))
	if err := s.db.Machines.Retire(t.Context(), "m0", "operator:test"); err != nil {
		t.Error(err)
	}
}

func TestDrainOutlivesTheLossOfTheMachine(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.register("host1", "agent1")
	if err := s.db.Machines.Drain(t.Context(), "m0", "new disk", nil, "operator:test"); err != nil {
		t.Fatal(err)
	}
	s.quiet("m0", 2*time.Minute)
	if v := s.judge(s.term(), "m0"); !v.Lost {
		t.Fatalf("verdict: %+v", v)
	}
	s.register("host2", "agent2")
	if st := s.state("m0"); st != berth.MachineDraining {
		t.Errorf("a drained machine comes back as %s", st)
	}
	if err := s.db.Machines.Undrain(t.Context(), "m0", "operator:test"); err != nil ||
		s.state("m0") != berth.MachineReady {
		t.Errorf("undrained it is %s, %v", s.state("m0"), err)
	}
}

func TestDrainedMachineOwesItsKills(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.register("host1", "agent1")
	id := s.submit(nil)
	stray := func(alloc berth.AllocationID) wire.ContainerSeen {
		return wire.ContainerSeen{Alloc: alloc, Job: id, Attempt: 9}
	}
	if err := s.db.Machines.Drain(t.Context(), "m0", "new disk", nil, "operator:test"); err != nil {
		t.Fatal(err)
	}
	a, _ := s.register("host1", "agent2", stray(4711), stray(4712))
	gone := func(alloc berth.AllocationID) {
		if _, err := a.sync(func(r *wire.SyncRequest) { r.Gone = []berth.AllocationID{alloc} }); err != nil {
			t.Fatal(err)
		}
	}
	gone(4711) // while it drains
	if err := s.db.Machines.Undrain(t.Context(), "m0", "operator:test"); err != nil {
		t.Fatal(err)
	}
	if st := s.state("m0"); st != berth.MachineJoining {
		t.Errorf("with a leftover it is %s", st)
	}
	gone(4712)
	if st := s.state("m0"); st != berth.MachineReady {
		t.Errorf("without leftovers it is %s", st)
	}
}

func TestGangWithoutOneRankDoesNotStart(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	id := s.submit(func(j *spec.Job) { j.Members = 2 })
	attempt := s.place(id, "m0", "m1")
	s.claim(id, attempt, 1)
	a.mustClaim(id, attempt)
	// m1 fell silent and is back without the container.
	s.orphan(id, attempt, 1)
	mustExec(t, s.pool, `UPDATE allocations SET state = 'released', released_at = now() WHERE job = $1 AND rank = 1`, id)
	a.report(id, attempt, berth.PhasePrepared, nil)
	if st := s.job(id).Status; st != berth.Scheduled {
		t.Errorf("with one of two ranks the job is %s", st)
	}
}

func TestGangIsGivenUpWhenARankIsNotTaken(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	id := s.submit(func(j *spec.Job) { j.Members = 3 })
	attempt := s.place(id, "m0", "m1", "m2")
	a.mustClaim(id, attempt)
	if r := s.settle(id, attempt); !r.NotReady {
		t.Fatalf("settled as %+v", r)
	}
	if got := s.ranks(id, attempt); got[0] != "active {}" || got[1] != "reserved {}" {
		t.Fatalf("before the limit: %v", got)
	}
	s.ago(`UPDATE allocations SET reserved_at = now() - interval '3 minutes' WHERE rank = 1`)
	if r := s.settle(id, attempt); !r.NotReady {
		t.Fatalf("with a live rank it is settled as %+v", r)
	}
	if got := s.ranks(id, attempt); got[1] != `released {"forget": true}` || got[2] != `released {"forget": true}` {
		t.Errorf("after the limit: %v", got)
	}
	a.report(id, attempt, berth.PhaseSealed, func(p *wire.RankReport) {
		p.Exit = &failure.Exit{Cause: failure.CauseNotStarted, FinishedAt: ranAt}
	})
	if r := s.settle(id, attempt); r.Next != berth.Retrying {
		t.Errorf("settled as %+v", r)
	}
	if j := s.job(id); j.Reason == nil || j.Reason.Code != berth.ReasonUnclaimed || j.Losses != 1 {
		t.Errorf("reason %+v, %d losses", j.Reason, j.Losses)
	}
	if avoid := one[[]string](s, `SELECT avoid FROM jobs WHERE id = $1`, id); len(avoid) != 1 || avoid[0] != "m1" {
		t.Errorf("avoids %v", avoid)
	}
	s.freed()
}

func TestGPUsOfARetiredMachineMayComeBackUnderAnotherName(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	moved := a.request()
	moved.AgentBoot = "agent-of-m1"
	if _, _, err := s.db.Agents.Register(t.Context(), "m1", moved); berth.CodeOf(err) != berth.CodeConflict {
		t.Fatalf("two machines with one GPU: %v, want conflict", err)
	}
	if err := s.db.Machines.Retire(t.Context(), "m0", "operator:test"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.db.Agents.Register(t.Context(), "m1", moved); err != nil {
		t.Fatalf("after m0 was retired: %v", err)
	}
	if n := one[int](s, `SELECT count(*) FROM gpu_devices WHERE machine_id = 'm1' AND healthy AND uuid LIKE 'm0-%'`); n != 2 {
		t.Errorf("m1 has %d of the two GPUs", n)
	}
}
