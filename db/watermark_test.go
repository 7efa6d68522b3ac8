package db_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/wire"
)

// grants has a leader grant a watermark, and returns it as a machine hears it.
func (s *stage) grants(b *db.Branch) wire.StoredWatermark {
	s.t.Helper()
	next, err := b.Reserve(s.t.Context(), s.db.Leader, 0)
	if err == nil {
		err = b.Grant(s.t.Context(), s.db.Leader, next)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return s.newest()
}

// newest is the newest watermark, as a machine hears it.
func (s *stage) newest() wire.StoredWatermark {
	s.t.Helper()
	cluster, err := s.db.Cluster.ID(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	other := &agent{stage: s, machine: "m2", host: "host3", boot: "agent3"}
	r, _, err := s.db.Agents.Register(s.t.Context(), other.machine, other.request())
	if err != nil || r.Watermark == nil {
		s.t.Fatalf("registered with watermark %v: %v", r.Watermark, err)
	}
	return wire.StoredWatermark{Cluster: cluster, Watermark: *r.Watermark}
}

// loses makes the database one that was restored to before its newest watermark.
func (s *stage) loses() {
	s.t.Helper()
	mustExec(s.t, s.pool, `UPDATE watermark_branches SET granted = granted - 1, pending = granted - 1 WHERE branch = (SELECT branch FROM cluster)`)
}

func (s *stage) incarnation() int64 {
	s.t.Helper()
	n, err := s.db.Leader.Incarnation(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

func TestF15AMachineAheadOfTheDatabaseMakesItLeapOnce(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.fences("m1", time.Minute)
	branch := &db.Branch{Term: s.term()}
	s.grants(branch)
	a, _ := s.register("host1", "agent1")
	queued, reserved, running := s.submit(alone), s.submit(alone), s.submit(alone)
	s.place(reserved, "m1")
	s.claim(running, s.place(running, "m1"), 0)
	s.run(running)
	ended := s.submit(alone)
	mustExec(t, s.pool, `UPDATE jobs SET state = 'failed', version = version + 1, reason = '{"code": "user_error", "message": "x"}', finished_at = now() WHERE id = $1`, ended)
	plain := s.submit(nil)
	given := s.alloc(running, 1)
	seen := s.grants(branch)
	if _, err := a.sync(func(r *wire.SyncRequest) { r.Watermark = seen }); err != nil {
		t.Fatalf("a machine that is not ahead: %v", err)
	}
	s.loses()
	was := s.incarnation()

	forged, foreign := seen, seen
	forged.Signature = "00112233445566778899aabbccddeeff"
	foreign.Cluster = "another"
	for _, w := range []wire.StoredWatermark{forged, foreign} {
		if _, err := a.sync(func(r *wire.SyncRequest) { r.Watermark = w }); err != nil || s.incarnation() != was {
			t.Fatalf("watermark %s: %v, incarnation %d after %d", w, err, s.incarnation(), was)
		}
	}
	calls := map[string]func() error{
		"sync": func() error { _, err := a.sync(func(r *wire.SyncRequest) { r.Watermark = seen }); return err },
		"report": func() error {
			_, err := a.sync(func(r *wire.SyncRequest) {
				r.Watermark, r.Brief = seen, true
				r.Reports = []wire.RankReport{{Alloc: given, Job: running, Attempt: 1, Phase: berth.PhaseRunning}}
			})
			return err
		},
		"claim": func() error {
			_, err := s.db.Agents.Claim(t.Context(), "m0", wire.ClaimRequest{AgentBoot: a.boot, Epoch: a.epoch, Alloc: given, Job: running, Attempt: 1, Watermark: seen})
			return err
		},
	}
	for _, name := range []string{"report", "claim", "sync"} { // the first makes it leap, the others come too late for that
		if err := calls[name](); !berth.IsSlug(err, berth.SlugStaleEpoch) {
			t.Errorf("%s of a machine that is ahead: %v", name, err)
		}
		if n := s.incarnation(); n != was+1 {
			t.Errorf("incarnation %d after %s, it was %d", n, name, was)
		}
	}
	r := a.request()
	r.Watermark = seen
	if answer, _, err := s.db.Agents.Register(t.Context(), "m0", r); err != nil || answer.Watermark == nil || answer.Watermark.Number <= seen.Number || s.incarnation() != was+1 {
		t.Errorf("registered with %+v, %v, incarnation %d", answer.Watermark, err, s.incarnation())
	}
	for job, held := range map[berth.JobID]bool{queued: true, reserved: true, running: true, ended: false, plain: false} {
		if j := s.job(job); j.Held != held {
			t.Errorf("job %s (%s) is held: %v, want %v", job, j.Status, j.Held, held)
		}
	}
	if _, err := branch.Reserve(t.Context(), s.db.Leader, 0); !berth.IsSlug(err, berth.SlugStaleEpoch) {
		t.Errorf("the leader of before goes on: %v", err)
	}
	if after := s.alloc(plain, s.place(plain, "m0")); after < given+1_000_000 {
		t.Errorf("allocation %d follows %d", after, given)
	}
}

func TestF15AMachineThatIsHeardLateIsStillAhead(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	branch := &db.Branch{Term: term}
	s.grants(branch)
	seen := s.grants(branch)
	s.loses()
	// The restored database, whose store was restored too, goes on under another
	// leader, and beyond the number that was lost.
	mustExec(t, s.pool, `UPDATE leases SET holder = 'another', epoch = epoch + 1 WHERE name = 'leader'`)
	term.Holder, term.Epoch = "another", term.Epoch+1
	branch = &db.Branch{Term: term}
	for s.grants(branch).Number <= seen.Number {
	}
	a, _ := s.register("host1", "agent1")
	if _, err := a.sync(func(r *wire.SyncRequest) { r.Watermark = seen }); !berth.IsSlug(err, berth.SlugStaleEpoch) || s.incarnation() != 2 {
		t.Errorf("sync answered %v in incarnation %d", err, s.incarnation())
	}
}

func TestF15ALeaderNoticesARestoreUnderIt(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	branch := &db.Branch{Term: term}
	s.grants(branch)
	s.grants(branch)
	var baseline db.Baseline
	for range 2 {
		if err := baseline.Verify(t.Context(), s.db.Leader); err != nil {
			t.Fatal(err)
		}
	}
	s.loses() // with the lease as it was: same holder, same term
	if _, err := branch.Reserve(t.Context(), s.db.Leader, 0); !errors.Is(err, db.ErrRestored) {
		t.Errorf("reserved: %v", err)
	}
	if err := baseline.Verify(t.Context(), s.db.Leader); !errors.Is(err, db.ErrRestored) {
		t.Errorf("verified: %v", err)
	}
	for n, proof := range []db.Outside{baseline.Lost(), branch.Lost()} { // the second proves no other restore
		if done, err := s.db.Leader.Leap(t.Context(), proof); err != nil || done != (n == 0) || s.incarnation() != 2 {
			t.Errorf("leapt beyond %+v: %v, %v, incarnation %d", proof, done, err, s.incarnation())
		}
	}
	if err := baseline.Verify(t.Context(), s.db.Leader); err != nil {
		t.Errorf("verified again: %v", err)
	}
	if again := s.term(); again.Epoch < term.Epoch+1_000_000 {
		t.Errorf("the next term is %d after %d", again.Epoch, term.Epoch)
	}
}

// The commit of Grant is in the database, and its answer was lost on the way.
func TestAGrantWhoseAnswerWasLostIsNoRestore(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	branch := db.Branch{Term: s.term()}
	for n := range int64(3) {
		next, err := branch.Reserve(t.Context(), s.db.Leader, 0)
		if err != nil || next.Number != n+1 {
			t.Fatalf("reserved %d, %v; want %d", next.Number, err, n+1)
		}
		unheard := branch
		if err := branch.Grant(t.Context(), s.db.Leader, next); err != nil {
			t.Fatal(err)
		}
		late := unheard // its commit comes in after the next Reserve has read the row
		if err := late.Grant(t.Context(), s.db.Leader, next); err != nil {
			t.Errorf("granted %d again: %v", next.Number, err)
		}
		branch = unheard
	}
	s.loses()
	s.loses()
	if _, err := branch.Reserve(t.Context(), s.db.Leader, 0); !errors.Is(err, db.ErrRestored) {
		t.Errorf("reserved in a restored database: %v", err)
	}
}

// Ids, terms and watermarks are beyond 32 bits after some leaps, and of earlier
// branches none is left.
func TestF15LeapsHaveNoEnd(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.register("host1", "agent1")
	mustExec(t, s.pool, `SELECT setval(pg_get_serial_sequence('allocations', 'id'), 3000000000)`)
	s.term()
	mustExec(t, s.pool, `UPDATE leases SET epoch = 3000000000`)
	for n := range 4 {
		mustExec(t, s.pool, `UPDATE leases SET expires_at = now() - interval '1 s'`)
		branch := &db.Branch{Term: s.term()}
		s.grants(branch)
		next, err := branch.Reserve(t.Context(), s.db.Leader, 0)
		if err == nil {
			err = branch.Grant(t.Context(), s.db.Leader, next)
		}
		if err != nil {
			t.Fatal(err)
		}
		s.loses()
		if done, err := s.db.Leader.Leap(t.Context(), next); !done || err != nil {
			t.Fatalf("leap %d: %v, %v", n+1, done, err)
		}
		if left := one[int](s, `SELECT count(*) FROM watermark_branches`); left != 1 {
			t.Errorf("%d branches after a leap", left)
		}
	}
}

// A leader's write that is under way commits before the leap, and a leap that is
// under way holds back the leader's next one.
func TestF15ALeapAndALeadersWriteExcludeEachOther(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	branch := &db.Branch{Term: s.term()}
	seen := s.grants(branch)
	next, err := branch.Reserve(t.Context(), s.db.Leader, 0)
	if err == nil {
		err = branch.Grant(t.Context(), s.db.Leader, next)
	}
	if err != nil {
		t.Fatal(err)
	}
	s.loses()
	done := make(chan error, 1)
	s.holding(`SELECT 1 FROM leases WHERE name = 'leader' FOR KEY SHARE`, func() {
		go func() {
			_, err := s.db.Leader.Leap(context.WithoutCancel(t.Context()), next)
			done <- err
		}()
		s.blocked(1)
		if n := s.incarnation(); n != 1 {
			t.Errorf("incarnation %d during a leader's write", n)
		}
	})
	if err := <-done; err != nil || s.incarnation() != 2 {
		t.Errorf("leapt beyond %d: %v, incarnation %d", seen.Number, err, s.incarnation())
	}
}

func TestF4ADeposedLeaderGrantsNoWatermark(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	branch := &db.Branch{Term: s.term()}
	next, err := branch.Reserve(t.Context(), s.db.Leader, 0)
	if err != nil {
		t.Fatal(err)
	}
	mustExec(t, s.pool, `UPDATE leases SET holder = 'another', epoch = epoch + 1 WHERE name = 'leader'`)
	s.refusesStale(berth.SlugStaleEpoch, map[string]func(context.Context) error{
		"Reserve": func(ctx context.Context) error { _, err := branch.Reserve(ctx, s.db.Leader, 0); return err },
		"Grant":   func(ctx context.Context) error { return branch.Grant(ctx, s.db.Leader, next) },
	})
}

// The id of a container that the database forgot was given to another job.
func TestF15AContainerWhoseIDWasGivenAgainIsLeftAlone(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.register("host1", "agent0")
	id := s.submit(nil)
	alloc := s.alloc(id, s.place(id, "m0"))
	forgotten := wire.ContainerSeen{Alloc: alloc, Job: berth.NewJobID(time.Now()), Attempt: 1, Running: true}
	_, r := s.register("host1", "agent1", forgotten)
	if !slices.Equal(r.Quarantine, []berth.AllocationID{alloc}) || len(r.Kill) != 0 {
		t.Errorf("kill %v, quarantine %v", r.Kill, r.Quarantine)
	}
}

// A report about work that no row knows is no reason to kill it.
func TestF15AReportOfForgottenWorkAsksForARegistration(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	_, err := a.sync(func(r *wire.SyncRequest) {
		r.Reports = []wire.RankReport{{Alloc: 57, Job: berth.NewJobID(time.Now()), Attempt: 1, Phase: berth.PhaseRunning}}
	})
	if !berth.IsSlug(err, berth.SlugStaleEpoch) {
		t.Errorf("answered %v", err)
	}
}
