package db_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/db"
	"berth/spec"
	"berth/wire"
)

// everyTable lists the tables of the schema from the catalog, so that the tests cover tables that are added
// later.
func (s *stage) everyTable() []string {
	s.t.Helper()
	rows, err := s.pool.Query(s.t.Context(), `
		SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname)
		FROM pg_class c
		JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE c.relkind IN ('r', 'p') AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname NOT LIKE 'pg_toast%'
		ORDER BY 1`)
	if err != nil {
		s.t.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		s.t.Fatal(err)
	}
	if len(list) < 20 || !slices.Contains(list, "public.machine_leases") {
		s.t.Fatalf("tables: %v", list)
	}
	return list
}

func accessExclusive(table string) string { return "LOCK TABLE " + table + " IN ACCESS EXCLUSIVE MODE" }

// TestLockOnAnyTableMissesNoRenewal checks that leases are renewed while any other table is locked. An ALTER
// TABLE of jobs that took 32 s once left every lease 34 s old.
func TestLockOnAnyTableMissesNoRenewal(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for i, table := range s.everyTable() {
		if table == "public.machine_leases" {
			continue
		}
		a := &agent{stage: s, machine: berth.MachineID(fmt.Sprintf("lock%d", i)), host: "host1", boot: "agent1"}
		insertMachine(t, s.pool, string(a.machine), 2)
		began := time.Now()
		r, _, err := s.db.Agents.Register(t.Context(), a.machine, a.request())
		if err != nil {
			t.Fatal(err)
		}
		agentWaits := 15*time.Second + 20*time.Since(began) // longer on a slow machine
		a.epoch, a.digest = r.Epoch, r.Sync.Digest
		mustExec(t, s.pool, `UPDATE machines SET state = 'suspect' WHERE id = $1`, a.machine)
		s.quiet(string(a.machine), time.Hour)
		// The machine's row, or the event of its change, cannot be written.
		stays := table == "public.machines" || table == "public.machine_events"
		s.holding(accessExclusive(table), func() {
			ctx, cancel := context.WithTimeout(t.Context(), agentWaits)
			defer cancel()
			began := time.Now()
			answer, err := s.db.Agents.Sync(ctx, a.machine, wire.SyncRequest{AgentBoot: a.boot, Epoch: a.epoch, Digest: a.digest})
			took := time.Since(began)
			if err != nil || !answer.Renewed || answer.Changed {
				t.Errorf("with %s locked a sync was answered %+v, %v; want a renewed lease and no set", table, answer, err)
			}
			if age := one[time.Duration](s, `SELECT clock_timestamp() - seen_at FROM machine_leases WHERE machine_id = $1`, a.machine); age > 30*time.Minute {
				t.Errorf("with %s locked the lease was not renewed: it is %s old", table, age)
			}
			if stays {
				s.unblocked() // an abandoned write must not succeed after the lock is released
				return
			}
			s.cleared(a, took, "with "+table+" locked")
		})
		if got := s.state(string(a.machine)); stays && got != berth.MachineSuspect {
			t.Errorf("after a sync with %s locked the suspected machine is %s", table, got)
		}
		began = time.Now()
		if _, err := a.sync(func(*wire.SyncRequest) {}); err != nil {
			t.Errorf("after the lock on %s: %v", table, err)
		}
		s.cleared(a, time.Since(began), "after the lock on "+table)
	}
}

// cleared checks that a machine is ready after a call of the given duration. A call has two seconds to end
// the suspicion; on a slow machine the next call may end it. Each call has a deadline, as an agent's calls
// have: with a table locked, it would otherwise wait for the lock that this test holds.
func (s *stage) cleared(a *agent, took time.Duration, when string) {
	s.t.Helper()
	s.until(when+" the suspicion ends", func() bool {
		state := s.state(string(a.machine))
		if state == berth.MachineReady {
			return true
		}
		if took < 2*time.Second {
			s.t.Fatalf("%s the machine is %s after a call of %s", when, state, took)
		}
		ctx, cancel := context.WithTimeout(s.t.Context(), waitLimit/4)
		defer cancel()
		began := time.Now()
		_, _ = s.db.Agents.Sync(ctx, a.machine, wire.SyncRequest{AgentBoot: a.boot, Epoch: a.epoch, Digest: a.digest})
		took = time.Since(began)
		return false
	})
}

