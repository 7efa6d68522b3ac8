package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/db/dbtest"
	"berth/db/history"
)

// lossRows are rows as a lost machine, a transaction that began before its rows, and replaced hardware leave them.
// Job 31 runs again while its first allocation is orphaned, job 32 was canceled on a lost machine, job 33 has an end
// before its placement, and job 34 held a device that its machine no longer has.
var lossRows = []string{
	`SET LOCAL session_replication_role = replica`,
	`INSERT INTO jobs (id, tenant, name, class, priority, preemptible, grace_ms, lost_after_ms, actor, submitted_at, eligible_at, state, attempt, finished_at)
	 SELECT x.id::uuid, 'yak-tenant', 'squid-job', (SELECT min(class) FROM classes), 500, true, 0, 90000, 'user:x', now() - interval '12 h',
		now() - interval '12 h', x.state, x.attempt, now() - x.finished::interval
	 FROM (VALUES ('01900000-0000-7000-8000-000000000031', 'running', 2, NULL), ('01900000-0000-7000-8000-000000000032', 'canceled', 1, '3 h'),
		('01900000-0000-7000-8000-000000000033', 'failed', 1, '2 h'), ('01900000-0000-7000-8000-000000000034', 'succeeded', 1, '9 h')) x (id, state, attempt, finished)`,
	`INSERT INTO attempts (job, attempt, leader_epoch, placed_at, started_at, ended_at, outcome, budget)
	 SELECT x.id::uuid, x.attempt, 1, now() - x.placed::interval, now() - x.placed::interval, now() - x.ended::interval, x.outcome::jsonb, x.budget
	 FROM (VALUES ('01900000-0000-7000-8000-000000000031', 1, '5 h', '4 h', '{"code": "machine_lost"}', 'infra'),
		('01900000-0000-7000-8000-000000000031', 2, '3 h', NULL, NULL, NULL), ('01900000-0000-7000-8000-000000000032', 1, '5 h', NULL, NULL, NULL),
		('01900000-0000-7000-8000-000000000033', 1, '2 h', '2 h 1 s', '{"code": "exit_code"}', 'user'),
		('01900000-0000-7000-8000-000000000034', 1, '11 h', '9 h', '{"code": "exit_code"}', 'none')) x (id, attempt, placed, ended, outcome, budget)`,
	`INSERT INTO allocations (id, job, attempt, rank, machine_id, machine_epoch, cpu_m, mem_mb, disk_mb, gpu_milli, state, orphaned_at, exited_at)
	 OVERRIDING SYSTEM VALUE
	 SELECT 9000 + row_number() OVER (), x.id::uuid, x.attempt, 0, x.machine, 1, 1000, 1, 1, 1000, x.state, now() - x.orphaned::interval, now() - x.exited::interval
	 FROM (VALUES ('01900000-0000-7000-8000-000000000031', 1, 'walrus-machine-1', 'orphaned', '4 h', NULL),
		('01900000-0000-7000-8000-000000000031', 2, 'walrus-machine-0', 'active', NULL, NULL),
		('01900000-0000-7000-8000-000000000032', 1, 'walrus-machine-1', 'orphaned', '4 h', NULL),
		('01900000-0000-7000-8000-000000000034', 1, 'walrus-machine-2', 'released', NULL, '9 h')) x (id, attempt, machine, state, orphaned, exited)`,
	`INSERT INTO device_allocations (alloc_id, machine_id, idx, milli)
	 SELECT id, machine_id, 7, 1000 FROM allocations WHERE job = '01900000-0000-7000-8000-000000000034'`,
	`INSERT INTO gpu_devices (machine_id, idx, uuid, model, mem_mb) SELECT 'walrus-machine-1', i, 'slice-' || i, 'H100', 81920 FROM generate_series(2, 80) i`,
	// Events get their numbers before their times.
	`UPDATE machine_events SET at = now() - CASE gpu WHEN 0 THEN interval '2 h' ELSE interval '3 h' END WHERE gpu < 2 AND machine_id = 'walrus-machine-2'`,
}

