package db_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/db"
	"berth/db/dbtest"
)

// TestPeriodicStatementsDoNotReadAllJobs checks that the periodic statements of the leader, of dispatchers
// and of metrics read rows in proportion to the live jobs, and not to the ended jobs that the archive has yet
// to take.
func TestPeriodicStatementsDoNotReadAllJobs(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	const ended, most = 10000, 1500
	s.jobsThatEnded(ended)
	for range 10 {
		s.submit(nil)
		id := s.submit(nil)
		s.load(id)
		s.tend(s.array(2, nil))
	}
	id := s.submit(nil)
	s.claim(id, s.place(id, "m0"), 0)
	mustExec(t, s.pool, `ANALYZE`)
	url, term := s.pool.Config().ConnString(), s.term()
	s.reset() // a session adds its reads to the statistics when it ends
	s.alone()
	silence := db.Silence{Suspect: time.Minute, Lost: time.Hour, Margin: time.Minute}
	patience := db.Patience{Prepare: time.Hour, Obey: time.Hour, Seal: time.Hour, Barrier: time.Hour}
	calls := map[string]func(d *db.DB) error{
		"Cluster.RefreshStatistics": func(d *db.DB) error { _, err := d.Cluster.RefreshStatistics(t.Context()); return err },
		"Queue.Feed":                func(d *db.DB) error { _, err := d.Queue.Feed(t.Context(), s.loadQueue().Next, db.Hinted{}); return err },
		"Queue.Load":                func(d *db.DB) error { _, err := d.Queue.Load(t.Context()); return err },
		"Queue.LoadMachines":        func(d *db.DB) error { _, err := d.Queue.LoadMachines(t.Context()); return err },
		"Tenants.Rows":              func(d *db.DB) error { _, err := d.Tenants.Rows(t.Context()); return err },
		"Tenants.List":              func(d *db.DB) error { _, err := d.Tenants.List(t.Context(), ""); return err },
		"Pools.Rules":               func(d *db.DB) error { _, err := d.Pools.Rules(t.Context()); return err },
		"Maintenance.Windows":       func(d *db.DB) error { _, err := d.Maintenance.Windows(t.Context()); return err },
		"Maintenance.Pass": func(d *db.DB) error {
			_, err := d.Maintenance.Pass(t.Context(), term, 100, &db.WaitingCursor{})
			return err
		},
		"Cluster.Population": func(d *db.DB) error { _, err := d.Cluster.Population(t.Context()); return err },
		"Attempts.RunTimes": func(d *db.DB) error {
			_, err := d.Attempts.RunTimes(t.Context(), []db.Work{{Tenant: "default", Name: "ended"}})
			return err
		},
		"Jobs.SubmittedBefore": func(d *db.DB) error { _, err := d.Jobs.SubmittedBefore(t.Context(), 0, 500); return err },
		"Jobs.ListLive":        func(d *db.DB) error { _, err := d.Jobs.ListLive(t.Context(), 0); return err },
		"Attempts.Unclaimed":   func(d *db.DB) error { _, err := d.Attempts.Unclaimed(t.Context(), 0, 500); return err },
		"Attempts.Unsettled":   func(d *db.DB) error { _, err := d.Attempts.Unsettled(t.Context(), 0, 500); return err },
		"Attempts.UnheardFor":  func(d *db.DB) error { _, err := d.Attempts.UnheardFor(t.Context(), 0, 500); return err },
		"Attempts.Unwaited": func(d *db.DB) error {
			if err := d.Attempts.NewWaiterSet("a").Share(t.Context(), nil, true); err != nil {
				return err
			}
			_, err := d.Attempts.Unwaited(t.Context(), 0, 500)
			return err
		},
		"Attempts.EndedMembers": func(d *db.DB) error { _, err := d.Attempts.EndedMembers(t.Context()); return err },
		"Chunks.Unseen":         func(d *db.DB) error { _, err := d.Chunks.Unseen(t.Context(), time.Hour, 500); return err },
		"Chunks.Collect":        func(d *db.DB) error { _, err := d.Chunks.Collect(t.Context(), term, 0, 500); return err },
		"Parents.Untended":      func(d *db.DB) error { _, err := d.Parents.Untended(t.Context(), 0, 500); return err },
		"Attempts.KillOverdue":  func(d *db.DB) error { _, err := d.Attempts.KillOverdue(t.Context(), term, time.Hour, 500); return err },
		"Attempts.KillStray":    func(d *db.DB) error { _, err := d.Attempts.KillStray(t.Context(), term, 500); return err },
		"Attempts.KillUnprepared": func(d *db.DB) error {
			_, err := d.Attempts.KillUnprepared(t.Context(), term, patience, 500)
			return err
		},
		"Attempts.GiveUpStuck":   func(d *db.DB) error { _, err := d.Attempts.GiveUpStuck(t.Context(), term, patience, 500); return err },
		"Cluster.Miscounts":      func(d *db.DB) error { _, err := d.Cluster.Miscounts(t.Context()); return err },
		"Machines.Disobedient":   func(d *db.DB) error { _, err := d.Machines.Disobedient(t.Context(), time.Hour); return err },
		"Jobs.FailExpired":       func(d *db.DB) error { _, err := d.Jobs.FailExpired(t.Context(), term, nil, 500); return err },
		"Queue.ClearNominations": func(d *db.DB) error { _, err := d.Queue.ClearNominations(t.Context(), term); return err },
		"Queue.GiveUpRepairs":    func(d *db.DB) error { _, err := d.Queue.GiveUpRepairs(t.Context(), term, nil); return err },
		"Queue.WithdrawNominations": func(d *db.DB) error {
			_, err := d.Queue.WithdrawNominations(t.Context(), term, []db.Withdrawal{{Job: id, Machine: "m0"}})
			return err
		},
		"Machines.MarkSuspect":  func(d *db.DB) error { _, err := d.Machines.MarkSuspect(t.Context(), term, silence); return err },
		"Machines.Overdue":      func(d *db.DB) error { _, _, err := d.Machines.Overdue(t.Context(), silence); return err },
		"Machines.Fleet":        func(d *db.DB) error { _, err := d.Machines.Fleet(t.Context(), silence); return err },
		"Attempts.DrainOverdue": func(d *db.DB) error { _, err := d.Attempts.DrainOverdue(t.Context(), term, 500); return err },
		"Attempts.JudgeHangs":   func(d *db.DB) error { _, err := d.Attempts.JudgeHangs(t.Context(), term, 500); return err },
		"Machines.DrainLemons":  func(d *db.DB) error { _, err := d.Machines.DrainLemons(t.Context(), term); return err },
		"Jobs.ArchiveTerminal": func(d *db.DB) error {
			_, err := d.Jobs.ArchiveTerminal(t.Context(), term, 24*time.Hour, 500)
			return err
		},
		"Schedules.DeleteEnded": func(d *db.DB) error {
			_, err := d.Schedules.DeleteEnded(t.Context(), term, 24*time.Hour, 500)
			return err
		},
		"Machines.PruneHistory": func(d *db.DB) error { _, err := d.Machines.PruneHistory(t.Context(), term, 0, 500); return err },
		"Objects.PruneOutputs": func(d *db.DB) error {
			_, err := d.Objects.PruneOutputs(t.Context(), term, 24*time.Hour, 500)
			return err
		},
		"Tokens.Prune":           func(d *db.DB) error { _, err := d.Tokens.Prune(t.Context(), term, time.Hour, 500); return err },
		"Schedules.PruneFires":   func(d *db.DB) error { _, err := d.Schedules.PruneFires(t.Context(), term, time.Hour, 500); return err },
		"Schedules.PendingFires": func(d *db.DB) error { _, err := d.Schedules.PendingFires(t.Context(), 500); return err },
		"Schedules.UnsetClocks":  func(d *db.DB) error { _, err := d.Schedules.UnsetClocks(t.Context(), 500); return err },
		"Schedules.Clocks":       func(d *db.DB) error { _, err := d.Schedules.Clocks(t.Context()); return err },
		"Uploads.Doom":           func(d *db.DB) error { _, err := d.Uploads.Doom(t.Context(), term, time.Hour, 500); return err },
		"Objects.VerifiedShards": func(d *db.DB) error { _, err := d.Objects.VerifiedShards(t.Context(), db.Shard{}, 500); return err },
		"Objects.ClosedAttempts": func(d *db.DB) error { _, err := d.Objects.ClosedAttempts(t.Context(), 0, 500); return err },
		"Tenants.FoldUsage":      func(d *db.DB) error { _, err := d.Tenants.FoldUsage(t.Context(), term, 500); return err },
		"Outbox.Claim": func(d *db.DB) error {
			_, err := d.Outbox.Claim(t.Context(), db.NoticeClaim{Each: 5, Limit: 50, Lease: time.Minute})
			return err
		},
		"Outbox.Backlog":    func(d *db.DB) error { _, err := d.Outbox.Backlog(t.Context()); return err },
		"Machines.FleetUse": func(d *db.DB) error { _, err := d.Machines.FleetUse(t.Context()); return err },
		"Schedules.List":    func(d *db.DB) error { _, err := d.Schedules.List(t.Context(), "default"); return err },
		"Jobs.List":         func(d *db.DB) error { _, _, err := d.Jobs.List(t.Context(), db.JobFilter{Limit: 50}); return err },
		"Jobs.List, live": func(d *db.DB) error {
			_, _, err := d.Jobs.List(t.Context(), db.JobFilter{Limit: 50, Status: []berth.State{berth.Running}})
			return err
		},
		"Machines.List": func(d *db.DB) error { _, err := d.Machines.List(t.Context(), db.MachineFilter{}); return err },
	}
	for _, name := range slices.Sorted(maps.Keys(calls)) {
		before := s.scanned()
		d := dbtest.Open(t, url, db.Options{})
		if err := calls[name](d); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		d.Close()
		s.alone()
		for table, n := range s.scanned() {
			if n -= before[table]; n > most {
				t.Errorf("%s reads %d rows of %s, with %d jobs that have ended; at most %d should do", name, n, table, ended, most)
			}
		}
	}
}

