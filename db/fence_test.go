package db_test

import (
	"fmt"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/spec"
	"berth/wire"
)

// fences makes a machine one that ends at_most_one work after d of silence.
func (s *stage) fences(machine string, d time.Duration) {
	s.t.Helper()
	mustExec(s.t, s.pool, `UPDATE machines SET fence_ms = $2 WHERE id = $1`, machine, d.Milliseconds())
}

func alone(j *spec.Job) {
	grace := spec.Duration(time.Minute)
	j.Execution, j.StopGrace = spec.AtMostOne, &grace
}

func TestF24AtMostOneWorkIsReplacedOnlyAfterItsMachineHasEndedIt(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	s.fences("m0", 15*time.Minute)
	id, attempt := s.started(alone)
	release := 15*time.Minute + time.Minute + time.Minute // fence, grace, margin
	s.quiet("m0", release-30*time.Second)
	if v := s.judge(term, "m0"); len(v.Jobs) != 0 || v.Lost {
		t.Errorf("verdict %+v before the release", v)
	}
	if r := s.settle(id, attempt); !r.NotReady {
		t.Errorf("settled to %+v while its container may live", r)
	}
	// A machine that promises more since, or less, is taken by the longer word.
	s.fences("m0", time.Hour)
	s.quiet("m0", release+time.Second)
	if v := s.judge(term, "m0"); len(v.Jobs) != 0 {
		t.Errorf("verdict %+v although the machine has until %s", v, time.Hour)
	}
	s.fences("m0", time.Minute)
	s.quiet("m0", release-30*time.Second)
	if v := s.judge(term, "m0"); len(v.Jobs) != 0 {
		t.Errorf("verdict %+v although the rank was claimed under a longer fence", v)
	}
	s.quiet("m0", release+time.Second)
	if v := s.judge(term, "m0"); len(v.Jobs) != 1 || v.Jobs[0] != id {
		t.Errorf("verdict %+v after the release", v)
	}
	if c, _ := used(t, s.pool, "m0"); c.CPUMilli != 1000 {
		t.Errorf("m0 uses %+v: a timeout freed capacity", c)
	}
	if r := s.settle(id, attempt); r.Next != berth.Retrying {
		t.Errorf("settled to %+v", r)
	}
}

func TestSilenceNeverReplacesAtMostOneWorkOfAMachineThatCannotFence(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	s.fences("m0", time.Minute)
	id, attempt := s.started(alone)
	s.fences("m0", 0) // its agent was started without a deadman
	s.quiet("m0", 300*24*time.Hour)
	if due, _ := s.overdue(); len(due) != 0 {
		t.Errorf("due %v", due)
	}
	if v := s.judge(term, "m0"); len(v.Jobs) != 0 || v.Lost {
		t.Errorf("verdict %+v", v)
	}
	if _, err := s.db.Machines.ConfirmDead(t.Context(), "m0", "operator:x"); err != nil {
		t.Fatal(err)
	}
	if r := s.settle(id, attempt); r.Next != berth.Retrying {
		t.Errorf("settled to %+v after an operator's word", r)
	}
}

func TestAtMostOneWorkThatWasNeverClaimedWaitsForNoFence(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	s.fences("m0", 15*time.Minute)
	id := s.submit(alone)
	s.place(id, "m0")
	s.quiet("m0", 91*time.Second)
	if v := s.judge(term, "m0"); len(v.Jobs) != 1 {
		t.Errorf("verdict %+v: nothing can run of what was not claimed", v)
	}
}

func TestAtMostOneWorkGoesOnlyWhereItCanBeFenced(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.register("host1", "agent0")
	id := s.queued(alone)
	s.mustRefuse(s.term(), s.start(id, on("m0")), "cannot fence")
	s.fences("m0", time.Minute)
	attempt := s.place(id, "m0")
	a, _ := s.register("host1", "agent1") // it comes back without a fence
	if _, err := a.claims(id, attempt); err == nil {
		t.Error("claimed by a machine that cannot fence it")
	}
	r := a.request()
	r.Inventory.Fence = spec.Duration(90 * time.Second)
	if _, _, err := s.db.Agents.Register(t.Context(), "m0", r); err != nil {
		t.Fatal(err)
	}
	a.mustClaim(id, attempt)
	if m, err := s.db.Machines.Get(t.Context(), "", "m0"); err != nil || m.Fence.Std() != 90*time.Second {
		t.Errorf("machine shows fence %s, %v", m.Fence, err)
	}
}

