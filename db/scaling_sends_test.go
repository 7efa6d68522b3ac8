package db_test

import (
	"context"
	"testing"
	"time"

	"berth"
	"berth/internal/control/cloud"
)

// sends commits a send of the first launch of a machine.
func (s *stage) sends(m berth.MachineID) (cloud.Record, cloud.Sealed, error) {
	s.t.Helper()
	return s.db.Launches.Send(s.t.Context(), cloud.Ref{Machine: m, N: 1}, cloud.DefaultLimits,
		func(t time.Time) time.Time { return t }, func(cloud.Record, string) (cloud.Sealed, error) {
			return cloud.Sealed{Hash: "h", KeyID: "k", Request: []byte("r")}, nil
		})
}

// sees records an instance of the first launch of a machine.
func (s *stage) sees(m berth.MachineID) {
	s.t.Helper()
	_, err := s.db.Launches.Change(s.t.Context(), cloud.Ref{Machine: m, N: 1}, func(r cloud.Record, now time.Time) (cloud.Record, error) {
		return r.See(cloud.Instance{ID: "i-" + string(m), State: cloud.Running}, now)
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// The answer of the probe may be lost; a search finds its instance.
func TestTheSightOfAProbesInstanceClosesItsBreaker(t *testing.T) {
	t.Parallel()
	s := newFleet(t)
	if err := s.scaled(s.term(), "r0", "before"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.sends("before"); err != nil {
		t.Fatal(err)
	}
	s.trips(4 * time.Minute)
	breakers := func() int { t.Helper(); return one[int](s, `SELECT count(*) FROM breakers`) }
	s.sees("before") // which was sent before the refusal
	if n := breakers(); n != 1 {
		t.Fatalf("%d breakers after the sight of an instance from before the refusal", n)
	}
	if err := s.scaled(s.term(), "r1", "probe"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.sends("probe"); err != nil || breakers() != 1 {
		t.Fatal(breakers(), err)
	}
	s.sees("probe")
	if n := breakers(); n != 0 {
		t.Errorf("%d breakers after the sight of the probe's instance", n)
	}
}

// The policy of the tenant above holds no lock on a tenant that is deleted.
func TestALaunchOfTheScalerKeepsItsTenant(t *testing.T) {
	t.Parallel()
	s := newFleet(t)
	mustExec(t, s.pool, `INSERT INTO tenants (id, parent) VALUES ('below', 'default')`)
	tx, err := s.beside().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), `DELETE FROM tenants WHERE id = 'below'`); err != nil {
		t.Fatal(err)
	}
	r := cheap
	r.Tenant = "below"
	done := make(chan error, 1)
	term := s.term()
	go func() {
		_, err := s.db.Scaling.Request(context.WithoutCancel(t.Context()), term, r, []berth.MachineID{"v1"}, "r")
		done <- err
	}()
	for len(done) == 0 && s.waiting() == 0 {
		time.Sleep(time.Millisecond)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; berth.CodeOf(err) != berth.CodeNotFound {
		t.Errorf("a launch for a deleted tenant: %v", err)
	}
}
