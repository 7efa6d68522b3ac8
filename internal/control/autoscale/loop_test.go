package autoscale_test

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"berth"
	"berth/activities/control"
	"berth/db"
	"berth/db/dbtest"
	"berth/internal/control/autoscale"
	"berth/internal/control/cloud"
	"berth/internal/control/cloud/faultcloud"
	"berth/internal/lib/sealer"
	"berth/placement"
	"berth/spec"
	"berth/wire"
)

// world is a database with a policy, a provider whose calls are counted, and a mirror in memory. Its time is
// the time of the database plus ahead.
type world struct {
	t     *testing.T
	db    *db.DB
	cloud *shop
	loop  *autoscale.Loop
	steps *control.MachineSteps
	term  db.Term
	facts *autoscale.Facts
	shows *autoscale.Metrics
	ahead time.Duration
}

// shop is a provider without room for anything while it is sold out.
type shop struct {
	*faultcloud.Cloud
	world *world
	out   bool
	kind  cloud.Kind             // of the refusals; "": Capacity
	scope string                 // of the refusals
	calls map[string][]time.Time // of Create, by offering
}

func (s *shop) Create(ctx context.Context, l cloud.Launch) (cloud.Instance, error) {
	s.calls[l.Offering.String()] = append(s.calls[l.Offering.String()], time.Now().Add(s.world.ahead))
	if s.out {
		kind := cmp.Or(s.kind, cloud.Capacity)
		return cloud.Instance{}, &cloud.Error{Kind: kind, Scope: s.scope, Err: fmt.Errorf("sold out")}
	}
	return s.Cloud.Create(ctx, l)
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, db: dbtest.DB(t, db.Options{}), facts: full(), shows: autoscale.NewMetrics()}
	w.cloud = &shop{Cloud: faultcloud.New(filepath.Join(t.TempDir(), "cloud"), time.Now), world: w, calls: map[string][]time.Time{}}
	w.facts.Tenants = []placement.Tenant{{ID: "default", Weight: 1}}
	accounts := cloud.Accounts{URL: "http://berth.test", Providers: map[string]cloud.Account{"lab": {Provider: w.cloud, Regions: []string{"here"}}}}
	keys := filepath.Join(t.TempDir(), "keys")
	if err := sealer.Make(keys); err != nil {
		t.Fatal(err)
	}
	vault, err := sealer.Load(keys)
	if err != nil {
		t.Fatal(err)
	}
	w.steps = control.NewMachines(control.MachineDeps{Launches: w.db.Launches, Machines: w.db.Machines, Sealer: vault, Accounts: accounts, Sent: w.shows.Sent})
	w.loop = autoscale.New(autoscale.Options{DB: w.db, Accounts: accounts, Policy: placement.Policy{Order: placement.FIFO}, Metrics: w.shows,
		Logger: slog.New(slog.DiscardHandler)})
	var ok bool
	if w.term, ok, err = w.db.Leader.OpenLease(db.LeaseLeader, "test").Acquire(t.Context(), time.Hour); err != nil || !ok {
		t.Fatal(ok, err)
	}
	if err := w.db.Burst.Set(t.Context(), "default", spec.Burst{Allow: []string{"lab/here"}, Idle: spec.Duration(time.Minute),
		When: &spec.BurstWhen{PlannedWaitOver: spec.Duration(time.Hour)}}, "user:test"); err != nil {
		t.Fatal(err)
	}
	return w
}

// sells replaces the offers.
func (w *world) sells(list ...db.OfferRow) {
	w.t.Helper()
	offers := make([]cloud.Offer, len(list))
	for i, o := range list {
		offers[i] = o.Offer
	}
	if err := w.db.Offers.Replace(w.t.Context(), "lab", offers, "user:test"); err != nil {
		w.t.Fatal(err)
	}
}

// mirror returns a copy of the mirror. Times of jobs are relative to the present.
func (w *world) mirror(context.Context, map[berth.TenantID]bool) (autoscale.Mirror, error) {
	m := w.facts.Mirror
	m.At = time.Now()
	m.Waiting, m.Running = slices.Clone(m.Waiting), slices.Clone(m.Running)
	for i := range m.Waiting {
		m.Waiting[i].SubmittedAt = m.At.Add(-time.Minute + time.Duration(i)*time.Millisecond)
		m.Waiting[i].EligibleAt = m.Waiting[i].SubmittedAt
	}
	for i := range m.Running {
		m.Running[i].StartedAt = m.At.Add(-time.Hour)
	}
	return m, nil
}

// pass makes a pass of the loop, and the next step of each launch.
func (w *world) pass() {
	w.t.Helper()
	if err := w.loop.Pass(autoscale.InTerm(w.t.Context(), w.loop, w.term, w.mirror)); err != nil {
		w.t.Fatal(err)
	}
	for _, l := range w.launches() {
		if _, err := w.steps.Step(w.t.Context(), wire.MachineInput{Machine: l.Machine}); err != nil {
			w.t.Fatal(err)
		}
	}
}

