package db_test

import (
	"strings"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/wire"
)

var patience = db.Patience{Prepare: time.Hour, Obey: time.Minute, Seal: 20 * time.Minute, Barrier: 15 * time.Minute,
	Suspect: silence.Suspect}

func (s *stage) giveUp(term db.Term) func() (int, error) {
	return func() (int, error) {
		ids, err := s.db.Attempts.GiveUpStuck(s.t.Context(), term, patience, 10)
		return len(ids), err
	}
}

func TestARankThatIsNeverPreparedIsKilledAndThenGivenUp(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	a, _ := s.register("host1", "agent1")
	id := s.submit(nil)
	attempt := s.place(id, "m0")
	a.mustClaim(id, attempt)
	a.report(id, attempt, berth.PhasePulling, nil)
	kill := func() (int, error) { return s.db.Attempts.KillUnprepared(t.Context(), term, patience, 10) }
	repaired(t, "in time", 0, kill)
	s.ago(`UPDATE allocations SET claimed_at = now() - interval '61 min'`)
	repaired(t, "late", 1, kill)
	if r := s.ranks(id, attempt); r[0] != `active {"kill": true}` {
		t.Errorf("rank is %s", r[0])
	}
	repaired(t, "it may obey", 0, s.giveUp(term))
	s.ago(`UPDATE allocations SET stop_by = now() - interval '61 s'`)
	if ids, err := s.db.Machines.Disobedient(t.Context(), time.Minute); err != nil || len(ids) != 1 {
		t.Errorf("disobedient: %v, %v", ids, err)
	}
	repaired(t, "it did not", 1, s.giveUp(term))
	if r := s.settle(id, attempt); r.Next != berth.Retrying {
		t.Errorf("settled to %s", r.Next)
	}
	if n := one[int](s, `SELECT gpu_milli_used FROM machines WHERE id = 'm0'`); n != 1000 {
		t.Errorf("m0 counts %d before it has confirmed the end", n)
	}
	if _, err := a.sync(func(r *wire.SyncRequest) { r.Gone = []berth.AllocationID{s.alloc(id, attempt)} }); err != nil {
		t.Fatal(err)
	}
	s.freed()
}

func TestARankThatRunsIsNeverTooSlowToPrepare(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	s.started(nil)
	s.ago(`UPDATE allocations SET claimed_at = now() - interval '1 day'`)
	repaired(t, "running", 0, func() (int, error) { return s.db.Attempts.KillUnprepared(t.Context(), term, patience, 10) })
	repaired(t, "running", 0, s.giveUp(term))
}

func TestUploadsThatNeverEndAreGivenUp(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	id, attempt := s.unsealed(nil)
	repaired(t, "in time", 0, s.giveUp(term))
	s.ago(`UPDATE allocations SET exited_at = now() - interval '21 min'`)
	repaired(t, "late", 1, s.giveUp(term))
	if e := lastEvent(s, id); e.Kind != wire.EventWarning || !strings.Contains(e.Detail, "not stored") {
		t.Errorf("event %+v", e)
	}
	if r := s.settle(id, attempt); r.Next != berth.Succeeded {
		t.Errorf("settled to %s", r.Next)
	}
	s.freed()
}

// A machine that is cut off cannot upload. What its members have left to store waits for its return, and as long
// after it as after their end. A draining machine does not change its state in a silence. A suspect machine changes
// its state later than its first call.
func TestF28UploadsOfASilentMachineWaitForIt(t *testing.T) {
	t.Parallel()
	for _, state := range []berth.MachineState{berth.MachineReady, berth.MachineSuspect, berth.MachineDraining} {
		t.Run(string(state), func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			term := s.term()
			a, _ := s.register("host1", "agent1")
			id, attempt := s.unsealed(nil)
			s.ago(`UPDATE allocations SET exited_at = now() - interval '25 min'`)
			s.ago(`UPDATE machines SET state = $1`, state)
			s.ago(`UPDATE machines SET state_at = now() - interval '24 min'`)
			s.quiet("m0", 24*time.Minute)
			repaired(t, "silent", 0, s.giveUp(term))
			s.holding(`SELECT 1 FROM machines WHERE id = 'm0' FOR UPDATE`, func() {
				if _, err := a.sync(func(*wire.SyncRequest) {}); err != nil {
					t.Fatal(err)
				}
				repaired(t, "heard, in the same state", 0, s.giveUp(term))
			})
			if _, err := a.sync(func(*wire.SyncRequest) {}); err != nil {
				t.Fatal(err)
			}
			repaired(t, "back for a moment", 0, s.giveUp(term))
			s.ago(`UPDATE machines SET state_at = now() - interval '21 min'`)
			s.ago(`UPDATE machine_leases SET back_at = now() - interval '21 min'`)
			repaired(t, "back for long", 1, s.giveUp(term))
			if r := s.settle(id, attempt); r.Next != berth.Succeeded {
				t.Errorf("settled to %s", r.Next)
			}
		})
	}
}