// TestPagesOfShardsCostWhatTheyHold checks that a page of checkpoint shards reads rows in proportion to the
// page, and not to all shards after it.
func TestPagesOfShardsCostWhatTheyHold(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	const live, steps, page = 500, 8, 200
	s.jobsThatEnded(10 * live)
	mustExec(t, s.pool, `
		BEGIN;
		SET LOCAL session_replication_role = replica; -- what has ended is not to change
		UPDATE jobs SET state = 'queued', finished_at = NULL WHERE id IN (SELECT id FROM jobs ORDER BY random() LIMIT 500);
		COMMIT`)
	mustExec(t, s.pool, `DELETE FROM checkpoint_shards h USING jobs j WHERE j.id = h.job AND j.state = 'queued'`)
	mustExec(t, s.pool, `DELETE FROM checkpoints c USING jobs j WHERE j.id = c.job AND j.state = 'queued'`)
	mustExec(t, s.pool, `INSERT INTO checkpoints (job, step, attempt, ranks, state, created_at)
		SELECT id, n, 1, 2, 'verified', now() - interval '1 hour' FROM jobs, generate_series(1, $1::int) AS n WHERE state = 'queued'`, steps)
	mustExec(t, s.pool, `INSERT INTO checkpoint_shards (job, step, attempt, rank, manifest, sha256, bytes)
		SELECT c.job, c.step, c.attempt, n, 'm' || n, '', 1 FROM checkpoints c JOIN jobs j ON j.id = c.job, generate_series(0, 1) AS n WHERE j.state = 'queued'`)
	want := one[[]string](s, `SELECT array_agg(h.job || ' ' || h.step || ' ' || h.manifest ORDER BY h.job, h.step, h.manifest)
		FROM checkpoint_shards h JOIN jobs j ON j.id = h.job WHERE j.state = 'queued'`)
	mustExec(t, s.pool, `ANALYZE`)
	url := s.pool.Config().ConnString()
	s.reset()
	s.alone()
	before := s.scanned()
	d := dbtest.Open(t, url, db.Options{})
	var got []string
	for after := (db.Shard{}); ; {
		list, err := d.Objects.VerifiedShards(t.Context(), after, page)
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range list {
			got = append(got, fmt.Sprintf("%s %d %s", x.Job, x.Step, x.Manifest))
		}
		if len(list) < page {
			break
		}
		after = list[len(list)-1]
	}
	d.Close()
	s.alone()
	if !slices.Equal(got, want) {
		t.Errorf("%d shards are read, want %d, in order", len(got), len(want))
	}
	const most = 2 * live * steps * 2
	for table, n := range s.scanned() {
		if n -= before[table]; strings.HasPrefix(table, "checkpoint") && n > most {
			t.Errorf("%d rows of %s are read for %d shards; at most %d should do", n, table, len(want), most)
		}
	}
}