// launches returns the launches that are not settled.
func (w *world) launches() []wire.Launch {
	w.t.Helper()
	list, _, err := w.db.Launches.List(w.t.Context(), db.LaunchFilter{}, db.Paging{Limit: 100})
	if err != nil {
		w.t.Fatal(err)
	}
	return list
}

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	if _, err := w.db.Pool().Exec(w.t.Context(), sql, args...); err != nil {
		w.t.Fatal(err)
	}
}

// later lets time pass for the breakers.
func (w *world) later(d time.Duration) {
	w.t.Helper()
	w.ahead += d
	w.exec(`UPDATE breakers SET until = until - $1::interval, probe_at = probe_at - $1::interval`, d)
}

// join lets the machines of running instances join, and start the waiting jobs that have room there.
func (w *world) join(cpus int) {
	w.t.Helper()
	for _, l := range w.launches() {
		if l.State != string(cloud.LaunchRunning) {
			continue
		}
		w.exec(`INSERT INTO machines (id, state, cpu_m, mem_mb, disk_mb) VALUES ($1, 'ready', $2, 1 << 20, 1 << 20)`, l.Machine, 1000*cpus)
		w.exec(`UPDATE launches SET joined_at = now() WHERE machine = $1`, l.Machine)
		if _, err := w.steps.Step(w.t.Context(), wire.MachineInput{Machine: l.Machine}); err != nil {
			w.t.Fatal(err)
		}
		taken := min(cpus, len(w.facts.Waiting))
		w.facts.Waiting = w.facts.Waiting[taken:]
		total := berth.Capacity{CPUMilli: int64(1000 * cpus), MemoryMiB: 1 << 20, DiskMiB: 1 << 20}
		w.facts.Machines = append(w.facts.Machines, placement.Machine{ID: l.Machine, Epoch: 1, State: berth.MachineReady, Pool: l.Pool,
			Total: total, Used: berth.Capacity{CPUMilli: int64(1000 * taken)}})
	}
}

// small adds waiting jobs of one CPU, which the machine on premises has no room for.
func (w *world) small(n int) {
	r := spec.Request{CPUMilli: 1000, Execution: spec.AtLeastOnce}
	w.facts.Classes[r.Class()] = r
	for range n {
		w.facts.Waiting = append(w.facts.Waiting, placement.Job{ID: berth.NewJobID(time.Now()), Tenant: "default", Class: r.Class(), Version: 1,
			Remaining: time.Hour})
	}
}

// For 90 minutes nothing is to be had. Each offering is tried once in each of its windows, which double.
func TestAStockOutIsTriedOnceAnOfferingAndWindow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const cpus = 100
	kinds := []db.OfferRow{offered("large", 8), offered("larger", 9), offered("largest", 10)}
	for i := range kinds {
		kinds[i].CPUs, kinds[i].GPUs = cpus, 0
	}
	w.sells(kinds...)
	w.small(500)
	w.cloud.out = true
	for began := time.Now(); w.ahead+time.Since(began) < 90*time.Minute; { // the passes take time, too
		w.pass()
		w.later(30 * time.Second)
	}
	for _, o := range kinds {
		calls := w.cloud.calls[o.String()]
		window := 3 * time.Minute
		for i := 1; i < len(calls); i++ {
			if gap := calls[i].Sub(calls[i-1]); gap < window || gap > 2*window {
				t.Errorf("call %d of %s is %s after the one before, in a window of %s", i, o.String(), gap, window)
			}
			window = min(2*window, time.Hour)
		}
		if len(calls) != 5 { // at 0, 3, 9, 21 and 45 minutes
			t.Errorf("%d calls of %s: %v", len(calls), o.String(), calls)
		}
	}
	notes, err := w.db.Scaling.Notes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range notes {
		if n.Code != "closed" || n.Until == nil {
			t.Fatalf("note %+v: want the end of the window", n)
		}
	}
	if n := len(w.launches()); n != 0 || len(notes) != 500 {
		t.Errorf("%d launches are open, %d jobs have notes", n, len(notes))
	}
	w.cloud.out = false
	for rounds := 0; len(w.facts.Waiting) > 0; rounds++ {
		if rounds > 300 {
			t.Fatalf("%d jobs still wait", len(w.facts.Waiting))
		}
		w.pass()
		w.join(cpus)
		w.later(30 * time.Second)
	}
	if n := len(w.launches()); n != 5 {
		t.Errorf("%d machines for 500 jobs: %d are enough", n, 5)
	}
	w.pass()
	if notes, err := w.db.Scaling.Notes(t.Context()); err != nil || len(notes) != 0 {
		t.Errorf("%d notes without a waiting job, %v", len(notes), err)
	}
}

