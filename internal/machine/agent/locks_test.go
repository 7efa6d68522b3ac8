package agent_test

import (
	"context"
	"flag"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/db/dbtest"
)

// lockFor is long enough for several renewals; 70s is longer than any lock that an
// operator should take.
var lockFor = flag.Duration("lock-for", 8*time.Second, "how long all tables but machine_leases are locked under a running agent")

// TestAgentKeepsItsLeaseWhileEveryOtherTableIsLocked: real calls of a real agent,
// with every table but machine_leases locked at once.
func TestAgentKeepsItsLeaseWhileEveryOtherTableIsLocked(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m0")
	id := s.submit(nil, "sleep", "1h")
	m.place(id)
	m.until("job runs", func() bool { return s.job(id).Status == berth.Running })
	pool := dbtest.Beside(t, s.db)
	rows, err := pool.Query(t.Context(), `SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'machine_leases'`)
	if err != nil {
		t.Fatal(err)
	}
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), `LOCK TABLE `+strings.Join(tables, ", ")+` IN ACCESS EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	var last time.Time
	seen := func() (at time.Time) {
		if err := pool.QueryRow(t.Context(), `SELECT seen_at FROM machine_leases WHERE machine_id = 'm0'`).Scan(&at); err != nil {
			t.Fatal(err)
		}
		return at
	}
	begun := seen()
	for last = begun; last.Sub(begun) < *lockFor; {
		var next time.Time
		m.until("lease renewed", func() bool { next = seen(); return next.After(last) })
		if gap := next.Sub(last); gap > berth.MachineLeaseTTL {
			t.Fatalf("the lease was %s old", gap)
		}
		last = next
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, w := m.runOn(1, s.submit(nil, "exit", "3"))
	if x := w.exit(); x.Code != 3 {
		t.Errorf("a job that was placed after the lock ended with %+v", x)
	}
}
