package placement_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"berth"
	"berth/placement"
	"berth/spec"
	"berth/wire"
)

// overviewOf returns the short reasons of all waiting jobs, by job.
func overviewOf(s *placement.Snapshot, p placement.Planner, at time.Time,
	classes int) map[berth.JobID]placement.Waiting {
	all := map[berth.JobID]placement.Waiting{}
	for _, w := range p.Forecast(s, at).Overview(classes) {
		all[w.Job] = w
	}
	return all
}

func overviewCluster() *placement.Snapshot {
	s := placement.NewSnapshot()
	s.UpsertMachine(placement.Machine{ID: "m1", Epoch: 1, State: berth.MachineReady, Pool: "a",
		Total: berth.Capacity{CPUMilli: 4000, MemoryMiB: 4096}, Used: berth.Capacity{CPUMilli: 3500}})
	s.DefineClass("two", spec.Request{CPUMilli: 2000, MemoryMiB: 100, Members: 1})
	s.DefineClass("half", spec.Request{CPUMilli: 500, MemoryMiB: 100, Members: 1})
	s.DefineClass("large", spec.Request{CPUMilli: 64000, MemoryMiB: 100, Members: 1})
	s.DefineClass("gang", spec.Request{CPUMilli: 500, MemoryMiB: 100, Members: 3})
	return s
}

func TestAnOverviewHasTheFirstReasonOfEachJobInAFewWords(t *testing.T) {
	t.Parallel()
	s := overviewCluster()
	s.UpsertTenant(placement.Tenant{ID: "vision", MaxRunning: 1})
	s.UpsertRunning(placement.Running{Job: "busy", Tenant: "vision", Class: "half", StartedAt: epoch,
		Ranks: []berth.Grant{{Machine: "m1", Epoch: 1, Capacity: berth.Capacity{CPUMilli: 500, MemoryMiB: 100}}}})
	job := func(id, class string, n int, change func(*placement.Job)) {
		j := placement.Job{ID: berth.JobID(id), Tenant: "default", Class: class, Priority: 500,
			SubmittedAt: epoch.Add(time.Duration(n) * time.Second), EligibleAt: epoch}
		if change != nil {
			change(&j)
		}
		s.UpsertJob(j)
	}
	job("first", "two", 1, nil)
	job("second", "two", 2, nil)
	job("third", "two", 3, nil)
	job("large", "large", 4, nil)
	job("held", "two", 5, func(j *placement.Job) { j.Held = true })
	job("backoff", "two", 6, func(j *placement.Job) { j.EligibleAt = epoch.Add(time.Minute) })
	job("quota", "two", 7, func(j *placement.Job) { j.Tenant = "vision" })
	job("crew", "gang", 8, nil)
	later := epoch.Add(10 * time.Second)
	got := overviewOf(s, placement.Planner{}, later, 100)
	for id, want := range map[berth.JobID]string{
		"first":   "1 no_room: no room: needs 2 CPUs, most free 0.5 (m1)",
		"second":  "3 no_room: waiting behind 2 jobs; no room: needs 2 CPUs, most free 0.5 (m1)",
		"third":   "4 no_room: waiting behind 3 jobs; no room: needs 2 CPUs, most free 0.5 (m1)",
		"large":   "5 unsatisfiable: cpus: 64 requested, but the largest machine has 4",
		"held":    "0 held: on hold",
		"backoff": "0 not_eligible: retrying at " + epoch.Add(time.Minute).Format("15:04:05Z") + " (backoff)",
		"quota":   "2 max_running: quota of vision: 1 of 1 running",
		"crew":    "6 no_room: waiting behind 5 jobs; no room: 1 of 3 members have room now",
	} {
		w := got[id]
		if text := fmt.Sprintf("%d %s: %s", w.Position, w.Code, w.Text); text != want {
			t.Errorf("%s: %s\nwant %s", id, text, want)
		}
	}
	if w := got["first"]; len(w.Pools) != 1 || w.Pools[0] != "a" || w.Share != 0 {
		t.Errorf("pools and share: %+v", w)
	}
	if w := got["quota"]; w.Share != 0.125 {
		t.Errorf("share of vision: %g, want 0.125", w.Share)
	}
}