// Only proof that the container is gone leads to a new attempt; no other report of a
// failure does.
func TestNothingButProofMakesANewAttemptOfAtMostOneWork(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	a, _ := s.register("host1", "agent1")
	s.fences("m0", 15*time.Minute)
	id := s.submit(alone)
	attempt := s.place(id, "m0")
	a.mustClaim(id, attempt)
	a.report(id, attempt, berth.PhasePrepared, nil)
	never := func(after string) {
		t.Helper()
		if r := s.settle(id, attempt); !r.NotReady {
			t.Fatalf("after %s it settled to %+v", after, r)
		}
		if j := s.job(id); j.Attempt != attempt {
			t.Fatalf("after %s it is in attempt %d", after, j.Attempt)
		}
	}
	never("the failure of its activity")
	soon := time.Now().Add(-time.Second)
	if err := s.db.Machines.Drain(t.Context(), "m0", "new disks", &soon, "operator:test"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.db.Attempts.DrainOverdue(t.Context(), term, 10); err != nil {
		t.Fatal(err)
	}
	never("a drain")
	mustExec(t, s.pool, `UPDATE allocations SET stop_by = now() - interval '1 h' WHERE job = $1`, id)
	if _, err := s.db.Attempts.KillOverdue(t.Context(), term, time.Second, 10); err != nil {
		t.Fatal(err)
	}
	never("an order to kill that nobody confirms")
	mustExec(t, s.pool, `UPDATE allocations SET reserved_at = now() - interval '1 h' WHERE job = $1`, id)
	never("a long time")
	s.register("host1", "agent2") // a new process that sees no container says nothing of it
	never("a registration without its container")
	s.quiet("m0", 2*time.Minute)
	s.judge(term, "m0")
	never("silence past lost_after")
	s.register("host2", "agent3")
	if r := s.settle(id, attempt); r.NotReady || r.Next != berth.Retrying {
		t.Errorf("after a reboot it settled to %+v", r)
	}
}

func TestALeaseIsCalledRenewedOnlyWhereItWas(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	seen := func() time.Time {
		return one[time.Time](s, `SELECT seen_at FROM machine_leases WHERE machine_id = 'm0'`)
	}
	renewed := 0
	for range 20 {
		was := seen()
		r, err := a.sync(func(*wire.SyncRequest) {})
		if err != nil {
			t.Fatal(err)
		}
		if moved := seen().After(was); moved != r.Renewed {
			t.Fatalf("answer says renewed %t, the row %t", r.Renewed, moved)
		}
		if r.Renewed {
			renewed++
		}
	}
	if renewed == 0 {
		t.Error("never renewed")
	}
}

func TestF28VerdictsFreezeWhenMoreThanAThirdIsSilent(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	const fleet = 40
	for i := range fleet - 3 {
		insertMachine(t, s.pool, fmt.Sprintf("x%d", i), 0)
	}
	for _, m := range []string{"m0", "m1", "m2"} {
		s.quiet(m, 0)
	}
	silent := func(n int) {
		t.Helper()
		for i := range fleet - 3 {
			d := time.Duration(0)
			if i < n {
				d = 10 * time.Minute
			}
			s.quiet(fmt.Sprintf("x%d", i), d)
		}
	}
	silent(fleet / 2)
	f, err := s.db.Machines.Fleet(t.Context(), silence)
	if err != nil || !f.Frozen() || f.Machines != fleet || f.Silent != fleet/2 || f.Held {
		t.Errorf("fleet %+v, %v", f, err)
	}
	if due, _ := s.overdue(); len(due) != 0 {
		t.Errorf("%d due although half of all machines is silent", len(due))
	}
	silent(fleet / 3)
	due, budget := s.overdue()
	if len(due) != fleet/3 || budget != fleet/10 {
		t.Fatalf("%d due and a budget of %d, want %d and %d", len(due), budget, fleet/3, fleet/10)
	}
	for _, m := range due[:budget] {
		if v := s.judge(term, m.Machine); !v.Lost {
			t.Errorf("machine %s: %+v", m.Machine, v)
		}
	}
	if _, budget := s.overdue(); budget != 0 {
		t.Errorf("budget %d after a tenth was lost", budget)
	}
	mustExec(t, s.pool, `UPDATE machines SET state_at = now() - interval '61 s' WHERE state = 'lost'`)
	if _, budget := s.overdue(); budget != fleet/10 {
		t.Errorf("budget %d a minute later", budget)
	}
	// One or two silent machines freeze nothing, however few there are.
	if (db.Fleet{Machines: 2, Silent: 2}).Frozen() || !(db.Fleet{Machines: 3, Silent: 3}).Frozen() || (db.Fleet{Machines: 9, Silent: 3}).Frozen() {
		t.Error("frozen at the wrong numbers")
	}
}

// TestF28AVerdictWaitsForMachinesThatFellSilentTogether checks that no machine is due before the others that fell
// silent at the same moment count as silent: the last calls of machines before a fault of the network are up to a poll
// apart, and with tables locked by a second and a third more (adr/0110).
func TestF28AVerdictWaitsForMachinesThatFellSilentTogether(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.started(func(j *spec.Job) { j.LostAfter = spec.Duration(2 * time.Second) }) // on m0
	const apart = berth.SyncWait + 1300*time.Millisecond
	together := func(longest time.Duration) int {
		t.Helper()
		s.quiet("m0", longest)
		s.quiet("m1", longest-apart)
		s.quiet("m2", longest-apart)
		due, _ := s.overdue()
		return len(due)
	}
	for past := time.Second; past < 3*berth.SyncWait; past += time.Second {
		if n := together(silence.Suspect + past); n != 0 {
			t.Errorf("%d due when the longest silence exceeds the limit by %s", n, past)
		}
	}
	s.quiet("m1", 0)
	if due, _ := s.overdue(); len(due) != 1 {
		t.Errorf("due with two silent machines: %v", due)
	}
}
