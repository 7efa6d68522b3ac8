package db_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/db"
	"berth/spec"
	"berth/wire"
)

// beginBackup begins a backup.
func (s *stage) beginBackup() (id string) {
	s.t.Helper()
	id, err := s.db.Backups.Begin(s.t.Context(), "test")
	if err != nil {
		s.t.Fatal(err)
	}
	return id
}

// TestTheAgeOfTheBackupIsOfTheNewestCompleteOne ages the rows instead of waiting.
func TestTheAgeOfTheBackupIsOfTheNewestCompleteOne(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	wantAge := func(want time.Duration) {
		t.Helper()
		age, err := s.db.Backups.Age(t.Context())
		if err != nil || age < want || age > want+30*time.Minute {
			t.Errorf("the age is %s, want %s: %v", age, want, err)
		}
	}
	mustExec(t, s.pool, `UPDATE cluster SET created_at = clock_timestamp() - interval '9 hours'`)
	wantAge(9 * time.Hour) // there is none
	for _, b := range []struct {
		started time.Duration // ago
		whole   bool
	}{{5 * time.Hour, true}, {7 * time.Hour, true}, {2 * time.Hour, false}} {
		id := s.beginBackup()
		if err := s.db.Backups.End(t.Context(), id, b.whole); err != nil {
			t.Fatal(err)
		}
		mustExec(t, s.pool, `UPDATE backups SET started_at = clock_timestamp() - $2::interval WHERE id = $1`, id, b.started)
	}
	mustExec(t, s.pool, `UPDATE backups SET started_at = clock_timestamp() - interval '1 hour' WHERE id = $1`,
		s.beginBackup())
	wantAge(5 * time.Hour) // the later ones failed, or run
}

// pruners are all calls that delete old rows, each with a retention that everything exceeds.
func (s *stage) pruners(term db.Term) map[string]func() (int, error) {
	ctx := s.t.Context()
	return map[string]func() (int, error){
		"jobs":      func() (int, error) { return s.db.Jobs.ArchiveTerminal(ctx, term, 0, 10) },
		"machines":  func() (int, error) { return s.db.Machines.PruneHistory(ctx, term, 0, 10) },
		"logs":      func() (int, error) { return s.db.Logs.Prune(ctx, term, 0, 10) },
		"outputs":   func() (int, error) { return s.db.Objects.PruneOutputs(ctx, term, 0, 10) },
		"uploads":   func() (int, error) { return s.db.Uploads.Doom(ctx, term, 0, 10) },
		"chunks":    func() (int, error) { return s.db.Chunks.Collect(ctx, term, 0, 10) },
		"acts":      func() (int, error) { return s.db.JobSessions.PruneActs(ctx, term, 0, 10) },
		"windows":   func() (int, error) { return s.db.Maintenance.Prune(ctx, term, 0, 10) },
		"launches":  func() (int, error) { return s.db.Launches.Prune(ctx, term, 0, 10) },
		"tokens":    func() (int, error) { return s.db.Tokens.Prune(ctx, term, 0, 10) },
		"fires":     func() (int, error) { return s.db.Schedules.PruneFires(ctx, term, 0, 10) },
		"schedules": func() (int, error) { return s.db.Schedules.DeleteEnded(ctx, term, 0, 10) },
	}
}

