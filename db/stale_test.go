package db_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"berth"
	"berth/db"
	"berth/spec"
	"berth/wire"
)

// tables returns a digest of each table's rows, so that any write shows. It omits leases, which every caller
// may renew.
func (s *stage) tables() map[string]string {
	s.t.Helper()
	rows, err := s.pool.Query(s.t.Context(), `
		SELECT relname FROM pg_class
		WHERE relkind IN ('r', 'p') AND NOT relispartition AND relnamespace = 'public'::regnamespace AND relname <> 'leases'
		ORDER BY 1`)
	if err != nil {
		s.t.Fatal(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		s.t.Fatal(err)
	}
	digests := map[string]string{}
	for _, n := range names {
		digests[n] = one[string](s, `SELECT count(*) || ' ' || md5(coalesce(string_agg(x::text, ',' ORDER BY x::text), '')) FROM `+pgx.Identifier{n}.Sanitize()+` x`)
	}
	return digests
}

// refusesStale checks that each write is refused as stale and changes nothing.
func (s *stage) refusesStale(slug string, writes map[string]func(context.Context) error) {
	s.t.Helper()
	for name, write := range writes {
		before := s.tables()
		if err := write(s.t.Context()); !berth.IsSlug(err, slug) {
			s.t.Errorf("%s: answered %v, want %s", name, err, slug)
		}
		if diff := cmp.Diff(before, s.tables()); diff != "" {
			s.t.Errorf("%s changed rows (-before +after):\n%s", name, diff)
		}
	}
}

// TestF4EveryWriteOfADeposedLeaderChangesNothing checks that no write of a leader changes anything once its
// term is over, although each finds rows to change.
func TestF4EveryWriteOfADeposedLeaderChangesNothing(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	old := s.term()
	mustExec(t, s.pool, `UPDATE leases SET holder = 'another', epoch = epoch + 1 WHERE name = 'leader'`)
	waiting := s.queued(func(j *spec.Job) { j.QueueTimeout = spec.Duration(time.Hour) })
	startable := s.queued(nil)
	done, attempt := s.started(nil)
	s.exit(done, attempt, 0, exited(0))
	s.settle(done, attempt)
	stop, _ := s.started(nil)
	stray, _ := s.started(nil)
	s.move(stray, berth.Retrying)
	slow := s.submit(nil)
	s.place(slow, "m1")
	mustExec(t, s.pool, `UPDATE allocations SET state = 'active', phase = 'pulling', claimed_at = now() - interval '1 day' WHERE job = $1`, slow)
	unsealed := s.submit(nil)
	s.place(unsealed, "m2")
	mustExec(t, s.pool, `UPDATE allocations SET state = 'exited', exited_at = now() - interval '1 day' WHERE job = $1`, unsealed)
	mustExec(t, s.pool, `UPDATE machines SET state_at = now() - interval '1 day' WHERE id = 'm2'`)
	mustExec(t, s.pool, `UPDATE jobs SET queue_deadline = now() - interval '1 s' WHERE id = $1`, waiting)
	mustExec(t, s.pool, `UPDATE allocations SET stop_by = now() - interval '1 hour' WHERE job = $1`, stop)
	mustExec(t, s.pool, `INSERT INTO nominations (beneficiary, machine_id, expires_at) VALUES ($1, 'm0', now() - interval '1 s')`, waiting)
	mustExec(t, s.pool, `INSERT INTO doomed_objects (prefix) VALUES ('x')`)
	mustExec(t, s.pool, `INSERT INTO checkpoints (job, step, attempt, ranks, state) VALUES ($1, 1, 1, 1, 'verified')`, stop)
	mustExec(t, s.pool, `UPDATE machines SET state = 'draining', drain_reason = 'x', drain_deadline = now() - interval '1 s' WHERE id = 'm0'`)
	s.quiet("m1", time.Hour)
	count := func(n int, err error) error { return err }
	s.refusesStale(berth.SlugStaleEpoch, map[string]func(context.Context) error{
		"commit of placements": func(ctx context.Context) error {
			_, err := s.db.Queue.CommitStarts(ctx, old, []berth.Start{s.start(startable, on("m2"))})
			return err
		},
		"suspicion": func(ctx context.Context) error {
			_, err := s.db.Machines.MarkSuspect(ctx, old, db.Silence{Suspect: time.Second, Lost: time.Minute})
			return err
		},
		"verdict": func(ctx context.Context) error {
			_, err := s.db.Machines.PassVerdict(ctx, old, "m1", db.Silence{Suspect: time.Second, Lost: time.Minute})
			return err
		},
		"kill overdue": func(ctx context.Context) error { return count(s.db.Attempts.KillOverdue(ctx, old, time.Second, 10)) },
		"kill stray":   func(ctx context.Context) error { return count(s.db.Attempts.KillStray(ctx, old, 10)) },
		"announce drain": func(ctx context.Context) error {
			return count(s.db.Attempts.AnnounceDrains(ctx, old, 10))
		},
		"drain": func(ctx context.Context) error { return count(s.db.Attempts.DrainOverdue(ctx, old, 10)) },
		"queue deadline": func(ctx context.Context) error {
			_, err := s.db.Jobs.FailExpired(ctx, old, nil, 10)
			return err
		},
		"nominations":     func(ctx context.Context) error { return count(s.db.Queue.ClearNominations(ctx, old)) },
		"kill unprepared": func(ctx context.Context) error { return count(s.db.Attempts.KillUnprepared(ctx, old, patience, 10)) },
		"give up": func(ctx context.Context) error {
			_, err := s.db.Attempts.GiveUpStuck(ctx, old, patience, 10)
			return err
		},
		"archive": func(ctx context.Context) error { return count(s.db.Jobs.ArchiveTerminal(ctx, old, 0, 10)) },
		"objects": func(ctx context.Context) error {
			return s.db.Objects.ForgetDoomed(ctx, old, []string{"x"}, nil, time.Hour)
		},
		"outputs":         func(ctx context.Context) error { return count(s.db.Objects.PruneOutputs(ctx, old, 0, 10)) },
		"tokens":          func(ctx context.Context) error { return count(s.db.Tokens.Prune(ctx, old, 0, 10)) },
		"closed attempts": func(ctx context.Context) error { return s.db.Objects.MarkSwept(ctx, old, done, attempt) },
		"chunks":          func(ctx context.Context) error { return count(s.db.Chunks.Collect(ctx, old, 0, 10)) },
		"looks at chunks": func(ctx context.Context) error {
			_, _, err := s.db.Chunks.Looked(ctx, old, nil)
			return err
		},
		"missing checkpoint": func(ctx context.Context) error {
			_, err := s.db.Objects.RejectMissing(ctx, old, db.Shard{Job: stop, Step: 1, Attempt: 1})
			return err
		},
	})
}

// TestF25EveryWriteOfAStaleAgentChangesNothing checks that the writes of an agent change nothing once its
// session is over, because its machine registered another process or has another epoch.
func TestF25EveryWriteOfAStaleAgentChangesNothing(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	id, claimed := s.submit(nil), s.submit(nil)
	attempt := s.place(id, "m0")
	a.mustClaim(claimed, s.place(claimed, "m0"))
	a.report(claimed, 1, berth.PhasePrepared, nil)
	place, err := s.db.Logs.Place(t.Context(), "m0", a.session(), s.alloc(claimed, 1))
	if err != nil {
		t.Fatal(err)
	}
	for name, at := range map[string]db.Session{
		"another process": {AgentBoot: "agent0", Epoch: a.epoch},
		"an older epoch":  {AgentBoot: a.boot, Epoch: a.epoch - 1},
	} {
		x := exited(0)
		alloc := s.alloc(claimed, 1)
		s.refusesStale(berth.SlugStaleEpoch, map[string]func(context.Context) error{
			name + ": report": func(ctx context.Context) error {
				_, err := s.db.Agents.Sync(ctx, "m0", wire.SyncRequest{AgentBoot: at.AgentBoot, Epoch: at.Epoch, Seq: 99,
					Reports: []wire.RankReport{{Alloc: alloc, Job: claimed, Attempt: 1, Phase: berth.PhaseSealed, Exit: &x}}, Gone: []berth.AllocationID{alloc}})
				return err
			},
			name + ": sync": func(ctx context.Context) error {
				_, err := s.db.Agents.Sync(ctx, "m0", wire.SyncRequest{AgentBoot: at.AgentBoot, Epoch: at.Epoch})
				return err
			},
			name + ": claim": func(ctx context.Context) error {
				_, err := s.db.Agents.Claim(ctx, "m0", wire.ClaimRequest{AgentBoot: at.AgentBoot, Epoch: at.Epoch, Alloc: s.alloc(id, attempt), Job: id, Attempt: attempt})
				return err
			},
			name + ": checkpoint": func(ctx context.Context) error {
				_, err := s.db.Objects.RegisterCheckpoint(ctx, "m0", wire.CheckpointReport{AgentBoot: at.AgentBoot, Epoch: at.Epoch, Alloc: alloc, Job: claimed, Attempt: 1, OfAttempt: 1,
					Step: 5, Manifest: manifestKey(claimed, 1, 0, 5), SHA256: "x"})
				return err
			},
			name + ": log": func(ctx context.Context) error { _, err := s.db.Logs.Place(ctx, "m0", at, alloc); return err },
			name + ": object": func(ctx context.Context) error {
				return s.db.Objects.Authorize(ctx, "m0", db.ObjectAccess{Tenant: "default", Job: claimed, Attempt: 1, Write: true, Session: at})
			},
		})
	}
	// A log piece that was in flight when its session ended is not stored.
	s.register("host1", "agent2", wire.ContainerSeen{Alloc: s.alloc(claimed, 1), Job: claimed, Attempt: 1, Running: true})
	if end, err := s.db.Logs.Append(t.Context(), s.alloc(claimed, 1), place, db.LogChunk{Bytes: 10, Lines: 1}); err != nil || end != 0 {
		t.Errorf("appended up to %d, %v", end, err)
	}
}

// TestF6EveryStepOfASupersededAttemptChangesNothing checks that a workflow that acts on an ended attempt
// changes nothing of the next attempt.
func TestF6EveryStepOfASupersededAttemptChangesNothing(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id, attempt := s.started(func(j *spec.Job) { j.Retry.MaxAttempts = 3 })
	s.exit(id, attempt, 0, exited(1))
	if r := s.settle(id, attempt); r.Next != berth.Retrying {
		t.Fatalf("settled to %s", r.Next)
	}
	s.claim(id, s.place(id, "m1"), 0)
	s.run(id)
	mustExec(t, s.pool, `UPDATE allocations SET stop_by = now() - interval '1 s' WHERE job = $1 AND attempt = 2`, id)
	before := s.tables()
	for name, step := range map[string]func(context.Context) error{
		"settle": func(ctx context.Context) error {
			r, err := s.db.Attempts.Settle(ctx, id, attempt)
			if err == nil && r.Next != berth.Retrying {
				err = fmt.Errorf("settled to %s", r.Next)
			}
			return err
		},
		"stop":     func(ctx context.Context) error { _, err := s.db.Attempts.Stop(ctx, id, attempt); return err },
		"escalate": func(ctx context.Context) error { return s.db.Attempts.Escalate(ctx, id, attempt) },
	} {
		if err := step(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(before, s.tables()); diff != "" {
			t.Errorf("%s changed rows (-before +after):\n%s", name, diff)
		}
	}
}
