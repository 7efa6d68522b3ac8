package db_test

import (
	"strings"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/wire"
)

var patience = db.Patience{Prepare: time.Hour, Obey: time.Minute, Seal: 20 * time.Minute, Barrier: 15 * time.Minute}

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
