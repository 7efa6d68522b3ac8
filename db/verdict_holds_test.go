package db_test

import (
	"testing"
	"time"

	"berth"
	"berth/db"
)

// noVerdict checks that no verdict is due on m0, and that none is passed.
func (s *stage) noVerdict(term db.Term, when string) {
	s.t.Helper()
	if due, _ := s.overdue(); len(due) != 0 {
		s.t.Errorf("%s: due %v", when, due)
	}
	if v := s.judge(term, "m0"); len(v.Jobs) != 0 || v.Lost {
		s.t.Errorf("%s: verdict %+v", when, v)
	}
}

// TestF30ADatabaseClockThatWasSetBackStartsAGrace checks that a beacon from before the database's clock was set back
// hides no outage of the API, and that a grace from then does not outlast the new one.
func TestF30ADatabaseClockThatWasSetBackStartsAGrace(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	s.started(nil)
	s.quiet("m0", 5*time.Minute)
	beat := func() {
		t.Helper()
		if err := s.db.Leader.RenewBeacon(t.Context(), "x", db.BeaconTTL, time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	beat()
	if due, _ := s.overdue(); len(due) != 1 {
		t.Fatalf("before: due %v", due)
	}
	mustExec(t, s.pool, `UPDATE leases SET expires_at = expires_at + interval '1 hour' WHERE name = 'api'`)
	if proves, err := s.db.Machines.SilenceProves(t.Context()); proves || err != nil {
		t.Errorf("with a beacon of the future silence proves something: %v", err)
	}
	s.noVerdict(term, "with a beacon of the future")
	mustExec(t, s.pool, `INSERT INTO leases (name, holder, expires_at)
		VALUES ('grace', 'x', now() + interval '1 hour')`)
	beat()
	s.noVerdict(term, "in the grace")
	rest := one[time.Duration](s, `SELECT expires_at - clock_timestamp() FROM leases WHERE name = 'grace'`)
	if rest > time.Minute {
		t.Errorf("the grace lasts for another %s", rest)
	}
}

// TestAGraceIsLongEnoughForACall checks that machines have the time to call before a verdict, however short the
// configured grace is.
func TestAGraceIsLongEnoughForACall(t *testing.T) {
	t.Parallel()
	s := db.Silence{Suspect: 20 * time.Second}
	least := s.Suspect + berth.SyncWait + time.Second
	for want, got := range map[time.Duration]time.Duration{0: least, time.Second: least, time.Minute: time.Minute} {
		if g := s.Grace(want); g != got {
			t.Errorf("--grace %s is a grace of %s, want %s", want, g, got)
		}
	}
}