// The reason names the machines that accept no jobs, with the operator's reason.
func TestAnOverviewNamesDrainingMachines(t *testing.T) {
	t.Parallel()
	s := overviewCluster()
	s.UpsertMachine(placement.Machine{ID: "m1", Epoch: 1, State: berth.MachineDraining, Reason: "new disk",
		Total: berth.Capacity{CPUMilli: 4000, MemoryMiB: 4096}})
	s.UpsertJob(placement.Job{ID: "j", Class: "two", SubmittedAt: epoch, EligibleAt: epoch})
	if w := overviewOf(s, placement.Planner{}, epoch, 100)["j"]; w.Text != "m1 draining (new disk)" {
		t.Errorf("%+v", w)
	}
	s.UpsertMachine(placement.Machine{ID: "m2", Epoch: 1, State: berth.MachineLost,
		Total: berth.Capacity{CPUMilli: 4000, MemoryMiB: 4096}})
	if w := overviewOf(s, placement.Planner{}, epoch,
		100)["j"]; w.Text != "m1 draining (new disk) and 1 more not ready" {
		t.Errorf("%+v", w)
	}
	s.UpsertMachine(placement.Machine{ID: "m3", Epoch: 1, State: berth.MachineReady,
		Total: berth.Capacity{CPUMilli: 4000, MemoryMiB: 4096}, Used: berth.Capacity{CPUMilli: 4000}})
	if w := overviewOf(s, placement.Planner{}, epoch, 100)["j"]; w.Text != "no room: needs 2 CPUs, none free" {
		t.Errorf("%+v", w)
	}
}

// No start is known for a job whose only possible machine accepts no jobs, whatever is free elsewhere. The
// reasons name this machine, and not the conditions that the other machines fail.
func TestNoStartIsKnownWhileTheOnlyPossibleMachineIsDrained(t *testing.T) {
	t.Parallel()
	for name, request := range map[string]spec.Request{
		"avoids the other": {CPUMilli: 500, MemoryMiB: 100, Members: 1, Avoid: []berth.MachineID{"m1"}},
		"a gang":           {CPUMilli: 500, MemoryMiB: 100, Members: 2, Avoid: []berth.MachineID{"m1"}},
		"label":            {CPUMilli: 500, MemoryMiB: 100, Members: 1, Labels: map[string]string{"disk": "ssd"}},
		"size":             {CPUMilli: 8000, MemoryMiB: 100, Members: 1},
	} {
		s := placement.NewSnapshot()
		s.UpsertMachine(placement.Machine{ID: "m1", Epoch: 1, State: berth.MachineReady,
			Total: berth.Capacity{CPUMilli: 4000, MemoryMiB: 4096}})
		s.UpsertMachine(placement.Machine{ID: "m2", Epoch: 1, State: wire.MachineDrained, Reason: "new disk",
			Labels: map[string]string{"disk": "ssd"}, Total: berth.Capacity{CPUMilli: 16000, MemoryMiB: 4096}})
		s.DefineClass("half", spec.Request{CPUMilli: 500, Members: 1})
		s.UpsertRunning(placement.Running{Job: "on-m1", Class: "half", StartedAt: epoch, TimeLimit: time.Hour,
			Ranks: []berth.Grant{{Machine: "m1", Epoch: 1, Capacity: berth.Capacity{CPUMilli: 500}}}})
		s.DefineClass("c", request)
		s.UpsertJob(placement.Job{ID: "j", Class: "c", SubmittedAt: epoch, EligibleAt: epoch})
		for _, p := range []placement.Planner{{}, {Policy: placement.Policy{Backfill: 4}}} {
			if w := overviewOf(s, p, epoch, 100)["j"]; !w.Start.IsZero() || w.Text != "m2 drained (new disk)" {
				t.Errorf("%s: start %s, %s", name, w.Start, w.Text)
			}
			w, _ := p.Why(s, "j", epoch)
			const text = "no machine that could run the job is ready (m2 is drained: new disk)"
			const hint = "no machine that could run it accepts jobs now; ask an operator to undrain one"
			if b := w.Blockers; !w.Start.IsZero() || len(b) != 1 || b[0].Code != "no_room" || b[0].Text != text ||
				b[0].Change != hint || !slices.Equal(b[0].Machines, []berth.MachineID{"m2"}) {
				t.Errorf("%s: start %s, %+v", name, w.Start, b)
			}
		}
	}
}

