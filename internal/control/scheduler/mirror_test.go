package scheduler

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/db/dbtest"
	"berth/internal/control/runtimes"
	"berth/lifecycle"
	"berth/placement"
	"berth/spec"
)

func newMirror(t *testing.T) (*mirror, *bytes.Buffer) {
	t.Helper()
	d := dbtest.DB(t, db.Options{})
	var log bytes.Buffer
	m := &mirror{db: d, log: slog.New(slog.NewTextHandler(&log, nil)), metrics: NewMetrics(), marks: &marks{}}
	exec(t, m, `INSERT INTO machines (id, state, cpu_m, mem_mb, disk_mb) VALUES ('m0', 'ready', 64000, 65536, 1000)`)
	return m, &log
}

func exec(t *testing.T, m *mirror, sql string, args ...any) {
	t.Helper()
	if _, err := m.db.Pool().Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%v\n%s", err, sql)
	}
}

func queued(t *testing.T, m *mirror) berth.JobID {
	t.Helper()
	jobSpec := spec.Job{Name: "x", Image: "busybox"}.WithDefaults()
	job, _, err := m.db.Jobs.Submit(t.Context(), db.Submission{Tenant: "default", Spec: jobSpec, Actor: "user:test"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.db.Jobs.Load(t.Context(), job.ID); err != nil {
		t.Fatal(err)
	}
	return job.ID
}

// catchUp reads until the feed has passed all commits before the call: transactions
// of other tests on the same server delay it.
func catchUp(t *testing.T, m *mirror) {
	t.Helper()
	var end db.Cursor
	if err := m.db.Pool().QueryRow(t.Context(), `SELECT pg_snapshot_xmax(pg_current_snapshot())`).Scan((*uint64)(&end)); err != nil {
		t.Fatal(err)
	}
	for m.cursor < end {
		if _, err := m.read(context.Background(), db.Hinted{}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestReloadFindsNothingWhereTheFeedMissedNothing(t *testing.T) {
	t.Parallel()
	m, log := newMirror(t)
	gone := queued(t, m)
	if err := m.load(t.Context()); err != nil {
		t.Fatal(err)
	}
	queued(t, m)
	exec(t, m, `UPDATE jobs SET state = 'canceled', version = version + 1 WHERE id = $1`, gone)
	exec(t, m, `UPDATE machines SET state = 'suspect'`)
	catchUp(t, m)
	if m.snapshot.Jobs() != 1 || m.snapshot.Machines() != 1 {
		t.Errorf("%d jobs, %d machines", m.snapshot.Jobs(), m.snapshot.Machines())
	}
	if err := m.reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if log.Len() > 0 {
		t.Errorf("logged %s", log)
	}
}

func TestReloadFindsAndHealsWhatTheFeedMissed(t *testing.T) {
	t.Parallel()
	m, log := newMirror(t)
	changed, gone, kept := queued(t, m), queued(t, m), queued(t, m)
	if err := m.load(t.Context()); err != nil {
		t.Fatal(err)
	}
	catchUp(t, m)
	// Changes that nothing stamps, as a bug in a trigger might make them.
	exec(t, m, `ALTER TABLE jobs DISABLE TRIGGER USER; ALTER TABLE machines DISABLE TRIGGER USER`)
	exec(t, m, `UPDATE jobs SET priority = 7, version = 3 WHERE id = $1`, changed)
	exec(t, m, `UPDATE jobs SET state = 'failed' WHERE id = $1`, gone)
	exec(t, m, `UPDATE machines SET state = 'draining'`)
	if err := m.reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), "rows=3") {
		t.Errorf("logged %q, want 3 rows", log)
	}
	if j, ok := m.snapshot.Job(changed); !ok || j.Priority != 7 {
		t.Errorf("job %+v", j)
	}
	if _, ok := m.snapshot.Job(gone); ok {
		t.Error("a failed job waits")
	}
	if _, ok := m.snapshot.Job(kept); !ok {
		t.Error("a waiting job is gone")
	}
}

func TestMarksReachTheSnapshot(t *testing.T) {
	t.Parallel()
	m, _ := newMirror(t)
	if err := m.load(t.Context()); err != nil {
		t.Fatal(err)
	}
	blocked := func() bool {
		m.remark()
		p, _ := m.snapshot.Machine("m0")
		return p.Blocked != ""
	}
	m.marks.set(map[berth.MachineID]string{"m0": "why not"})
	if !blocked() {
		t.Error("a mark was not seen")
	}
	exec(t, m, `UPDATE machines SET reason = 'x'`)
	catchUp(t, m)
	if !blocked() {
		t.Error("a row from the feed wiped the mark")
	}
	m.marks.set(nil)
	if blocked() {
		t.Error("the mark stayed")
	}
}

func TestAgesHaveDefaults(t *testing.T) {
	t.Parallel()
	a := Ages{Settle: time.Second}.withDefaults()
	if a.Settle != time.Second || a.Lost <= lifecycle.UnclaimedAfter || a.Submitted != 10*time.Second {
		t.Errorf("%+v", a)
	}
}

// A start whose commit is seen before it has returned does not count twice:
// there would be no telling when its room is free, and nothing could be reserved
// there.
func TestAStartThatIsSeenBeforeItsCommitReturnsCountsOnce(t *testing.T) {
	t.Parallel()
	m, _ := newMirror(t)
	id := queued(t, m)
	if err := m.load(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := spec.Job{Name: "x", Image: "busybox"}.WithDefaults().Request()
	room := func() int {
		t.Helper()
		rest := r
		rest.CPUMilli = 64000 - r.CPUMilli
		return placement.Explain(m.snapshot, rest).FitNow
	}
	plan := placement.Planner{}.Plan(m.snapshot, m.clock())
	m.assume(plan.Start)
	term, ok, err := m.db.Leader.OpenLease(db.LeaseLeader, "test").Acquire(t.Context(), time.Hour)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	if c, err := m.db.Queue.CommitStarts(t.Context(), term, plan.Start); err != nil || len(c.Started) != 1 {
		t.Fatalf("%+v, %v", c, err)
	}
	if _, err := m.read(t.Context(), db.Hinted{Machines: []berth.MachineID{"m0"}}); err != nil {
		t.Fatal(err)
	}
	if room() != 1 {
		t.Error("the machine alone was told, and its start counts twice")
	}
	if _, err := m.read(t.Context(), db.Hinted{Jobs: []berth.JobID{id}, Machines: []berth.MachineID{"m0"}}); err != nil {
		t.Fatal(err)
	}
	if room() != 1 {
		t.Error("job and machine were told, and the start counts twice")
	}
	if p, _ := m.snapshot.Machine("m0"); p.Used.CPUMilli != r.CPUMilli {
		t.Errorf("the machine uses %+v", p.Used)
	}
	m.drop(plan.Start)
	if r, ok := m.snapshot.Running(id); !ok || len(r.Ranks) != 1 || room() != 1 {
		t.Errorf("when the commit has returned: %+v, %v", r, ok)
	}
}

// Once a job has ended, its run time is the estimate of waiting and running jobs of
// the same name, also after a reload and for the next leader.
func TestRunsThatEndTellOfThoseThatWait(t *testing.T) {
	t.Parallel()
	m, _ := newMirror(t)
	m.runs = runtimes.New(m.db, placement.Policy{Order: placement.SRSF}, 0)
	first, waits := queued(t, m), queued(t, m)
	exec(t, m, `UPDATE jobs SET run_limit_ms = 60000 WHERE id = $1`, first)
	if err := m.load(t.Context()); err != nil {
		t.Fatal(err)
	}
	expected := func(id berth.JobID, want time.Duration, by string) {
		t.Helper()
		if j, ok := m.snapshot.Job(id); !ok || j.Expected != want || j.ExpectedBy != by {
			t.Errorf("it is expected to run %s, %q; want %s, %q", j.Expected, j.ExpectedBy, want, by)
		}
	}
	expected(waits, 0, "")
	ends := func(id berth.JobID, state berth.State, ran time.Duration) {
		t.Helper()
		exec(t, m, `UPDATE jobs SET state = 'scheduled', version = version + 1, attempt = attempt + 1 WHERE id = $1`, id)
		exec(t, m, `UPDATE jobs SET state = 'running', version = version + 1 WHERE id = $1`, id)
		exec(t, m, `UPDATE jobs SET state = $2, version = version + 1, ran_ms = $3 WHERE id = $1`, id, state, ran.Milliseconds())
		catchUp(t, m)
	}
	ends(first, berth.Succeeded, 40*time.Minute)
	expected(waits, 40*time.Minute, "as the latest job of this name did")
	ends(queued(t, m), berth.Failed, time.Second)
	expected(waits, 40*time.Minute, "as the latest job of this name did")
	ends(queued(t, m), berth.Succeeded, 20*time.Minute)
	expected(waits, 30*time.Minute, "the median of the latest 2 jobs of this name")
	next := queued(t, m)
	catchUp(t, m)
	expected(next, 30*time.Minute, "the median of the latest 2 jobs of this name")

	exec(t, m, `UPDATE jobs SET state = 'scheduled', version = version + 1, attempt = 1 WHERE id = $1`, waits)
	ends(queued(t, m), berth.Succeeded, time.Minute)
	if r, ok := m.snapshot.Running(waits); !ok || r.Expected != 20*time.Minute {
		t.Errorf("it runs, and is expected to for %s", r.Expected)
	}
	expected(next, 20*time.Minute, "the median of the latest 3 jobs of this name")
	if err := m.reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	expected(next, 20*time.Minute, "the median of the latest 3 jobs of this name")
	exec(t, m, `UPDATE jobs SET run_limit_ms = 60000, version = version + 1 WHERE id = $1`, next)
	catchUp(t, m)
	expected(next, 0, "")
}

func TestWithoutThatOrderNoHistoryIsRead(t *testing.T) {
	t.Parallel()
	m, _ := newMirror(t)
	for _, policy := range []placement.Policy{{}, {Order: placement.Priority}, {Order: placement.FIFO}, {Order: placement.SRSF, Durations: placement.Unknown}} {
		if runtimes.New(m.db, policy, 0) != nil {
			t.Errorf("history is read for %+v", policy)
		}
	}
	exec(t, m, `INSERT INTO jobs (id, tenant, name, class, priority, preemptible, state, grace_ms, lost_after_ms, actor, finished_at, ran_ms)
		VALUES (gen_random_uuid(), 'default', 'x', 'c', 500, true, 'succeeded', 0, 0, 'test', now(), 5000)`)
	id := queued(t, m)
	if err := m.load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if j, ok := m.snapshot.Job(id); !ok || j.Expected != 0 {
		t.Errorf("job %+v", j)
	}
}
