package explain_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/db"
	"berth/db/dbtest"
	"berth/internal/control/explain"
	"berth/placement"
	"berth/spec"
)

func open(t testing.TB) *db.DB {
	t.Helper()
	d := dbtest.DB(t, db.Options{})
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
	jobSpec := spec.Job{Name: "x", Image: "busybox"}
	cpus := spec.MilliCPU(1000 * cores)
	jobSpec.Resources.CPUs = &cpus
	job, _, err := d.Jobs.Submit(context.Background(), db.Submission{Tenant: tenant, Spec: jobSpec.WithDefaults(), Actor: "user:test"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Jobs.Load(context.Background(), job.ID); err != nil {
		t.Fatal(err)
	}
	return job.ID
}

func why(t testing.TB, d *db.DB, o *explain.Explainer, id berth.JobID) placement.JobExplanation {
	t.Helper()
	row, request, err := d.Queue.Row(context.Background(), "", id)
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
	o := explain.New(d, placement.Policy{}, nil)
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

// Where no machine accepts jobs, waiting, asking for less or adding machines is not the advice.
func TestTheHintNamesAnUndrainOrACheckOfClosedMachines(t *testing.T) {
	t.Parallel()
	d := open(t)
	o := explain.New(d, placement.Policy{}, nil)
	id := queued(t, d, "default", 3)
	for state, hint := range map[string]string{
		"draining": "no machine accepts jobs now; ask an operator to undrain one",
		"suspect":  "no machine accepts jobs now; ask an operator to check them",
	} {
		exec(t, d, `UPDATE machines SET state = $1`, state)
		w := why(t, d, o, id)
		if len(w.Blockers) != 1 || w.Blockers[0].Code != "no_room" || w.Blockers[0].Change != hint {
			t.Errorf("%s: the blockers are %+v, want the hint %q", state, w.Blockers, hint)
		}
	}
}

func TestAPlanLeavesNoTrace(t *testing.T) {
	t.Parallel()
	d := open(t)
	o := explain.New(d, placement.Policy{Backfill: 1}, nil)
	id := queued(t, d, "default", 3)
	want := why(t, d, o, id)
	jobSpec := spec.Job{Name: "x", Image: "busybox"}.WithDefaults()
	for n := range 3 {
		r := jobSpec.Request()
		r.CPUMilli = int64(n+2) * 1000
		w, err := o.WhyNew(t.Context(), placement.Job{ID: berth.NewJobID(time.Now()), Tenant: "default", Class: r.Class(), Priority: 500}, jobSpec.Name, r)
		if err != nil || w.StartsNow || w.Fit.FitNow != 1 && r.CPUMilli <= 4000 {
			t.Errorf("a new job beside it: %+v, %v", w, err)
		}
	}
	if got := why(t, d, o, id); got.Position != want.Position || got.StartsNow != want.StartsNow || got.Queue != want.Queue {
		t.Errorf("after plans %+v, before %+v", got, want)
	}
}

// A user sees the number of jobs to be preempted, and the names of the ones of the
// own tenant.
func TestJobsOfOtherTenantsAreNotNamed(t *testing.T) {
	t.Parallel()
	d := open(t)
	exec(t, d, `INSERT INTO machine_leases (machine_id, epoch, until) VALUES ('m0', 1, now() + interval '1 hour')`)
	exec(t, d, `INSERT INTO tenants (id) VALUES ('a'), ('b')`)
	policy := placement.Policy{Preempt: true}
	theirs, ours := queued(t, d, "b", 2), queued(t, d, "a", 2)
	term, ok, err := d.Leader.OpenLease(db.LeaseLeader, "test").Acquire(t.Context(), time.Hour)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	var starts []berth.Start
	for _, id := range []berth.JobID{theirs, ours} {
		starts = append(starts, berth.Start{Job: id, Version: 2, Attempt: 1, Ranks: []berth.Grant{{Machine: "m0", Epoch: 1, Capacity: berth.Capacity{CPUMilli: 2000, MemoryMiB: 2048}}}})
	}
	if c, err := d.Queue.CommitStarts(t.Context(), term, starts); err != nil || len(c.Started) != 2 {
		t.Fatalf("%+v, %v", c, err)
	}
	exec(t, d, `UPDATE allocations SET state = 'active', phase = 'running', claimed_at = now(), started_at = now()`)
	exec(t, d, `UPDATE attempts SET started_at = now()`)
	exec(t, d, `UPDATE jobs SET state = 'running', version = version + 1`)
	high := queued(t, d, "a", 4)
	exec(t, d, `UPDATE jobs SET priority = 900, version = version + 1 WHERE id = $1`, high)
	o := explain.New(d, policy, nil)
	p := db.Preemption{For: high}
	for _, id := range []berth.JobID{theirs, ours} {
		p.Victims = append(p.Victims, db.Victim{Job: id, Version: 4, Attempt: 1, Why: "x"})
		p.Nominations = append(p.Nominations, db.Nomination{Beneficiary: high, Machine: "m0", Capacity: berth.Capacity{CPUMilli: 2000, MemoryMiB: 1024}, Victim: id})
	}
	if refused, err := d.Queue.CommitPreemption(t.Context(), term, p); err != nil || refused != "" {
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

// planNew plans a job of so many cores.
func planNew(ctx context.Context, o *explain.Explainer, cores int64) (explain.Prospect, error) {
	jobSpec := spec.Job{Name: "x", Image: "busybox"}.WithDefaults()
	r := jobSpec.Request()
	r.CPUMilli = cores * 1000
	return o.WhyNew(ctx, placement.Job{ID: berth.NewJobID(time.Now()), Tenant: "default", Class: r.Class(), Priority: 500}, jobSpec.Name, r)
}

// lockedQueue locks the table of jobs until the returned function is called.
func lockedQueue(t *testing.T, d *db.DB) (unlock func()) {
	t.Helper()
	conn, err := pgx.ConnectConfig(context.Background(), d.Pool().Config().ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), `BEGIN; LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	return func() { _ = conn.Close(context.Background()) }
}

// A plan is answered while the rows cannot be read, from a reading of a moment ago.
func TestAPlanDoesNotWaitForARecentReadingToBeRenewed(t *testing.T) {
	t.Parallel()
	d := open(t)
	o := explain.New(d, placement.Policy{}, nil)
	plans := func() error {
		o.Forget()
		began := time.Now()
		if _, err := planNew(t.Context(), o, 1); err != nil {
			t.Fatal(err)
		}
		defer lockedQueue(t, d)()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		for cores := int64(2); time.Since(began) < explain.PlanRest*3/4; cores++ { // the renewal began
			if p, err := planNew(ctx, o, 2+cores%20); err != nil || p.Fit.Machines != 1 {
				return fmt.Errorf("a plan of %d cores, %s after the reading began: %+v, %w", cores, time.Since(began), p, err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		return nil
	}
	// On a machine that stands still for long, one reading may become too old.
	if err := plans(); err != nil && plans() != nil {
		t.Error(err)
	}
}

// A reading that no question waits for ends with its owner, although the rows cannot be read.
func TestCloseAwaitsTheReadingThatNoQuestionWaitsFor(t *testing.T) {
	t.Parallel()
	d := open(t)
	o := explain.New(d, placement.Policy{}, nil)
	if _, err := planNew(t.Context(), o, 1); err != nil {
		t.Fatal(err)
	}
	defer lockedQueue(t, d)()
	for cores := int64(2); !o.Renews(); cores++ {
		if _, err := planNew(t.Context(), o, 2+cores%20); err != nil {
			t.Fatal(err)
		}
	}
	o.Close()
	if o.Renews() {
		t.Error("a reading is under way after Close")
	}
}

func TestAPlanKnowsWhatWasWrittenAMomentAgo(t *testing.T) {
	t.Parallel()
	d := open(t)
	o := explain.New(d, placement.Policy{}, nil)
	p, err := planNew(t.Context(), o, 8)
	if err != nil || p.StartsNow || p.CostPerHour != 0 || p.Admission.Paused {
		t.Fatalf("%+v, %v", p, err)
	}
	exec(t, d, `INSERT INTO pools (id, provider, hourly_cost) VALUES ('dear', 'static', 2.5)`)
	exec(t, d, `INSERT INTO machines (id, state, pool, cpu_m, mem_mb, disk_mb) VALUES ('m1', 'ready', 'dear', 16000, 65536, 1000)`)
	for began := time.Now(); !p.StartsNow; time.Sleep(10 * time.Millisecond) {
		asked := time.Now()
		if p, err = planNew(t.Context(), o, 8); err != nil {
			t.Fatal(err)
		}
		if !p.StartsNow && asked.Sub(began) > explain.PlanRest {
			t.Fatalf("a plan %s later does not know the machine: %+v", asked.Sub(began), p)
		}
	}
	if p.CostPerHour != 2.5 {
		t.Errorf("it costs %g an hour", p.CostPerHour)
	}
	exec(t, d, `INSERT INTO machines (id, state, cpu_m, mem_mb, disk_mb) VALUES ('m2', 'ready', 64000, 65536, 1000)`)
	if _, err := d.Cluster.SetAdmission(t.Context(), true, "", "operator:test"); err != nil {
		t.Fatal(err)
	}
	o.Forget() // as after a change by this process
	if p, err := planNew(t.Context(), o, 32); err != nil || !p.StartsNow || !p.Admission.Paused {
		t.Errorf("after a change that was made here: %+v, %v", p, err)
	}
}

// A reading that fails leaves the answers as they were, and the next one brings all.
func TestAFailedReadingLosesNothing(t *testing.T) {
	t.Parallel()
	d := open(t)
	o := explain.New(d, placement.Policy{}, nil)
	id := queued(t, d, "default", 8)
	if w := why(t, d, o, id); w.StartsNow {
		t.Fatalf("%+v", w)
	}
	exec(t, d, `UPDATE jobs SET held = true, version = version + 1 WHERE id = $1`, id)
	exec(t, d, `INSERT INTO machines (id, state, cpu_m, mem_mb, disk_mb) VALUES ('m1', 'ready', 16000, 65536, 1000)`)
	exec(t, d, `ALTER TABLE nominations RENAME TO hidden`)
	o.Forget()
	if _, err := planNew(t.Context(), o, 1); err == nil {
		t.Error("without one of the tables there is an answer")
	}
	exec(t, d, `ALTER TABLE hidden RENAME TO nominations`)
	if w := why(t, d, o, id); w.Fit.Machines != 2 || len(w.Blockers) != 1 || w.Blockers[0].Code != "held" {
		t.Errorf("after that: %+v", w)
	}
}

// Questions and plans of many callers at once read and plan side by side.
func TestQuestionsAndPlansRunSideBySide(t *testing.T) {
	t.Parallel()
	d := open(t)
	o := explain.New(d, placement.Policy{Backfill: 1}, nil)
	ids := []berth.JobID{queued(t, d, "default", 8), queued(t, d, "default", 2)}
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for n := range 20 {
				if i%2 == 0 {
					why(t, d, o, ids[n%2])
				} else if _, err := planNew(t.Context(), o, int64(1+n)); err != nil {
					t.Error(err)
				}
				if i == 1 {
					o.Forget()
				}
			}
		})
	}
	all.Wait()
}

// In order srsf an answer contains a job's expected run time, and its source.
func TestAnAnswerTellsWhatAJobIsExpectedToRun(t *testing.T) {
	t.Parallel()
	d := open(t)
	o := explain.New(d, placement.Policy{Order: placement.SRSF, Exponent: 1}, nil)
	id := queued(t, d, "default", 8)
	expected := func(w placement.JobExplanation) string {
		for _, x := range w.Terms {
			if x.Name == "expected" {
				return x.Value + ": " + x.Text
			}
		}
		return ""
	}
	ended := func(tenant string, seconds int) {
		exec(t, d, `INSERT INTO jobs (id, tenant, name, class, priority, preemptible, state, grace_ms, lost_after_ms, actor, finished_at, ran_ms)
			VALUES (gen_random_uuid(), $1, 'x', 'c', 500, true, 'succeeded', 0, 0, 'test', now(), 1000 * $2::int)`, tenant, seconds)
	}
	plan := func(name string, limit time.Duration) string {
		t.Helper()
		r := spec.Job{Name: name, Image: "busybox"}.WithDefaults().Request()
		w, err := o.WhyNew(t.Context(), placement.Job{ID: berth.NewJobID(time.Now()), Tenant: "default", Class: r.Class(), Priority: 500, TimeLimit: limit}, name, r)
		if err != nil {
			t.Fatal(err)
		}
		return expected(w.JobExplanation)
	}
	const unknown = "unknown: expected run time unknown (no time_limit, and no similar job has succeeded recently)"
	if got := expected(why(t, d, o, id)); got != unknown {
		t.Errorf("without a history: %s", got)
	}
	ended("other", 7200)
	ended("default", 60)
	ended("default", 120)
	ended("default", 600)
	const median = "2m: expected run time 2m, the median of the latest 3 jobs of this name"
	if got := expected(why(t, d, o, id)); got != median {
		t.Errorf("with one: %s", got)
	}
	if got := plan("x", 0); got != median {
		t.Errorf("a plan: %s", got)
	}
	if got := plan("y", 0); got != unknown {
		t.Errorf("a plan of another name: %s", got)
	}
	if got := plan("x", time.Hour); got != "1h: time_limit with stop_grace is 1h" {
		t.Errorf("a plan with a limit: %s", got)
	}
	exec(t, d, `UPDATE jobs SET ran_ms = 90000, version = version + 1 WHERE id = $1`, id)
	if got := expected(why(t, d, o, id)); got != median+"; it has run 1m30s" {
		t.Errorf("of one that has run: %s", got)
	}
	exec(t, d, `UPDATE jobs SET ran_ms = 900000, version = version + 1 WHERE id = $1`, id)
	if got := expected(why(t, d, o, id)); got != "unknown: expected run time 2m, the median of the latest 3 jobs of this name; it has run longer" {
		t.Errorf("of one that has run longer: %s", got)
	}
}

// A tenant sees the machines that hold its job's data, and the machine that the job
// would get because of it. A job with other data is a separate question.
func TestAnAnswerTellsWhereTheDataIs(t *testing.T) {
	t.Parallel()
	d := open(t)
	exec(t, d, `INSERT INTO machines (id, state, cpu_m, mem_mb, disk_mb) VALUES ('m1', 'ready', 4000, 65536, 1000), ('m2', 'ready', 1000, 65536, 1000)`)
	exec(t, d, `INSERT INTO machine_caches (machine_id, keys, mib) VALUES ('m1', '{7,8}', '{4096,16}'), ('m2', '{7}', '{4096}'), ('gone', '{7}', '{9999}')`)
	o := explain.New(d, placement.Policy{}, nil)
	r := spec.Job{Name: "x", Image: "busybox"}.WithDefaults().Request()
	r.CPUMilli = 2000
	ask := func(keys ...spec.DataKey) []placement.MachineData {
		t.Helper()
		w, err := o.WhyNew(t.Context(), placement.Job{ID: berth.NewJobID(time.Now()), Tenant: "default", Class: r.Class(), Priority: 500, Data: keys}, "x", r)
		if err != nil || !w.StartsNow {
			t.Fatalf("%+v, %v", w, err)
		}
		return w.Data
	}
	if got := ask(); got != nil {
		t.Errorf("of a job without data is told %+v", got)
	}
	want := []placement.MachineData{{Machine: "m1", MiB: 4112, Chosen: true}, {Machine: "m2", MiB: 4096}}
	if got := ask(7, 8, 9); !slices.Equal(got, want) {
		t.Errorf("told is %+v, want %+v", got, want)
	}
	if got := ask(9); len(got) != 0 {
		t.Errorf("of what nobody holds is told %+v", got)
	}
}

// An image counts as data for the tenant whose jobs have used it on that machine.
func TestAnAnswerTellsWhereTheImageIs(t *testing.T) {
	t.Parallel()
	d := open(t)
	if err := d.Tenants.Create(t.Context(), spec.NewTenant{ID: "blue"}); err != nil {
		t.Fatal(err)
	}
	exec(t, d, `INSERT INTO machines (id, state, cpu_m, mem_mb, disk_mb) VALUES ('m1', 'ready', 4000, 65536, 1000), ('m2', 'ready', 4000, 65536, 1000)`)
	exec(t, d, `INSERT INTO machine_caches (machine_id, keys, mib) VALUES ('m2', ARRAY[$1::bigint], '{8192}')`, int64(spec.ImageKey("default", "busybox")))
	o := explain.New(d, placement.Policy{}, nil)
	want := []placement.MachineData{{Machine: "m2", MiB: 8192, Chosen: true}}
	if got := why(t, d, o, queued(t, d, "default", 1)).Data; !slices.Equal(got, want) {
		t.Errorf("told is %+v, want %+v", got, want)
	}
	if got := why(t, d, o, queued(t, d, "blue", 1)).Data; len(got) != 0 {
		t.Errorf("another tenant is told %+v", got)
	}
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
	o := explain.New(d, placement.Policy{Backfill: 8}, nil)
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

// Jobs without a time limit get an estimate from jobs of their name that have ended.
func TestEstimatesComeFromJobsThatHaveEnded(t *testing.T) {
	t.Parallel()
	d := open(t)
	exec(t, d, `INSERT INTO machine_leases (machine_id, epoch, until) VALUES ('m0', 1, now() + interval '1 hour')`)
	term, ok, err := d.Leader.OpenLease(db.LeaseLeader, "test").Acquire(t.Context(), time.Hour)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	running := queued(t, d, "default", 4)
	start := berth.Start{Job: running, Version: 2, Attempt: 1, Ranks: []berth.Grant{{Machine: "m0", Epoch: 1, Capacity: berth.Capacity{CPUMilli: 4000, MemoryMiB: 2048}}}}
	if c, err := d.Queue.CommitStarts(t.Context(), term, []berth.Start{start}); err != nil || len(c.Started) != 1 {
		t.Fatalf("%+v, %v", c, err)
	}
	exec(t, d, `UPDATE allocations SET state = 'active', phase = 'running', claimed_at = now(), started_at = now()`)
	exec(t, d, `UPDATE attempts SET started_at = now()`)
	exec(t, d, `UPDATE jobs SET state = 'running', version = version + 1 WHERE id = $1`, running)
	waiting := queued(t, d, "default", 4)
	o := explain.New(d, placement.Policy{}, nil)
	if w := why(t, d, o, waiting); !w.Start.IsZero() || w.Guess || w.Run.Samples != 0 {
		t.Errorf("without ended jobs: start %s, guess %t, %d run times", w.Start, w.Guess, w.Run.Samples)
	}
	for _, minutes := range []int{50, 60, 70} {
		id := queued(t, d, "default", 1)
		exec(t, d, `UPDATE jobs SET state = 'canceled', finished_at = now(), ran_ms = $2, version = version + 1 WHERE id = $1`, id, minutes*60_000)
	}
	w := why(t, d, o, waiting)
	// The history without jobs is used again for a second.
	for end := time.Now().Add(30 * time.Second); w.Run.Samples < 3 && time.Now().Before(end); w = why(t, d, o, waiting) {
		time.Sleep(50 * time.Millisecond)
	}
	if left := time.Until(w.Start); left < 45*time.Minute || left > 75*time.Minute || !w.Guess {
		t.Errorf("it starts in %s, guess %t", left, w.Guess)
	}
	if w.Run.Quantile(0.5) != time.Hour || w.Run.Quantile(0.9) != 70*time.Minute || w.Run.Samples != 3 || w.Run.Level.String() != "name" {
		t.Errorf("it runs %s, %s, from %d %s", w.Run.Quantile(0.5), w.Run.Quantile(0.9), w.Run.Samples, w.Run.Level)
	}
	jobSpec := spec.Job{Name: "x", Image: "busybox"}.WithDefaults()
	r := jobSpec.Request()
	p, err := o.WhyNew(t.Context(), placement.Job{ID: berth.NewJobID(time.Now()), Tenant: "default", Class: r.Class(), Priority: 500}, "x", r)
	if err != nil || p.Run.Samples != 3 {
		t.Errorf("a plan knows %d run times, %v", p.Run.Samples, err)
	}
}

// An answer knows the rules of pools, and names the pool that does not take the job's tenant.
func TestAnAnswerNamesThePoolOfOtherTenants(t *testing.T) {
	t.Parallel()
	d := open(t)
	o := explain.New(d, placement.Policy{}, nil)
	exec(t, d, `INSERT INTO tenants (id) VALUES ('vision')`)
	id := queued(t, d, "default", 1)
	if w := why(t, d, o, id); !w.StartsNow {
		t.Fatalf("without rules: %+v", w)
	}
	if err := d.Pools.Set(t.Context(), "default", spec.PoolRules{Tenants: []berth.TenantID{"vision"}}, "operator:test"); err != nil {
		t.Fatal(err)
	}
	w := why(t, d, o, id)
	const reason = "pool default takes tenant vision only"
	if w.StartsNow || !strings.Contains(w.Fit.Summary, reason) ||
		!slices.ContainsFunc(w.Blockers, func(b placement.Blocker) bool { return strings.Contains(b.Text, reason) }) {
		t.Errorf("with a rule: %+v", w)
	}
}