// TestLeaseEndsWithItsSession checks that a sync does not renew the lease of an ended session, even while no
// other table than the leases can be read.
func TestLeaseEndsWithItsSession(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(s *stage){
		"verdict": func(s *stage) {
			s.quiet("m0", time.Hour)
			if v := s.judge(s.term(), "m0"); !v.Lost {
				s.t.Fatalf("verdict: %+v", v)
			}
		},
		"confirmed dead": func(s *stage) {
			mustExec(s.t, s.pool, `UPDATE machine_leases SET until = now() - interval '1 s'`)
			if _, err := s.db.Machines.ConfirmDead(s.t.Context(), "m0", "operator:test"); err != nil {
				s.t.Fatal(err)
			}
		},
		"retired": func(s *stage) {
			if err := s.db.Machines.Retire(s.t.Context(), "m0", "operator:test"); err != nil {
				s.t.Fatal(err)
			}
		},
		"joined anew": func(s *stage) {
			mustExec(s.t, s.pool, `UPDATE machine_leases SET until = now() - interval '1 s'`)
			j, err := s.db.JoinTokens.Create(s.t.Context(), spec.NewJoinToken{}, "operator:test")
			if err != nil {
				s.t.Fatal(err)
			}
			if _, _, err := s.db.JoinTokens.Join(s.t.Context(), j.Secret, "m0"); err != nil {
				s.t.Fatal(err)
			}
		},
		"another process": func(s *stage) { s.register("host1", "agent2") },
		"another boot":    func(s *stage) { s.register("host2", "agent1") },
		// An older program, whose verdicts do not write leases.
		"by hand": func(s *stage) {
			mustExec(s.t, s.pool, `UPDATE machines SET state = 'lost', epoch = epoch + 1 WHERE id = 'm0'`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			a, _ := s.register("host1", "agent1")
			end(s)
			before := one[time.Time](s, `SELECT seen_at FROM machine_leases WHERE machine_id = 'm0'`)
			s.holding(accessExclusive("machines"), func() {
				ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
				defer cancel()
				answer, err := s.db.Agents.Sync(ctx, a.machine, wire.SyncRequest{AgentBoot: a.boot, Epoch: a.epoch, Digest: a.digest})
				if berth.CodeOf(err) != berth.CodeUnavailable {
					t.Errorf("a sync of a session that is over was answered %+v, %v while machines was locked", answer, err)
				}
			})
			if answer, err := a.sync(func(*wire.SyncRequest) {}); err == nil || berth.CodeOf(err) == berth.CodeUnavailable {
				t.Errorf("a sync of a session that is over was answered %+v, %v", answer, err)
			}
			if now := one[time.Time](s, `SELECT seen_at FROM machine_leases WHERE machine_id = 'm0'`); !now.Equal(before) {
				t.Error("the lease was renewed for a session that is over")
			}
		})
	}
}

// TestNobodyIsLostForALockOnLeases checks that a lock on machine_leases makes no machine lost. Renewals
// cannot be stored then, so silence proves nothing, neither during the lock nor in the grace period after it.
func TestNobodyIsLostForALockOnLeases(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	s.register("host1", "agent1")
	const ttl = 50 * time.Millisecond
	if err := s.db.Leader.RenewBeacon(t.Context(), "api", ttl, time.Minute); err != nil {
		t.Fatal(err)
	}
	s.quiet("m0", time.Hour)
	beaten := make(chan error, 1)
	for _, mode := range []string{"ACCESS EXCLUSIVE", "SHARE"} { // ALTER TABLE, CREATE INDEX
		s.holding("LOCK TABLE machine_leases IN "+mode+" MODE", func() {
			go func() { beaten <- s.db.Leader.RenewBeacon(context.WithoutCancel(t.Context()), "api", ttl, time.Minute) }()
			s.blocked(1)
			s.until("the beacon has expired", func() bool {
				return one[bool](s, `SELECT expires_at < clock_timestamp() FROM leases WHERE name = 'api'`)
			})
		})
		if err := <-beaten; err != nil {
			t.Fatal(err)
		}
		if proves, err := s.db.Machines.SilenceProves(t.Context()); err != nil || proves {
			t.Errorf("after a lock in mode %s silence proves something: %v, %v", mode, proves, err)
		}
		if due, _ := s.overdue(); len(due) != 0 {
			t.Errorf("after a lock in mode %s a verdict is due on %v", mode, due)
		}
		if v := s.judge(term, "m0"); v.Lost || len(v.Jobs) > 0 {
			t.Errorf("after a lock in mode %s: verdict %+v", mode, v)
		}
		mustExec(t, s.pool, `DELETE FROM leases WHERE name = 'grace'`)
		if err := s.db.Leader.RenewBeacon(t.Context(), "api", ttl, time.Minute); err != nil {
			t.Fatal(err)
		}
		mustExec(t, s.pool, `DELETE FROM leases WHERE name = 'grace'`)
	}
}