// A summary names the machines that accept no jobs, up to three, next to the other conditions.
func TestASummaryNamesMachinesThatAreNotReady(t *testing.T) {
	t.Parallel()
	s := overviewCluster()
	s.UpsertJob(placement.Job{ID: "j", Class: "two", SubmittedAt: epoch, EligibleAt: epoch})
	for i, want := range []string{
		"1 is not ready (m2 is draining: new disk)",
		"2 are not ready (m2 is draining: new disk; m3 is lost)",
		"3 are not ready (m2 is draining: new disk; m3 is lost; m4 is lost)",
		"4 are not ready (m2 is draining: new disk; m3 is lost; m4 is lost; and 1 more)",
	} {
		m := placement.Machine{ID: berth.MachineID(fmt.Sprint("m", i+2)), Epoch: 1, State: berth.MachineLost,
			Total: berth.Capacity{CPUMilli: 4000, MemoryMiB: 4096}}
		if i == 0 {
			m.State, m.Reason = berth.MachineDraining, "new disk"
		}
		s.UpsertMachine(m)
		want = fmt.Sprintf("no ready machine has 2 CPUs free (most: 0.5 on m1); of %d machines, %s", i+2, want)
		if w, _ := (placement.Planner{}).Why(s, "j", epoch); w.Fit.Summary != want || w.Fit.Closed != nil {
			t.Errorf("%q %v, want %q", w.Fit.Summary, w.Fit.Closed, want)
		}
	}
}

// Free capacity in parts that are too small is no start: neither behind jobs without a known end, nor before
// the next known end.
func TestScatteredCapacityIsNoStart(t *testing.T) {
	t.Parallel()
	for limit, want := range map[time.Duration]time.Time{0: {}, time.Hour: epoch.Add(time.Hour)} {
		s := overviewCluster() // m1 has half a CPU free
		s.UpsertMachine(placement.Machine{ID: "m2", Epoch: 1, State: berth.MachineReady, Pool: "a",
			Total: berth.Capacity{CPUMilli: 4000, MemoryMiB: 4096}, Used: berth.Capacity{CPUMilli: 2500}})
		for m, milli := range map[berth.MachineID]int64{"m1": 3500, "m2": 2500} {
			s.DefineClass(string(m), spec.Request{CPUMilli: milli, Members: 1})
			s.UpsertRunning(placement.Running{Job: berth.JobID("on-" + m), Class: string(m), StartedAt: epoch,
				TimeLimit: limit, Ranks: []berth.Grant{{Machine: m, Epoch: 1, Capacity: berth.Capacity{CPUMilli: milli}}}})
		}
		s.UpsertJob(placement.Job{ID: "j", Class: "two", SubmittedAt: epoch, EligibleAt: epoch})
		if w := overviewOf(s, placement.Planner{}, epoch, 100)["j"]; !w.Start.Equal(want) {
			t.Errorf("limit %s: start %s, want %s", limit, w.Start, want)
		}
	}
}

