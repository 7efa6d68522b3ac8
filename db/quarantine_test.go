package db_test

import (
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/db"
	"berth/db/dbtest"
	"berth/wire"
)

// quarantined marks the cluster as restored.
func (s *stage) quarantined() {
	mustExec(s.t, s.pool, `UPDATE cluster SET quarantined_at = clock_timestamp(), backup_taken_at = clock_timestamp()`)
}

// TestAQuarantinedClusterGivesNoOrders checks that a machine renews its lease and reports, and gets neither
// reservations nor orders nor removals, until the cluster is adopted.
func TestAQuarantinedClusterGivesNoOrders(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	taken := s.submit(nil)
	attempt := s.place(taken, "m0")
	a.mustClaim(taken, attempt)
	reserved := s.submit(nil)
	reservedAttempt := s.place(reserved, "m0")
	s.quarantined()

	mustExec(t, s.pool, `UPDATE allocations SET orders = '{"stop": true}' WHERE job = $1`, taken)
	r, err := a.sync(func(r *wire.SyncRequest) { r.Digest = "" })
	if err != nil || !r.Renewed || len(r.Assignments) != 1 || r.Assignments[0].Job != taken || r.Assignments[0].Orders != (berth.Orders{}) {
		t.Errorf("sync answers %+v, %v", r, err)
	}
	if _, err := a.claims(reserved, reservedAttempt); berth.CodeOf(err) != berth.CodeUnavailable {
		t.Errorf("a reservation is claimed: %v", err)
	}
	if _, err := a.claims(taken, attempt); berth.CodeOf(err) != berth.CodeUnavailable {
		t.Errorf("work is claimed again: %v", err)
	}
	a.report(taken, attempt, berth.PhaseRunning, nil)
	if phase := one[string](s, `SELECT phase FROM allocations WHERE job = $1`, taken); phase != string(berth.PhaseRunning) {
		t.Errorf("the report is not stored: phase %q", phase)
	}
	mustExec(t, s.pool, `UPDATE allocations SET state = 'orphaned' WHERE job = $1`, taken)
	if r := a.report(taken, attempt, berth.PhaseRunning, nil); len(r.Stale) != 0 {
		t.Errorf("a report makes the machine remove %v", r.Stale)
	}

	lost := berth.NewJobID(time.Now())
	seen := []wire.ContainerSeen{
		{Alloc: s.alloc(taken, attempt), Job: taken, Attempt: attempt, Running: true},
		{Alloc: 4711, Job: lost, Attempt: 2, Rank: 1, Running: true},
		{Alloc: 4712, Job: lost, Attempt: 1, Rank: 0},
	}
	b, answer := s.register("host1", "agent2", seen...)
	if len(answer.Kill) != 0 || len(answer.Quarantine) != 3 {
		t.Errorf("the registration answers %+v", answer)
	}
	adopted, err := s.db.Leader.Adopt(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := []db.UnknownContainer{
		{Machine: "m0", Alloc: 4712, Job: lost, Attempt: 1},
		{Machine: "m0", Alloc: 4711, Job: lost, Attempt: 2, Rank: 1, Running: true},
	}
	if !slices.Equal(adopted.Unknown, want) || adopted.Machines != 1 {
		t.Errorf("the adoption lists %+v", adopted)
	}
	if _, err := b.sync(func(*wire.SyncRequest) {}); !berth.IsSlug(err, berth.SlugStaleEpoch) {
		t.Errorf("the machine does not register again after the adoption: %v", err)
	}
	c, answer := s.register("host1", "agent2", seen...)
	if !slices.Contains(answer.Kill, s.alloc(taken, attempt)) || !slices.Contains(answer.Quarantine, 4711) {
		t.Errorf("after the adoption the registration answers %+v", answer)
	}
	if !slices.ContainsFunc(answer.Sync.Assignments, func(x wire.Assignment) bool { return x.Job == reserved }) {
		t.Errorf("after the adoption the reservation is not offered: %+v", answer.Sync)
	}
	c.mustClaim(reserved, reservedAttempt)
}

// TestAQuarantinedClusterSendsNoWebhooks checks that pending calls wait for the adoption.
func TestAQuarantinedClusterSendsNoWebhooks(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id := s.submit(nil)
	mustExec(t, s.pool, `INSERT INTO notices (job, seq, hook, tenant, url, status, body) VALUES ($1, 1, 0, 'default', 'https://x', 'queued', '{}')`, id)
	s.quarantined()
	claim := func(want int) {
		t.Helper()
		list, err := s.db.Outbox.Claim(t.Context(), db.NoticeClaim{Each: 5, Limit: 5, Lease: time.Minute})
		if err != nil || len(list) != want {
			t.Errorf("%d calls are taken, err %v; want %d", len(list), err, want)
		}
	}
	claim(0)
	if _, err := s.db.Leader.Adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	claim(1)
}

// TestSessionsThatEndKeepNoDatabaseFromARestore checks that a restore waits for a session whose client has closed
// it: PostgreSQL ends the session a moment later.
func TestSessionsThatEndKeepNoDatabaseFromARestore(t *testing.T) {
	t.Parallel()
	url := dbtest.EmptyURL(t)
	other, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close(t.Context())
	checked := make(chan error, 1)
	go func() { checked <- db.CheckVacant(t.Context(), url) }()
	for looked := false; !looked; time.Sleep(5 * time.Millisecond) { // until it has counted this session
		if err := other.QueryRow(t.Context(), `
			SELECT EXISTS (
				SELECT FROM pg_stat_activity
				WHERE datname = current_database() AND pid <> pg_backend_pid() AND state = 'idle'
				  AND query LIKE '%backend_type%'
			)`).Scan(&looked); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-checked:
			t.Fatalf("it did not wait: %v", err)
		default:
		}
	}
	if err := other.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-checked; err != nil {
		t.Errorf("after the session has ended: %v", err)
	}
}
