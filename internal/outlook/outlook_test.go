package outlook_test

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/db/dbtest"
	"berth/internal/outlook"
	"berth/placement"
)

func open(t testing.TB) *db.DB {
	t.Helper()
	d, err := db.Open(context.Background(), dbtest.URL(t), db.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	exec(t, d, `INSERT INTO machines (id, state, cpu_m, mem_mb, disk_mb) VALUES ('m0', 'ready', 4000, 65536, 1000)`)
	return d
}

func exec(t testing.TB, d *db.DB, sql string, args ...any) {
	t.Helper()
	if _, err := d.Pool().Exec(context.Background(), sql, args...); err != nil {
		t.Fatalf("%v\n%s", err, sql)
	}
}

// queued submits a job that wants so many cores and queues it.
func queued(t testing.TB, d *db.DB, tenant berth.TenantID, cores int) berth.JobID {
	t.Helper()
	spec := berth.JobSpec{Name: "x", Image: "busybox"}
	cpus := berth.MilliCPU(1000 * cores)
	spec.Resources.CPUs = &cpus
	job, _, err := d.Submit(context.Background(), db.Submission{Tenant: tenant, Spec: spec.WithDefaults(), Actor: "user:test"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Load(context.Background(), job.ID); err != nil {
		t.Fatal(err)
	}
	return job.ID
}

func why(t testing.TB, d *db.DB, o *outlook.Outlook, id berth.JobID) placement.JobExplanation {
	t.Helper()
	row, request, err := d.QueueRow(context.Background(), "", id)
	if err != nil {
		t.Fatal(err)
	}
	w, ok, err := o.Why(context.Background(), row, request)
	if err != nil || !ok {
		t.Fatalf("it waits: %v, %v", ok, err)
	}
	return w
}

func TestAnAnswerKnowsWhatWasWrittenBeforeTheQuestion(t *testing.T) {
	t.Parallel()
	d := open(t)
	o := outlook.New(d, placement.Policy{})
	id := queued(t, d, "default", 8)
	if w := why(t, d, o, id); w.Fit.Machines != 1 || len(w.Fit.Lacking) != 1 || w.StartsNow {
		t.Errorf("too large: %+v", w)
	}
	exec(t, d, `INSERT INTO machines (id, state, cpu_m, mem_mb, disk_mb) VALUES ('m1', 'ready', 16000, 65536, 1000)`)
	if w := why(t, d, o, id); !w.StartsNow || len(w.Blockers) != 0 {
		t.Errorf("with a machine for it: %+v", w)
	}
	exec(t, d, `UPDATE jobs SET held = true, version = version + 1 WHERE id = $1`, id)
	if w := why(t, d, o, id); len(w.Blockers) != 1 || w.Blockers[0].Code != "held" || !w.Start.IsZero() {
		t.Errorf("on hold: %+v", w)
	}
}

func TestAPlanLeavesNoTrace(t *testing.T) {
	t.Parallel()
	d := open(t)
	o := outlook.New(d, placement.Policy{Backfill: 1})
	id := queued(t, d, "default", 3)
	want := why(t, d, o, id)
	spec := berth.JobSpec{Name: "x", Image: "busybox"}.WithDefaults()
	for n := range 3 {
		r := spec.Request()
		r.CPUMilli = int64(n+2) * 1000
		w, err := o.WhyNew(t.Context(), placement.Job{ID: berth.NewJobID(time.Now()), Tenant: "default", Class: r.Class(), Priority: 500}, r)
		if err != nil || w.StartsNow || w.Fit.FitNow != 1 && r.CPUMilli <= 4000 {
			t.Errorf("a new job beside it: %+v, %v", w, err)
		}
	}
	if got := why(t, d, o, id); got.Position != want.Position || got.StartsNow != want.StartsNow || got.Queue != want.Queue {
		t.Errorf("after plans %+v, before %+v", got, want)
	}
}

// A user is told how many jobs are to make room, and which of them are of the
// own tenant.
func TestJobsOfOtherTenantsAreNotNamed(t *testing.T) {
	t.Parallel()
	d := open(t)
	exec(t, d, `INSERT INTO machine_leases (machine_id, epoch, until) VALUES ('m0', 1, now() + interval '1 hour')`)
	exec(t, d, `INSERT INTO tenants (id) VALUES ('a'), ('b')`)
	policy := placement.Policy{Preempt: true}
	theirs, ours := queued(t, d, "b", 2), queued(t, d, "a", 2)
	term, ok, err := d.OpenLease(db.LeaseLeader, "test").Acquire(t.Context(), time.Hour)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	var starts []berth.Start
	for _, id := range []berth.JobID{theirs, ours} {
		starts = append(starts, berth.Start{Job: id, Version: 2, Attempt: 1, Ranks: []berth.Grant{{Machine: "m0", Epoch: 1, Capacity: berth.Capacity{CPUMilli: 2000, MemoryMiB: 2048}}}})
	}
	if c, err := d.CommitStarts(t.Context(), term, starts); err != nil || len(c.Started) != 2 {
		t.Fatalf("%+v, %v", c, err)
	}
	exec(t, d, `UPDATE allocations SET state = 'active', phase = 'running', claimed_at = now(), started_at = now()`)
	exec(t, d, `UPDATE attempts SET started_at = now()`)
	exec(t, d, `UPDATE jobs SET state = 'running', version = version + 1`)
	high := queued(t, d, "a", 4)
	exec(t, d, `UPDATE jobs SET priority = 900, version = version + 1 WHERE id = $1`, high)
	o := outlook.New(d, policy)
	p := db.Preemption{For: high}
	for _, id := range []berth.JobID{theirs, ours} {
		p.Victims = append(p.Victims, db.Victim{Job: id, Version: 4, Attempt: 1, Why: "x"})
		p.Earmarks = append(p.Earmarks, db.Earmark{Beneficiary: high, Machine: "m0", Capacity: berth.Capacity{CPUMilli: 2000, MemoryMiB: 1024}, Victim: id})
	}
	if refused, err := d.CommitPreemption(t.Context(), term, p); err != nil || refused != "" {
		t.Fatal(refused, err)
	}
	for _, b := range why(t, d, o, high).Blockers {
		if b.Code == "stopping" {
			if len(b.Jobs) != 1 || b.Jobs[0] != ours {
				t.Errorf("names %v, want %s alone", b.Jobs, ours)
			}
			return
		}
	}
	t.Errorf("nothing is said of those that stop: %+v", why(t, d, o, high).Blockers)
}

// BenchmarkWhy asks about jobs of a queue of 20,000, eight at a time.
func BenchmarkWhy(b *testing.B) {
	d := open(b)
	exec(b, d, `INSERT INTO machines (id, state, cpu_m, mem_mb, disk_mb) SELECT 'n' || n, 'ready', 1000, 65536, 1000 FROM generate_series(1, 1000) n`)
	const classes, each = 20, 1000
	var ids []berth.JobID
	for c := range classes {
		id := queued(b, d, "default", 2+c)
		exec(b, d, `INSERT INTO jobs (id, tenant, name, class, priority, preemptible, run_limit_ms, grace_ms, mode, lost_after_ms, labels, actor, idem_hash, state)
			SELECT gen_random_uuid(), tenant, name, class, priority, preemptible, run_limit_ms, grace_ms, mode, lost_after_ms, labels, actor, idem_hash, 'queued'
			FROM jobs, generate_series(1, `+strconv.Itoa(each)+`) WHERE id = $1`, id)
		ids = append(ids, id)
	}
	o := outlook.New(d, placement.Policy{Backfill: 8})
	why(b, d, o, ids[0])
	var next int
	var mu sync.Mutex
	b.SetParallelism(8)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			mu.Lock()
			id := ids[next%len(ids)]
			next++
			mu.Unlock()
			why(b, d, o, id)
		}
	})
}
