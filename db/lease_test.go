package db_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/db"
)

func (s *stage) lead(holder string, ttl time.Duration) (db.Term, bool) {
	s.t.Helper()
	lease := s.db.OpenLease(db.LeaseLeader, holder)
	term, ok, err := lease.Acquire(s.t.Context(), ttl)
	if err != nil {
		s.t.Fatal(err)
	}
	return term, ok
}

// term is a lead for the whole test.
func (s *stage) term() db.Term {
	s.t.Helper()
	term, ok := s.lead("leader", time.Hour)
	if !ok {
		s.t.Fatal("no lead")
	}
	return term
}

func TestOneHolderAtATime(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, ok := s.lead("a", time.Hour)
	if !ok || a.Epoch != 1 {
		t.Fatalf("first holder: %+v %v", a, ok)
	}
	if _, ok := s.lead("b", time.Hour); ok {
		t.Fatal("a second holder while the first's lease lasts")
	}
	if again, ok := s.lead("a", -time.Second); !ok || again.Epoch != 1 {
		t.Fatalf("renewal: %+v %v", again, ok)
	}
	b, ok := s.lead("b", time.Hour)
	if !ok || b.Epoch != 2 {
		t.Fatalf("takeover after expiry: %+v %v", b, ok)
	}
	if _, err := s.db.CommitStarts(t.Context(), a, []berth.Start{{Job: jobA, Version: 1, Attempt: 1}}); !berth.IsSlug(err, berth.SlugStaleEpoch) {
		t.Errorf("a deposed leader's commit: %v", err)
	}
}

func TestClosedLeaseIsFreeAtOnce(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	lease := s.db.OpenLease(db.LeaseLeader, "a")
	if _, ok, err := lease.Acquire(t.Context(), time.Hour); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if err := lease.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if b, ok := s.lead("b", time.Hour); !ok || b.Epoch != 2 {
		t.Fatalf("takeover after close: %+v %v", b, ok)
	}
}

func TestTakeoverWaitsForACommitUnderWay(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.lead("a", -time.Second)
	tx, err := s.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), `SELECT 1 FROM leases FOR SHARE`); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, ok, err := s.db.OpenLease(db.LeaseLeader, "b").Acquire(short, time.Hour); ok || err == nil {
		t.Fatalf("takeover beside a commit: %v %v", ok, err)
	}
	if err := tx.Commit(t.Context()); err != nil && !errors.Is(err, pgx.ErrTxClosed) {
		t.Fatal(err)
	}
	if _, ok := s.lead("b", time.Hour); !ok {
		t.Fatal("no takeover after the commit")
	}
}

// An outage that may make a machine overdue must count as a gap, however short
// the patience with machines is.
func TestABeaconNeverOutlastsThePatienceWithMachines(t *testing.T) {
	t.Parallel()
	for suspect, want := range map[time.Duration]time.Duration{time.Second: time.Second, 20 * time.Second: db.BeaconTTL} {
		if got := (db.Silence{Suspect: suspect}).Beacon(); got != want {
			t.Errorf("with suspect after %s a beacon lasts %s, want %s", suspect, got, want)
		}
	}
}

func TestGraceFollowsAGapAndNothingElse(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	grace := func() bool {
		return one[bool](s, `SELECT EXISTS (SELECT 1 FROM leases WHERE name = 'grace' AND expires_at > now())`)
	}
	beat := func() {
		t.Helper()
		if err := s.db.RenewBeacon(t.Context(), "x", db.BeaconTTL, time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	beat()
	beat()
	if grace() {
		t.Error("grace without a gap")
	}
	mustExec(t, s.pool, `UPDATE leases SET expires_at = now() - interval '1 s' WHERE name = 'api'`)
	beat()
	if !grace() {
		t.Error("no grace after a gap")
	}
}