// TestABackupKeepsPrunersOffTheirTables checks that no pruner touches its tables while a backup runs, by
// locking the tables: a pruner that touches one waits for the lock.
func TestABackupKeepsPrunersOffTheirTables(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	backup := s.beginBackup()
	const tables = `LOCK TABLE jobs, machine_events, machine_faults, log_chunks, outputs, uploads, acts, maintenance, launches,
		tokens, join_tokens, schedule_fires, schedules IN ACCESS EXCLUSIVE MODE`
	s.holding(tables, func() {
		done := make(chan string, 20)
		calls := s.pruners(term)
		for name, prune := range calls {
			go func() {
				n, err := prune()
				if n != 0 || err != nil {
					done <- fmt.Sprintf("%s: pruned %d, err %v", name, n, err)
				}
				done <- ""
			}()
		}
		late := time.After(time.Minute)
		for range calls {
			select {
			case fault := <-done:
				if fault != "" {
					t.Error(fault)
				}
			case <-late:
				t.Fatal("a pruner waits for its tables while a backup runs")
			}
		}
	})
	if err := s.db.Backups.End(t.Context(), backup, true); err != nil {
		t.Fatal(err)
	}
	for name, prune := range s.pruners(term) {
		if _, err := prune(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestABackupHoldsBackDeletions checks that rows and objects stay while a backup runs, and go once it has ended
// or its lease has.
func TestABackupHoldsBackDeletions(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(s *stage, id string){
		"ended": func(s *stage, id string) {
			if err := s.db.Backups.End(t.Context(), id, true); err != nil {
				t.Error(err)
			}
		},
		"killed": func(s *stage, id string) {
			mustExec(s.t, s.pool, `UPDATE backups SET expires_at = clock_timestamp() - interval '1 s'`)
			if err := s.db.Backups.Renew(t.Context(), id); berth.CodeOf(err) != berth.CodeConflict {
				t.Errorf("a lease that has ended is renewed: %v", err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			s.ended()
			mustExec(t, s.pool, `UPDATE allocations SET forgotten_at = now()`)
			mustExec(t, s.pool, `INSERT INTO doomed_objects (prefix) VALUES ('x')`)
			unswept, attempt := s.started(func(j *spec.Job) { j.Checkpoint = &spec.CheckpointPolicy{Path: "/c", Keep: 2} })
			s.exit(unswept, attempt, 0, exited(0))
			s.settle(unswept, attempt)
			counts := func() (archived, doomed, closed int) {
				n, err := s.db.Jobs.ArchiveTerminal(t.Context(), s.term(), 0, 10)
				if err != nil {
					t.Fatal(err)
				}
				list, err := s.db.Objects.Doomed(t.Context(), 10)
				if err != nil {
					t.Fatal(err)
				}
				attempts, err := s.db.Objects.ClosedAttempts(t.Context(), 0, 10)
				if err != nil {
					t.Fatal(err)
				}
				return n, len(list), len(attempts)
			}
			id := s.beginBackup()
			if err := s.db.Backups.Renew(t.Context(), id); err != nil {
				t.Errorf("a running backup cannot renew its lease: %v", err)
			}
			if a, d, c := counts(); a+d+c != 0 {
				t.Errorf("during a backup: archived %d jobs, %d folders are to be removed, %d attempts to be swept", a, d, c)
			}
			end(s, id)
			if a, d, c := counts(); a == 0 || d == 0 || c == 0 {
				t.Errorf("after a backup: archived %d jobs, %d folders are to be removed, %d attempts to be swept", a, d, c)
			}
		})
	}
}

// TestABackupWaitsForDeletionsUnderWay checks that no deletion that has not seen a backup commits after the
// backup has begun.
func TestABackupWaitsForDeletionsUnderWay(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	term := s.term()
	began := make(chan error, 1)
	err := s.db.PruneTx(t.Context(), term, func(pgx.Tx) error {
		go func() {
			_, err := s.db.Backups.Begin(t.Context(), "test")
			began <- err
		}()
		s.blocked(1)
		select {
		case err := <-began:
			t.Errorf("a backup began during a deletion: %v", err)
		default:
		}
		// While the backup waits to begin, no other deletion starts.
		if err := s.db.PruneTx(t.Context(), term, func(pgx.Tx) error {
			t.Error("a deletion started while a backup waits to begin")
			return nil
		}); err != nil {
			t.Error(err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-began; err != nil {
		t.Fatal(err)
	}
}

// TestShardsPrunedDuringABackupGoAfterIt checks that a checkpoint beyond the job's keep is given up as usual
// while a backup runs, so that quotas stay exact, and that its objects stay until the backup has ended.
func TestShardsPrunedDuringABackupGoAfterIt(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	a, _ := s.register("host1", "agent1")
	id := s.submit(func(j *spec.Job) {
		j.Checkpoint = &spec.CheckpointPolicy{Path: "/checkpoint", Keep: 1}
		*j = j.WithDefaults()
	})
	attempt := s.place(id, "m0")
	a.mustClaim(id, attempt)
	save := func(step int64) []db.PrunedShard {
		t.Helper()
		pruned, err := s.db.Objects.RegisterCheckpoint(t.Context(), a.machine, wire.CheckpointReport{AgentBoot: a.boot,
			Epoch: a.epoch, Alloc: s.alloc(id, attempt), Job: id, Attempt: attempt, OfAttempt: attempt, Step: step,
			Manifest: manifestKey(id, attempt, 0, step), SHA256: "x", Bytes: 10})
		if err != nil {
			t.Fatal(err)
		}
		return pruned
	}
	save(1)
	backup := s.beginBackup()
	if pruned := save(2); len(pruned) != 0 {
		t.Errorf("during a backup the caller is to delete %v", pruned)
	}
	if got := one[string](s, `SELECT state FROM checkpoints WHERE job = $1 AND step = 1`, id); got != string(berth.CheckpointPruned) {
		t.Errorf("step 1 is %s, want pruned", got)
	}
	if list, err := s.db.Objects.Doomed(t.Context(), 10); err != nil || len(list) != 0 {
		t.Errorf("during a backup %v are to be removed, err %v", list, err)
	}
	if err := s.db.Backups.End(t.Context(), backup, true); err != nil {
		t.Fatal(err)
	}
	list, err := s.db.Objects.Doomed(t.Context(), 10)
	if err != nil || !slices.ContainsFunc(list, func(p string) bool { return strings.Contains(p, "/step-") }) {
		t.Errorf("after the backup %v are to be removed, err %v", list, err)
	}
	if pruned := save(3); len(pruned) != 1 || pruned[0].Step != 2 {
		t.Errorf("after the backup step 3 prunes %v", pruned)
	}
}
