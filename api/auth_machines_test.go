package api_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"berth"
	"berth/api"
	"berth/wire"
)

// syncs makes a call that renews a's lease, and returns its status.
func (a *agent) syncs() int {
	a.t.Helper()
	return a.post("sync", wire.SyncRequest{AgentBoot: a.boot, Epoch: a.epoch}, nil).status
}

// locked runs f while a table is locked.
func (s *site) locked(table string, f func()) {
	s.t.Helper()
	tx, err := s.beside().Begin(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(s.t.Context())) }()
	if _, err := tx.Exec(s.t.Context(), "LOCK TABLE "+table+" IN ACCESS EXCLUSIVE MODE"); err != nil {
		s.t.Fatal(err)
	}
	f()
}

// A token that was good renews its machine's lease, and nothing else, while it
// cannot be looked up.
func TestRenewalNeedsNoTokenTable(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	for table, name := range map[string]berth.MachineID{"tokens": "m1", "machines": "m2"} {
		a := s.joinMachine(name)
		s.server.AgeMachineTokens(time.Minute)
		s.exec(`UPDATE machine_leases SET seen_at = now() - interval '1 hour'`)
		claimed := make(chan int, 1)
		s.locked(table, func() {
			if got := a.syncs(); got != http.StatusOK {
				t.Errorf("with %s locked a sync was answered %d", table, got)
			}
			var renewed bool
			err := s.db.Pool().QueryRow(t.Context(), `SELECT seen_at > now() - interval '30 minutes' FROM machine_leases WHERE machine_id = $1`, name).Scan(&renewed)
			if err != nil || !renewed {
				t.Errorf("with %s locked the lease was not renewed: %v", table, err)
			}
			go func() { claimed <- a.post("claim", wire.ClaimRequest{}, nil).status }()
			s.waiting("FROM tokens") // the cached verdict does not let it pass
		})
		<-claimed
	}
	a := s.joinMachine("m3")
	s.server.AgeMachineTokens(api.MachineTrust)
	done := make(chan int, 1)
	s.locked("tokens", func() {
		go func() { done <- a.syncs() }()
		s.waiting("t.sha256") // looked up like a token never seen
	})
	if got := <-done; got != http.StatusOK {
		t.Errorf("a sync after the lock was answered %d", got)
	}
}

// waiting waits until a query waits for a lock.
func (s *site) waiting(query string) {
	s.t.Helper()
	for deadline := time.Now().Add(waitLimit); ; time.Sleep(2 * time.Millisecond) {
		var n int
		err := s.beside().QueryRow(s.t.Context(), `
			SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock' AND strpos(query, $1) > 0`, query).Scan(&n)
		if err != nil {
			s.t.Fatal(err)
		}
		if n > 0 {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("nobody waits for a lock with %q", query)
		}
	}
}

// A token that another replica has revoked becomes invalid within seconds, and so
// does its cached entry.
func TestRevokedMachineTokenDies(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	a := s.joinMachine("m1")
	if got := a.syncs(); got != http.StatusOK {
		t.Fatalf("sync before: %d", got)
	}
	s.exec(`UPDATE tokens SET revoked_at = now() WHERE machine_id = 'm1'`)
	s.server.AgeMachineTokens(5 * time.Second)
	// A query of the tokens that takes over a second changes no verdict, and a later sync repeats the query.
	eventually(t, "the refusal of a machine whose token was revoked elsewhere", func() bool {
		return a.syncs() == http.StatusUnauthorized
	})
	b := s.joinMachine("m2")
	b.syncs()
	if got := b.call("admin", "DELETE", "/v1/machines/m2", ""); got.status != http.StatusNoContent {
		t.Fatalf("retire: %d %s", got.status, got.body)
	}
	if got := b.syncs(); got != http.StatusForbidden {
		t.Errorf("a machine that was retired here syncs: %d", got)
	}
}