// TestLeaderWhoseWriteWaitsForALockKeepsTheLead checks that a leader whose write waits for a locked table can
// renew its lease and is not replaced. The write holds the leader's term until it ends.
func TestLeaderWhoseWriteWaitsForALockKeepsTheLead(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	lease := s.db.Leader.OpenLease(db.LeaseLeader, "a")
	other := s.db.Leader.OpenLease(db.LeaseLeader, "b")
	ctx := context.WithoutCancel(t.Context())
	term, ok, err := lease.Acquire(ctx, time.Hour)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	wrote := make(chan error, 1)
	s.holding(accessExclusive("jobs"), func() {
		go func() {
			wrote <- s.db.LeaderTx(ctx, term, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `UPDATE jobs SET name = name`)
				return err
			})
		}()
		s.blocked(1)
		soon, cancel := context.WithTimeout(ctx, waitLimit)
		defer cancel()
		if again, ok, err := lease.Acquire(soon, time.Hour); err != nil || !ok || again.Epoch != term.Epoch {
			t.Errorf("the leader's lease beside its own write: %+v, %v, %v", again, ok, err)
		}
		if _, ok, err := other.Acquire(soon, time.Hour); err != nil || ok {
			t.Errorf("another bid beside a leader: %v, %v", ok, err)
		}
		if _, err := s.pool.Exec(soon, `UPDATE leases SET expires_at = now() - interval '1 s'`); err != nil {
			t.Error(err)
		}
		if _, ok, err := other.Acquire(ctx, time.Second); ok || err == nil {
			t.Errorf("another bid takes the lead beside a write of the old term: %v, %v", ok, err)
		}
	})
	if err := <-wrote; err != nil {
		t.Errorf("the leader's write: %v", err)
	}
	if next, ok, err := other.Acquire(ctx, time.Hour); err != nil || !ok || next.Epoch != term.Epoch+1 {
		t.Errorf("the next leader: %+v, %v, %v", next, ok, err)
	}
}

// TestOneLimitBoundsAllStatementsOfACall checks that a poll which has a notice, stuck members and a condition of its
// engine to store ends soon after its wait while their tables are locked. Each statement once had a limit of its own,
// and the next poll, with the next renewal, came more than twenty seconds later.
func TestOneLimitBoundsAllStatementsOfACall(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	s.quiet("m0", time.Hour)
	s.holding(accessExclusive("machines, jobs, allocations"), func() {
		began := time.Now()
		answer, err := s.db.Agents.Sync(t.Context(), a.machine, wire.SyncRequest{
			AgentBoot: a.boot, Epoch: a.epoch, Digest: a.digest, WaitMS: int(berth.SyncWait.Milliseconds()),
			Stuck: []berth.AllocationID{1}, CloudNotice: spotNotice(), EngineSilent: time.Minute,
		})
		took := time.Since(began)
		if err != nil || !answer.Renewed || answer.Changed || answer.Noticed != "" {
			t.Errorf("the call was answered %+v, %v", answer, err)
		}
		if took > berth.SyncWait+2*time.Second {
			t.Errorf("a poll of %s took %s", berth.SyncWait, took)
		}
	})
}

// spotNotice returns a notice of a cloud that ends its machine in a minute.
func spotNotice() *wire.CloudNotice {
	return &wire.CloudNotice{Kind: wire.NoticeSpot, Deadline: time.Now().Add(time.Minute)}
}

// TestANoticeMayTakeSeconds checks that a notice is stored although its statements wait for a lock. An agent sends a
// notice in a call without reports, for which no poll waits. With a limit of one second for such calls, a slow database
// never stored the notice.
func TestANoticeMayTakeSeconds(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	type result struct {
		wire.SyncResponse
		err error
	}
	answered := make(chan result, 1)
	s.holding(accessExclusive("launches"), func() {
		go func() {
			answer, err := s.db.Agents.Sync(context.WithoutCancel(t.Context()), a.machine, wire.SyncRequest{
				AgentBoot: a.boot, Epoch: a.epoch, Digest: a.digest, Brief: true, CloudNotice: spotNotice(),
			})
			answered <- result{answer, err}
		}()
		s.until("the notice waits for two seconds, or was given up", func() bool {
			var waits bool
			err := s.beside().QueryRow(t.Context(), `
				SELECT EXISTS (
					SELECT 1
					FROM pg_stat_activity
					WHERE datname = current_database() AND wait_event_type = 'Lock'
					  AND query_start < clock_timestamp() - interval '2 s')`).Scan(&waits)
			if err != nil {
				t.Fatal(err)
			}
			return waits || len(answered) > 0
		})
	})
	if r := <-answered; r.err != nil || r.Noticed == "" {
		t.Errorf("the call was answered %+v, %v", r.SyncResponse, r.err)
	}
	if got := s.state("m0"); got != berth.MachineDraining {
		t.Errorf("after the notice the machine is %s", got)
	}
}

// TestANoticeThatWaitsLeavesTimeForStuckMembers checks that a call gives up stuck members although its notice waits for
// a locked table.
func TestANoticeThatWaitsLeavesTimeForStuckMembers(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	id, attempt := s.started(nil)
	s.holding(accessExclusive("launches"), func() {
		answer, err := s.db.Agents.Sync(t.Context(), a.machine, wire.SyncRequest{
			AgentBoot: a.boot, Epoch: a.epoch, Digest: a.digest, Brief: true, CloudNotice: spotNotice(),
			Stuck: []berth.AllocationID{s.alloc(id, attempt)},
		})
		if err != nil || answer.Noticed != "" {
			t.Errorf("the call was answered %+v, %v", answer, err)
		}
		if got := one[string](s, `SELECT state FROM allocations WHERE job = $1`, id); got != "orphaned" {
			t.Errorf("the stuck member is %s", got)
		}
	})
}