func TestALoopLaunchesDrainsAndTerminates(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.sells(offered("big", 8))
	job := berth.NewJobID(time.Now())
	wait(w.facts, string(job), "default", 1)
	w.pass()
	list := w.launches()
	if len(list) != 1 || list[0].State != string(cloud.LaunchRunning) || !strings.HasPrefix(string(list[0].Machine), "default-") {
		t.Fatalf("launches %+v", list)
	}
	shown, err := w.db.Scaling.ShowNotes(t.Context(), []berth.JobID{job})
	if err != nil || shown[job].Code != "launched" || len(shown[job].Launches) != 1 {
		t.Errorf("%+v, %v", shown, err)
	}
	w.pass() // the machine boots for the job
	if n := len(w.launches()); n != 1 {
		t.Fatalf("%d launches for one job", n)
	}
	w.facts.Waiting = nil // it starts on premises
	w.join(gpus)
	m := &w.facts.Machines[1]
	w.pass()
	w.exec(`UPDATE launches SET empty_since = now() - interval '2 minutes'`)
	w.pass()
	if state := w.machine(m.ID); state != berth.MachineDraining {
		t.Fatalf("the empty machine is %s", state)
	}
	m.State = berth.MachineDraining
	w.exec(`UPDATE machines SET state_at = now() + interval '1 hour'`) // however long the pass takes, IdlingFor is not over
	w.pass()
	if l := w.launches()[0]; l.StopAt != nil {
		t.Fatalf("launch %+v ends at once", l)
	}
	w.exec(`UPDATE machines SET state_at = now() - $1::interval`, autoscale.IdlingFor)
	w.pass()
	m.State = berth.MachineRetired
	w.pass()
	if l := w.launches()[0]; l.StopAt == nil || l.State != string(cloud.LaunchTerminating) {
		t.Errorf("launch %+v", l)
	}
	r := prometheus.NewRegistry()
	r.MustRegister(w.shows)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			values[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	for name, want := range map[string]float64{"berth_cloud_decisions_total launch": 1, "berth_cloud_decisions_total drain": 1,
		"berth_cloud_decisions_total stop": 1, "berth_cloud_decisions_total undrain": 0, "berth_cloud_launches draining": 1,
		"berth_cloud_launch_delay_seconds": 1, "berth_cloud_breakers_open offering": 0} {
		if got, ok := values[name]; !ok || got != want {
			t.Errorf("metric %s is %v, want %v", name, got, want)
		}
	}
}

func (w *world) machine(id berth.MachineID) (state berth.MachineState) {
	w.t.Helper()
	if err := w.db.Pool().QueryRow(w.t.Context(), `SELECT state FROM machines WHERE id = $1`, id).Scan(&state); err != nil {
		w.t.Fatal(err)
	}
	return state
}

func TestALoopEndsWithItsTerm(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.sells(offered("big", 8))
	wait(w.facts, string(berth.NewJobID(time.Now())), "default", 1)
	w.exec(`UPDATE leases SET holder = 'other', epoch = epoch + 1 WHERE name = 'leader'`)
	if err := w.loop.Run(t.Context(), w.term, w.mirror); berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("run: %v", err)
	}
	if n := len(w.launches()); n != 0 {
		t.Errorf("%d launches of a deposed leader", n)
	}
}

// Names of machines and ids of requests differ between terms.
func TestNamesAreNeverGivenTwice(t *testing.T) {
	t.Parallel()
	seen := map[berth.MachineID]bool{}
	for _, pool := range []string{"a", strings.Repeat("long", 15)} {
		for epoch := range 3 {
			for i := range 3 {
				m := autoscale.MachineName(pool, fmt.Sprintf("scaler/%d/1", epoch), i)
				if _, err := berth.ParseMachineID(string(m)); err != nil || seen[m] {
					t.Errorf("name %s: %v, seen %v", m, err, seen[m])
				}
				seen[m] = true
			}
		}
	}
}

// Two launches are requested at once, and the cloud refuses the first: the second makes no call.
func TestALaunchFromBeforeARefusalIsNotSent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.sells(offered("big", 8))
	w.cloud.out = true
	wait(w.facts, string(berth.NewJobID(time.Now())), "default", 2)
	w.pass()
	o := offered("big", 8)
	if calls := w.cloud.calls[o.String()]; len(calls) != 1 {
		t.Errorf("%d calls for a gang of two, whose first machine was refused", len(calls))
	}
	if list, _, err := w.db.Launches.List(t.Context(), db.LaunchFilter{Settled: true}, db.Paging{}); err != nil || len(list) != 2 ||
		list[0].State != string(cloud.LaunchFailed) || list[1].State != string(cloud.LaunchFailed) {
		t.Errorf("launches %+v, %v", list, err)
	}
}
