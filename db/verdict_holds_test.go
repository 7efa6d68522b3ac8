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

// count returns a count of the silent machines.
func (s *stage) count() db.Fleet {
	s.t.Helper()
	f, err := s.db.Machines.Fleet(s.t.Context(), silence)
	if err != nil {
		s.t.Fatal(err)
	}
	return f
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

// TestF28NoVerdictWhileNoLeaderCounts checks that verdicts need a recent count of the silent machines, once one is on
// record.
func TestF28NoVerdictWhileNoLeaderCounts(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	s.started(nil)
	s.quiet("m0", 5*time.Minute)
	record := func(f db.Fleet) {
		t.Helper()
		if err := s.db.Machines.RecordCount(t.Context(), term, f); err != nil {
			t.Fatal(err)
		}
	}
	if f := s.count(); !f.Before.IsZero() || f.Uncounted() != 0 || f.Held {
		t.Errorf("before the first count: %+v", f)
	}
	for name, shift := range map[string]string{
		"the last count was an hour ago":                   "-1 hour",
		"the last count was before the clock was set back": "1 hour",
	} {
		record(s.count())
		mustExec(t, s.pool, `UPDATE leases SET expires_at = now() + $1::interval WHERE name = 'count'`, shift)
		s.noVerdict(term, name)
		f := s.count()
		if f.Uncounted() < 59*time.Minute || !f.Held {
			t.Errorf("%s: %+v, uncounted for %s", name, f, f.Uncounted())
		}
		record(f)
		if f := s.count(); f.Uncounted() != 0 {
			t.Errorf("%s: uncounted for %s after a count", name, f.Uncounted())
		}
	}
	if due, _ := s.overdue(); len(due) != 1 {
		t.Errorf("after a count: due %v", due)
	}
}

// TestCountsAreSeldomRecorded checks that a count each second does not write each second, and that a deposed leader
// records none.
func TestCountsAreSeldomRecorded(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	old, ok := s.lead("old", -1)
	if !ok {
		t.Fatal("no lead")
	}
	term := s.term()
	recorded := func() time.Time {
		return one[time.Time](s, `SELECT expires_at FROM leases WHERE name = 'count'`)
	}
	now := time.Now().Truncate(time.Microsecond)
	record := func(term db.Term, f db.Fleet) error { return s.db.Machines.RecordCount(t.Context(), term, f) }
	if err := record(term, db.Fleet{At: now}); err != nil || !recorded().Equal(now) {
		t.Errorf("the first count: %v", err)
	}
	next := now.Add(time.Second)
	if err := record(term, db.Fleet{At: next, Before: now}); err != nil || !recorded().Equal(now) {
		t.Errorf("a second later: %v, recorded %s after the first one", err, recorded().Sub(now))
	}
	next = now.Add(3 * time.Second)
	if err := record(term, db.Fleet{At: next, Before: now}); err != nil || !recorded().Equal(next) {
		t.Errorf("three seconds later: %v, recorded %s after the first one", err, recorded().Sub(now))
	}
	if err := record(old, db.Fleet{At: now}); !berth.IsSlug(err, berth.SlugStaleEpoch) || !recorded().Equal(next) {
		t.Errorf("a count of a deposed leader: %v", err)
	}
}

// TestAUsualChangeOfLeaderIsNoTimeWithoutCounts checks which times between two counts let a freeze go unnoticed.
func TestAUsualChangeOfLeaderIsNoTimeWithoutCounts(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for since, want := range map[time.Duration]time.Duration{
		time.Second: 0, 9 * time.Second: 0, 11 * time.Second: 11 * time.Second, time.Hour: time.Hour,
		-time.Second: 0, -11 * time.Second: 11 * time.Second,
	} {
		if got := (db.Fleet{At: now, Before: now.Add(-since)}).Uncounted(); got != want {
			t.Errorf("%s after the last count: uncounted for %s, want %s", since, got, want)
		}
	}
}

// TestAGraceIsLongEnoughForACall checks that machines have the time to call before a verdict, however short the
// configured grace is.
func TestAGraceIsLongEnoughForACall(t *testing.T) {
	t.Parallel()
	s := db.Silence{Suspect: 20 * time.Second}
	least := s.Suspect + berth.SyncWait + 2*time.Second
	for want, got := range map[time.Duration]time.Duration{0: least, time.Second: least, time.Minute: time.Minute} {
		if g := s.Grace(want); g != got {
			t.Errorf("--grace %s is a grace of %s, want %s", want, g, got)
		}
	}
}