// TestRowsOfLostMachinesAreReplayed exports lossRows and replays the file.
func TestRowsOfLostMachinesAreReplayed(t *testing.T) {
	t.Parallel()
	url := zoo(t)
	tx, err := dbtest.Open(t, url, db.Options{}).Pool().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	for _, sql := range lossRows {
		if _, err := tx.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%v\n%s", err, sql)
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "s.jsonl")
	mustSimulate(t, "snapshot", "--database-url", url, "--since", "10h", "--out", path)
	rec, err := loadSnapshot(path)
	if err != nil {
		t.Fatal(err)
	}
	lives := rec.lives()
	seen := 0
	for i, j := range rec.jobs {
		ran := func(n int) time.Duration {
			if j.Attempts[n].FreedAt == nil {
				return -1
			}
			return j.Attempts[n].FreedAt.Sub(j.Attempts[n].PlacedAt)
		}
		switch {
		case j.State == berth.Running:
			if len(j.Attempts) != 2 || ran(0) != time.Hour || ran(1) != -1 || !lives[i].open {
				t.Errorf("the job that runs again has %+v", j.Attempts)
			}
		case j.State == berth.Canceled:
			if ran(0) != time.Hour || lives[i].open || lives[i].length != time.Hour {
				t.Errorf("the canceled job has %+v, %+v", j.Attempts, lives[i])
			}
		case j.State == berth.Failed:
			if ran(0) != 0 {
				t.Errorf("the job that ended before its placement ran for %s", ran(0))
			}
		default:
			continue
		}
		seen++
	}
	if seen != 3 {
		t.Errorf("%d jobs of 3 were seen", seen)
	}
	out := mustSimulate(t, "replay", path)
	if want := "1 attempts held devices that their machines have no more"; !strings.Contains(out, want) {
		t.Errorf("%q is missing:\n%s", want, out)
	}
}

// TestAnOpenAttemptOfAnEndedJobEndsWithIt checks that neither the work nor the use counts beyond the end of the job.
func TestAnOpenAttemptOfAnEndedJobEndsWithIt(t *testing.T) {
	t.Parallel()
	lines := handMade()
	lines = append(lines[:4:4], lines[5:]...)
	lines[4].Job.State, lines[4].Job.Attempts[0].FreedAt = berth.Canceled, nil // it ended after 10 minutes
	rec, err := loadSnapshot(writeLines(t, filepath.Join(t.TempDir(), "s.jsonl"), lines))
	if err != nil {
		t.Fatal(err)
	}
	if l := rec.lives()[0]; l.open || l.length != 10*time.Minute {
		t.Errorf("the ended job has %+v", l)
	}
	if got := rec.recorded(rec.fleet()).used.CPUMilli; got != 2000*3600 {
		t.Errorf("the use is %d: want an hour of 2 cores", got)
	}
}

// TestStatesAreSortedByTime checks a file whose states and conditions are in the order of their numbers.
func TestStatesAreSortedByTime(t *testing.T) {
	t.Parallel()
	lines := handMade()
	m := &lines[3].Machine.RecordedMachine
	at := m.States[0].At
	m.States = append([]history.RecordedState{{At: at.Add(time.Minute), State: berth.MachineDraining}}, m.States...)
	m.GPUs = []history.RecordedGPU{{Model: "H100"}}
	m.Health = []history.RecordedHealth{{At: at.Add(time.Minute)}, {At: at, Healthy: true}}
	rec, err := loadSnapshot(writeLines(t, filepath.Join(t.TempDir(), "s.jsonl"), lines))
	if err != nil {
		t.Fatal(err)
	}
	got := rec.machines[0]
	if !slices.IsSortedFunc(got.States, func(a, b history.RecordedState) int { return a.At.Compare(b.At) }) ||
		got.Health[1].Healthy {
		t.Errorf("states %+v, health %+v", got.States, got.Health)
	}
}

// TestTooManyRecordsAreRefusedByTheWriter checks that no file is written that a replay refuses, and none is left.
func TestTooManyRecordsAreRefusedByTheWriter(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w, err := createSnapshot(filepath.Join(dir, "s.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	w.most = 2
	for _, l := range handMade() {
		if err = w.write(l); err != nil {
			break
		}
	}
	if err == nil || !strings.Contains(err.Error(), "more than 2 records of kind job") || !strings.Contains(err.Error(), "shorter --since") {
		t.Errorf("%v", err)
	}
	w.abandon()
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("%v are left: %v", left, err)
	}
}

// TestSnapshotsAreForTheirOwnerOnly checks that the names in a file go through no file that others have made.
func TestSnapshotsAreForTheirOwnerOnly(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, trap, victim := filepath.Join(dir, "s.jsonl"), filepath.Join(dir, "s.jsonl.partial"), filepath.Join(dir, "victim")
	if err := os.WriteFile(victim, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(victim, trap); err != nil {
		t.Fatal(err)
	}
	writeLines(t, path, handMade())
	if b, err := os.ReadFile(victim); err != nil || string(b) != "kept" {
		t.Errorf("the target of the link has %q: %v", b, err)
	}
	if s, err := os.Lstat(path); err != nil || s.Mode() != 0o600 {
		t.Errorf("the file has the mode %v: %v", s.Mode(), err)
	}
	// A folder of the name takes no file: the incomplete file goes.
	if err := os.MkdirAll(filepath.Join(dir, "folder", "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	w, err := createSnapshot(filepath.Join(dir, "folder"))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.finish(); err == nil {
		t.Error("a folder was replaced")
	}
	if _, err := os.Lstat(w.file.Name()); !os.IsNotExist(err) {
		t.Errorf("the incomplete file is left: %v", err)
	}
}