// Overview and Why agree on the first reason, on position and start, for every job.
func TestAnOverviewAgreesWithExplanations(t *testing.T) {
	t.Parallel()
	s := overviewCluster()
	for n := range 40 {
		s.UpsertJob(placement.Job{ID: berth.JobID(fmt.Sprintf("j%02d", n)),
			Tenant: berth.TenantID(fmt.Sprint("t", n%3)),
			Class:  []string{"two", "half", "large", "gang"}[n%4], Priority: 100 * (n % 7),
			SubmittedAt: epoch.Add(time.Duration(n) * time.Second),
			EligibleAt:  epoch.Add(time.Duration(n%5-3) * time.Minute), Held: n%11 == 0})
	}
	p := placement.Planner{Policy: placement.Policy{Order: placement.Fair, BandWidth: 100, Backfill: 2}}
	f := p.Forecast(s, epoch.Add(time.Minute))
	list := f.Overview(100)
	if len(list) != 40 {
		t.Fatalf("%d jobs", len(list))
	}
	seen := 0
	for i, w := range list {
		why, ok := f.Why(w.Job)
		code := ""
		if len(why.Blockers) > 0 {
			code = why.Blockers[0].Code
		}
		if !ok || why.Position != w.Position || code != w.Code || w.Position > 0 && !why.Start.Equal(w.Start) {
			t.Errorf("overview %+v, explanation %+v", w, why)
		}
		if w.Position > 0 {
			if seen++; w.Position != seen {
				t.Errorf("row %d has position %d", i, w.Position)
			}
		}
	}
	if seen == 0 || seen == 40 {
		t.Errorf("%d of 40 jobs are in the queue", seen)
	}
}

// Beyond the limit of classes a job's reason does not mention machines.
func TestAnOverviewComparesTheFirstClassesOnly(t *testing.T) {
	t.Parallel()
	s := overviewCluster()
	for n, class := range []string{"two", "gang", "large"} {
		s.UpsertJob(placement.Job{ID: berth.JobID(class), Class: class,
			SubmittedAt: epoch.Add(time.Duration(n) * time.Second), EligibleAt: epoch})
	}
	got := overviewOf(s, placement.Planner{}, epoch.Add(time.Minute), 1)
	if w := got["two"]; w.Code != "no_room" {
		t.Errorf("%+v", w)
	}
	if w := got["large"]; w.Code != "behind" || w.Text != "waiting behind 2 jobs" || w.Pools != nil {
		t.Errorf("%+v", w)
	}
	if w := got["gang"]; w.Code != "behind" || !slices.Equal(w.Pools, []string{"a"}) {
		t.Errorf("%+v", w)
	}
}

// An explanation of another job does not take the place of the first job in the overview.
func TestExplanationsDoNotUseUpTheClassesOfAnOverview(t *testing.T) {
	t.Parallel()
	s := overviewCluster()
	for n, class := range []string{"two", "gang", "large"} {
		s.UpsertJob(placement.Job{ID: berth.JobID(class), Class: class,
			SubmittedAt: epoch.Add(time.Duration(n) * time.Second), EligibleAt: epoch})
	}
	f := placement.Planner{}.Forecast(s, epoch.Add(time.Minute))
	for _, id := range []berth.JobID{"gang", "large"} {
		if _, ok := f.Why(id); !ok {
			t.Fatalf("no explanation of %s", id)
		}
	}
	if w := f.Overview(1)[0]; w.Job != "two" || w.Code != "no_room" {
		t.Errorf("the first row is %+v", w)
	}
}

// BenchmarkOverview summarizes 10,000 waiting jobs of 20 classes on 1,000 machines; the
// forecast is made outside of the timer.
func BenchmarkOverview(b *testing.B) {
	s := placement.NewSnapshot()
	for n := range 1000 {
		s.UpsertMachine(placement.Machine{ID: berth.MachineID(fmt.Sprint("m", n)), Epoch: 1, State: berth.MachineReady,
			Total: berth.Capacity{CPUMilli: 1000, MemoryMiB: 65536}})
	}
	for c := range 20 {
		s.DefineClass(fmt.Sprint(c), spec.Request{CPUMilli: int64(2000 + c), MemoryMiB: 100, Members: 1})
	}
	for n := range 10_000 {
		s.UpsertJob(placement.Job{ID: berth.JobID(fmt.Sprintf("j%05d", n)), Tenant: "default",
			Class:    fmt.Sprint(n % 20),
			Priority: 500, SubmittedAt: epoch, EligibleAt: epoch})
	}
	p := placement.Planner{Policy: placement.Policy{Order: placement.Fair, BandWidth: 100, Backfill: 8}}
	for b.Loop() {
		b.StopTimer()
		f := p.Forecast(s, epoch.Add(time.Minute))
		b.StartTimer()
		f.Overview(1000)
	}
}
