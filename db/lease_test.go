package db_test

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/db"
	"berth/db/dbtest"
)

func (s *stage) lead(holder string, ttl time.Duration) (db.Term, bool) {
	s.t.Helper()
	lease := s.db.Leader.OpenLease(db.LeaseLeader, holder)
	term, ok, err := lease.Acquire(s.t.Context(), ttl)
	if err != nil {
		s.t.Fatal(err)
	}
	return term, ok
}

// expire ends the current term. A lease with a short duration would expire by itself, but its bid would have
// to be answered within a second.
func (s *stage) expire() {
	s.t.Helper()
	mustExec(s.t, s.pool, `UPDATE leases SET expires_at = now() - interval '1 s' WHERE name = $1`, db.LeaseLeader)
}

// term acquires the lead for the whole test.
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
	if again, ok := s.lead("a", time.Hour); !ok || again.Epoch != 1 {
		t.Fatalf("renewal: %+v %v", again, ok)
	}
	s.expire()
	b, ok := s.lead("b", time.Hour)
	if !ok || b.Epoch != 2 {
		t.Fatalf("takeover after expiry: %+v %v", b, ok)
	}
	if _, err := s.db.Queue.CommitStarts(t.Context(), a, []berth.Start{{Job: jobA, Version: 1, Attempt: 1}}); !berth.IsSlug(err, berth.SlugStaleEpoch) {
		t.Errorf("a deposed leader's commit: %v", err)
	}
}

func TestClosedLeaseIsFreeAtOnce(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	lease := s.db.Leader.OpenLease(db.LeaseLeader, "a")
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
	s.lead("a", time.Hour)
	s.expire()
	tx, err := s.beside().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), `SELECT 1 FROM leases FOR KEY SHARE`); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	took := make(chan bool, 1)
	go func() {
		_, ok, err := s.db.Leader.OpenLease(db.LeaseLeader, "b").Acquire(ctx, time.Hour)
		took <- ok || err == nil
	}()
	s.blocked(1)
	cancel()
	if <-took {
		t.Fatal("takeover beside a commit")
	}
	if err := tx.Commit(t.Context()); err != nil && !errors.Is(err, pgx.ErrTxClosed) {
		t.Fatal(err)
	}
	if _, ok := s.lead("b", time.Hour); !ok {
		t.Fatal("no takeover after the commit")
	}
}

// TestTheDatabaseURLDoesNotLoosenTheCutOfAFrozenLeader checks that a longer idle limit in the database URL
// does not apply to the leader's transactions. No other process can take the lead while one of these is idle.
func TestTheDatabaseURLDoesNotLoosenTheCutOfAFrozenLeader(t *testing.T) {
	t.Parallel()
	url := withIdle(dbtest.URL(t), "90s")
	d, err := db.Open(t.Context(), url, db.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	const show = `SHOW idle_in_transaction_session_timeout`
	var others, leaders string
	if err := d.Pool().QueryRow(t.Context(), show).Scan(&others); err != nil {
		t.Fatal(err)
	}
	term, ok, err := d.Leader.OpenLease(db.LeaseLeader, "a").Acquire(t.Context(), time.Hour)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	for range 20 { // the database ends the session of a process that stalls for a second in the transaction
		err = d.LeaderTx(t.Context(), term, func(tx pgx.Tx) error { return tx.QueryRow(t.Context(), show).Scan(&leaders) })
		if err == nil {
			break
		}
	}
	if err != nil || leaders != "1s" || others != "90s" {
		t.Errorf("a leader's write may stand still for %s and others for %s, %v; want 1s and 90s", leaders, others, err)
	}
}

func TestNoTransactionMayStandStillForEver(t *testing.T) {
	t.Parallel()
	url := dbtest.URL(t)
	for _, never := range []string{"0", "0s"} {
		d, err := db.Open(t.Context(), withIdle(url, never), db.Options{})
		if err == nil {
			d.Close()
		}
		if berth.CodeOf(err) != berth.CodeInvalid || !strings.Contains(err.Error(), "idle_in_transaction_session_timeout of the database URL is 0") {
			t.Errorf("%s: %v", never, err)
		}
	}
}

// withIdle returns the URL with another idle_in_transaction_session_timeout.
func withIdle(url, limit string) string {
	return regexp.MustCompile(`(idle_in_transaction_session_timeout=)\w+`).ReplaceAllString(url, "${1}"+limit)
}

// TestABeaconNeverOutlastsThePatienceWithMachines checks that the beacon expires no later than silence makes
// a machine suspect. An outage that may make a machine overdue must count as a gap.
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
		if err := s.db.Leader.RenewBeacon(t.Context(), "x", db.BeaconTTL, time.Minute); err != nil {
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

// The metric of a present leader follows the lease by the database's clock.
func TestPopulationKnowsWhetherAProcessLeads(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	led := func() bool {
		t.Helper()
		p, err := s.db.Cluster.Population(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return p.Led
	}
	if led() {
		t.Error("led before the first leader")
	}
	s.term()
	if !led() {
		t.Error("not led while a process has the lease")
	}
	mustExec(t, s.pool, `UPDATE leases SET expires_at = now() - interval '1 s'`)
	if led() {
		t.Error("led after the end of the lease")
	}
}