// Every call that may end a silence records the return, and a call that follows soon does not.
func TestEachCallRecordsTheReturnOfAMachine(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	id := s.submit(nil)
	attempt := s.place(id, "m0")
	a.mustClaim(id, attempt)
	back := func() *time.Time {
		return one[*time.Time](s, `SELECT back_at FROM machine_leases WHERE machine_id = 'm0'`)
	}
	if at := back(); at != nil {
		t.Fatalf("a machine that was never silent returned at %s", at)
	}
	for _, call := range []struct {
		name string
		do   func()
	}{
		{"a renewal", func() {
			if _, err := a.sync(func(*wire.SyncRequest) {}); err != nil {
				t.Fatal(err)
			}
		}},
		{"a report", func() { a.report(id, attempt, berth.PhasePulling, nil) }},
		{"a registration", func() { a, _ = s.register("host1", "agent2") }},
	} {
		before := back()
		s.quiet("m0", 21*time.Second)
		call.do()
		first := back()
		if first == nil || before != nil && !first.After(*before) {
			t.Errorf("%s after a silence records no return: %v", call.name, first)
		}
		call.do()
		if again := back(); first != nil && !again.Equal(*first) {
			t.Errorf("%s after another call records a return", call.name)
		}
	}
}

// While verdicts are frozen, members that are not prepared stay on silent machines. Elsewhere, and without a freeze,
// they are killed and given up as always.
func TestF28UnpreparedMembersStayOnSilentMachinesDuringAFreeze(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		frozen, silent bool
		want           int
	}{
		"frozen, silent": {true, true, 0},
		"frozen, heard":  {true, false, 1},
		"silent":         {false, true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			term := s.term()
			a, _ := s.register("host1", "agent1")
			id := s.submit(nil)
			attempt := s.place(id, "m0")
			a.mustClaim(id, attempt)
			a.report(id, attempt, berth.PhasePulling, nil)
			s.ago(`UPDATE allocations SET claimed_at = now() - interval '61 min'`)
			if c.silent {
				s.quiet("m0", 30*time.Minute)
			}
			p := patience
			p.Frozen = c.frozen
			kill := func() (int, error) { return s.db.Attempts.KillUnprepared(t.Context(), term, p, 10) }
			repaired(t, "kill", c.want, kill)
			s.ago(`UPDATE allocations SET orders = '{"kill": true}', stop_by = now() - interval '61 s'`)
			repaired(t, "give up", c.want, func() (int, error) {
				ids, err := s.db.Attempts.GiveUpStuck(t.Context(), term, p, 10)
				return len(ids), err
			})
		})
	}
}

// A member that a freeze has spared has time to prepare after the return of its machine: the machine could neither
// pull nor report.
func TestF28UnpreparedMembersHaveTimeAfterTheReturnOfTheirMachine(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	a, _ := s.register("host1", "agent1")
	id := s.submit(nil)
	attempt := s.place(id, "m0")
	a.mustClaim(id, attempt)
	a.report(id, attempt, berth.PhasePulling, nil)
	s.ago(`UPDATE allocations SET claimed_at = now() - interval '61 min'`)
	s.quiet("m0", 30*time.Minute)
	a.report(id, attempt, berth.PhasePulling, nil)
	kill := func() (int, error) { return s.db.Attempts.KillUnprepared(t.Context(), term, patience, 10) }
	repaired(t, "back for a moment", 0, kill)
	s.ago(`UPDATE machine_leases SET back_at = now() - interval '14 min'`)
	repaired(t, "back for 14 minutes", 0, kill)
	s.ago(`UPDATE machine_leases SET back_at = now() - interval '16 min'`)
	repaired(t, "back for 16 minutes", 1, kill)
	s.ago(`UPDATE allocations SET stop_by = now() - interval '61 s'`)
	s.ago(`UPDATE machine_leases SET back_at = now() - interval '59 s'`)
	repaired(t, "back for a moment with a kill", 0, s.giveUp(term))
	s.ago(`UPDATE machine_leases SET back_at = now() - interval '61 s'`)
	repaired(t, "back for a minute with a kill", 1, s.giveUp(term))
}

// TestAStrayThatIsNotKilledIsNoticed checks that a kill of a stray rank sets a stop_by of its own. The job
// sets none, and without one an ignored kill would never be noticed.
func TestAStrayThatIsNotKilledIsNoticed(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	id, _ := s.started(nil)
	s.move(id, berth.Retrying)
	repaired(t, "strays", 1, func() (int, error) { return s.db.Attempts.KillStray(t.Context(), term, 10) })
	if ids, err := s.db.Machines.Disobedient(t.Context(), time.Minute); err != nil || len(ids) != 0 {
		t.Errorf("at once: %v, %v", ids, err)
	}
	s.ago(`UPDATE allocations SET stop_by = stop_by - interval '61 s'`)
	if ids, err := s.db.Machines.Disobedient(t.Context(), time.Minute); err != nil || len(ids) != 1 || ids[0] != "m0" {
		t.Errorf("after a minute: %v, %v", ids, err)
	}
}