// jobsThatEnded stores n ended jobs with one rank each, in the state before they are archived.
func (s *stage) jobsThatEnded(n int) {
	s.t.Helper()
	if err := pgx.BeginFunc(s.t.Context(), s.pool, func(tx pgx.Tx) error {
		for _, sql := range []string{
			`SET LOCAL session_replication_role = replica`, // no triggers: these events are long past
			`CREATE TEMPORARY TABLE ended ON COMMIT DROP AS SELECT gen_random_uuid() AS id FROM generate_series(1, $1::int)`,
			`INSERT INTO jobs (id, tenant, name, class, priority, preemptible, state, state_at, attempt, grace_ms, lost_after_ms, actor, submitted_at, finished_at)
			SELECT id, 'default', 'ended', 'c', 500, true, 'succeeded', now(), 1, 0, 0, 'test', now() - interval '1 minute', now() FROM ended`,
			`INSERT INTO job_specs (job, spec) SELECT id, '{"image": "busybox"}' FROM ended`,
			`INSERT INTO attempts (job, attempt, leader_epoch, placed_at, started_at, ended_at, next_state, swept_at) SELECT id, 1, 1, now(), now(), now(), 'succeeded', now() FROM ended`,
			`INSERT INTO checkpoints (job, step, attempt, ranks, state, created_at) SELECT id, step, 1, 1, 'verified', now() - interval '1 hour' FROM ended, generate_series(1, 2) AS step WHERE id::text < '4'`,
			`INSERT INTO checkpoint_shards (job, step, attempt, rank, manifest, sha256, bytes) SELECT job, step, attempt, 0, 'm', '', 1 FROM checkpoints`,
			`INSERT INTO uploads (tenant, address, folder, files, bytes, used_at) SELECT 'default', 'sha256:' || n, n, 1, 1, now() - interval '1 day' FROM generate_series(1, 50) AS n`,
			`INSERT INTO job_uploads (job, address) SELECT id, 'sha256:' || (1 + ascii(right(id::text, 1)) % 50) FROM ended`,
			`INSERT INTO outputs (job, attempt, rank, name, address, files, bytes, stored_bytes, sha256, object) SELECT id, 1, 0, 'o', 'a', 1, 1, 1, 's', 'object' FROM ended WHERE id::text LIKE '1%'`,
			`INSERT INTO job_inputs (job, input, source, attempt, rank, name) SELECT job, 0, job, 1, 0, 'o' FROM outputs`,
			`INSERT INTO allocations (job, attempt, rank, machine_id, machine_epoch, cpu_m, mem_mb, disk_mb, gpu_milli, state, claimed_at, exited_at, sealed_at, released_at, forgotten_at)
			SELECT id, 1, 0, 'm0', 1, 1, 1, 0, 0, 'released', now(), now(), now(), now(), now() FROM ended`,
		} {
			var args []any
			if sql[:6] == "CREATE" {
				args = []any{n}
			}
			if _, err := tx.Exec(s.t.Context(), sql, args...); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		s.t.Fatal(err)
	}
}

// scanned returns the number of rows read per table, separately for sequential scans and for indexes.
func (s *stage) scanned() map[string]int64 {
	s.t.Helper()
	rows, err := s.pool.Query(s.t.Context(), `SELECT relname, seq_tup_read FROM pg_stat_user_tables UNION ALL SELECT relname || ' by index', idx_tup_fetch FROM pg_stat_user_tables WHERE idx_tup_fetch IS NOT NULL`)
	if err != nil {
		s.t.Fatal(err)
	}
	read := map[string]int64{}
	var table string
	var n int64
	if _, err := pgx.ForEachRow(rows, []any{&table, &n}, func() error { read[table] += n; return nil }); err != nil {
		s.t.Fatal(err)
	}
	return read
}

// alone waits until the database has no other session than the connections of the stage. By then the
// statistics include the reads of all other sessions.
func (s *stage) alone() {
	s.t.Helper()
	pools := func() int32 { return s.pool.Stat().TotalConns() + s.db.Pool().Stat().TotalConns() }
	mine := pools()
	s.until("no other session", func() bool {
		sessions := one[int32](s, `SELECT count(*)::int FROM pg_stat_activity WHERE datname = current_database()`)
		return sessions <= max(mine, pools())
	})
}

// reset ends the sessions of both pools as soon as they are idle.
func (s *stage) reset() {
	s.pool.Reset()
	s.db.Pool().Reset()
}

// TestSharedChunksCostWhatTheMemberHas checks that the question which chunks a member may leave out, and its
// registration, read rows in proportion to the member's own chunks, and not to all checkpoints that name them.
func TestSharedChunksCostWhatTheMemberHas(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.roomy()
	a, _ := s.register("host1", "agent1")
	x := s.storer(a)
	const shared, others = 60, 300
	names := make([]string, shared)
	for i := range names {
		names[i] = fmt.Sprint("base", i)
	}
	x.sends(names...)
	if err := x.registers(1, names...); err != nil {
		t.Fatal(err)
	}
	mustExec(t, s.pool, `INSERT INTO chunk_refs (job, step, attempt, rank, tenant, sha256)
		SELECT gen_random_uuid(), n, 1, 0, tenant, sha256 FROM generate_series(1, $1) n, chunks`, others)
	y := s.storer(a)
	y.sends(names[0])
	mustExec(t, s.pool, `ANALYZE`)
	url := s.pool.Config().ConnString()
	s.reset()
	s.alone()
	for name, call := range map[string]func(on *stage) error{
		"a new member": func(on *stage) error {
			held, err := on.db.Chunks.Held(t.Context(), y.member(), sums(chunks(names...)))
			if len(held) != 1 {
				t.Errorf("a new member may leave out %d chunks", len(held))
			}
			return err
		},
		"the registration of a member that has them": func(on *stage) error {
			return (&storer{stage: on, a: a, id: x.id, attempt: x.attempt}).registers(2, names...)
		},
	} {
		before := s.scanned()
		on := *s
		on.db = dbtest.Open(t, url, db.Options{})
		if err := call(&on); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		on.db.Close()
		s.alone()
		for table, n := range s.scanned() {
			if n -= before[table]; strings.HasPrefix(table, "chunk") && n > 20*shared {
				t.Errorf("%s reads %d rows of %s for %d chunks that %d checkpoints name", name, n, table, shared, others)
			}
		}
	}
}
