package placement_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"berth"
	"berth/placement"
	"berth/spec"
)

// windowOn is a window of a machine with a lead of an hour and a length of two hours.
func windowOn(m berth.MachineID, closes time.Duration) placement.Window {
	return placement.Window{ID: 1, Machine: m, Closes: epoch.Add(closes), Lead: epoch.Add(closes - time.Hour), Ends: epoch.Add(closes + 2*time.Hour)}
}

// oneMachine returns a snapshot with machine m, which holds one job, and a window of it.
func oneMachine(closes time.Duration) (*placement.Snapshot, spec.Request) {
	s := placement.NewSnapshot()
	s.UpsertMachine(placement.Machine{ID: "m", Epoch: 1, State: berth.MachineReady, Total: berth.Capacity{CPUMilli: 1000}})
	placement.SetWindows(s, []placement.Window{windowOn("m", closes)})
	r := spec.Request{CPUMilli: 1000, Members: 1}
	s.DefineClass(r.Class(), r)
	return s, r
}

func TestJobsEndBeforeAWindowOrStartBeforeItsLead(t *testing.T) {
	t.Parallel()
	const h = time.Hour
	for _, x := range []struct {
		closes, limit time.Duration
		starts        bool
	}{
		{10 * h, 9 * h, true},
		{10 * h, 10 * h, true},
		{10 * h, 10*h + 1, false},
		{10 * h, 0, true}, // until the lead
		{h + 1, 0, true},
		{h, 0, false},
		{h, h, true},
		{h / 2, h / 3, true},
		{h / 2, h, false},
		{0, h, false},
		{0, 0, false},
	} {
		s, r := oneMachine(x.closes)
		s.UpsertJob(placement.Job{ID: "job", Class: r.Class(), SubmittedAt: epoch, EligibleAt: epoch, TimeLimit: x.limit})
		if got := len(starts(s)) == 1; got != x.starts {
			t.Errorf("a window in %s, and a job with limit %s: started %v", x.closes, x.limit, got)
		}
	}
}

// A job that would run into a window keeps no other job of its class from the machine.
func TestALongJobClosesItsClassToNone(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]time.Duration{"a shorter job": time.Hour, "a job without a limit": 0} {
		for _, p := range []placement.Planner{{}, {Policy: placement.Policy{Backfill: 2, Preempt: true}, Explain: true}} {
			s, r := oneMachine(10 * time.Hour)
			for i, l := range []time.Duration{20 * time.Hour, 30 * time.Hour, limit} {
				s.UpsertJob(placement.Job{ID: berth.JobID(fmt.Sprint(i)), Class: r.Class(), TimeLimit: l,
					SubmittedAt: epoch.Add(time.Duration(i)), EligibleAt: epoch})
			}
			plan := p.Plan(s, epoch.Add(time.Minute))
			if len(plan.Start) != 1 || plan.Start[0].Job != "2" {
				t.Errorf("%s behind jobs that are too long: starts %+v", name, plan.Start)
			}
		}
	}
}

// A reserved start lies before or after a window, not in it.
func TestReservedStartsAvoidWindows(t *testing.T) {
	t.Parallel()
	const h = time.Hour
	for _, x := range []struct{ limit, lead, start time.Duration }{
		{4 * h, h, h},       // from 1 h to 5 h, at which the machine closes
		{4*h + 1, h, 7 * h}, // only after the window
		{0, h, h},
		{0, 5 * h, 7 * h}, // inside the lead
	} {
		s := placement.NewSnapshot()
		total := berth.Capacity{CPUMilli: 1000}
		for _, id := range []berth.MachineID{"m0", "m1"} {
			s.UpsertMachine(placement.Machine{ID: id, Epoch: 1, State: berth.MachineReady, Total: total, Used: total})
			s.UpsertRunning(placement.Running{Job: "on-" + berth.JobID(id), Ranks: []berth.Grant{{Machine: id, Epoch: 1, Capacity: total}},
				StartedAt: epoch, TimeLimit: h})
		}
		w := windowOn("m0", 5*h)
		w.Lead = w.Closes.Add(-x.lead)
		placement.SetWindows(s, []placement.Window{w})
		r := spec.Request{CPUMilli: 1000, Members: 2}
		s.DefineClass(r.Class(), r)
		s.UpsertJob(placement.Job{ID: "gang", Class: r.Class(), SubmittedAt: epoch, EligibleAt: epoch, TimeLimit: x.limit})
		plan := placement.Planner{Policy: placement.Policy{Backfill: 1}, Estimate: true}.Plan(s, epoch)
		want := []placement.Estimate{{Job: "gang", Position: 1, Start: epoch.Add(x.start), Reserved: true}}
		if diff := cmp.Diff(want, plan.Estimates); diff != "" {
			t.Errorf("a gang with limit %s, lead %s: %s", x.limit, x.lead, diff)
		}
	}
}

// A job that would run into the window stops no other job for capacity that it cannot use.
func TestNobodyIsPreemptedForAWindow(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		closes, limit time.Duration
		stops         int
	}{
		{10 * time.Hour, time.Hour, 1}, {10 * time.Hour, 20 * time.Hour, 0}, {10 * time.Hour, 0, 1}, {time.Hour, time.Minute, 0},
	} {
		s, r := oneMachine(x.closes)
		total := berth.Capacity{CPUMilli: 1000}
		s.UpsertMachine(placement.Machine{ID: "m", Epoch: 1, State: berth.MachineReady, Total: total, Used: total})
		s.UpsertRunning(placement.Running{Job: "low", Class: r.Class(), Preemptible: true, StartedAt: epoch.Add(-time.Hour),
			Ranks: []berth.Grant{{Machine: "m", Epoch: 1, Capacity: total}}})
		s.UpsertJob(placement.Job{ID: "high", Class: r.Class(), Priority: 1000, SubmittedAt: epoch, EligibleAt: epoch, TimeLimit: x.limit})
		plan := placement.Planner{Policy: placement.Policy{Order: placement.Priority, Preempt: true, Backfill: 1}}.Plan(s, epoch)
		if len(plan.Preempt) != x.stops {
			t.Errorf("a window in %s, and a job with limit %s: preempts %+v", x.closes, x.limit, plan.Preempt)
		}
	}
}

// A job without a time limit starts up to NominationFor after its victims were asked to stop. It stops no
// job on a machine whose lead begins earlier.
func TestVictimsStopInTimeForTheLead(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		lead    time.Duration
		members int
		stops   int
	}{{10 * time.Minute, 1, 1}, {10*time.Minute - 1, 1, 0}, {10 * time.Minute, 2, 2}, {10*time.Minute - 1, 2, 0}} {
		s := placement.NewSnapshot()
		total := berth.Capacity{CPUMilli: 1000}
		r := spec.Request{CPUMilli: 1000, Members: x.members}
		one := spec.Request{CPUMilli: 1000, Members: 1}
		s.DefineClass(r.Class(), r)
		s.DefineClass(one.Class(), one)
		var windows []placement.Window
		for _, m := range []berth.MachineID{"m0", "m1"}[:x.members] {
			s.UpsertMachine(placement.Machine{ID: m, Epoch: 1, State: berth.MachineReady, Total: total, Used: total})
			s.UpsertRunning(placement.Running{Job: "on-" + berth.JobID(m), Class: one.Class(), Preemptible: true, StartedAt: epoch.Add(-time.Hour),
				Ranks: []berth.Grant{{Machine: m, Epoch: 1, Capacity: total}}})
			windows = append(windows, windowOn(m, time.Hour+x.lead))
		}
		placement.SetWindows(s, windows)
		s.UpsertJob(placement.Job{ID: "high", Class: r.Class(), Priority: 1000, SubmittedAt: epoch, EligibleAt: epoch})
		policy := placement.Policy{Order: placement.Priority, Preempt: true, NominationFor: 10 * time.Minute}
		if plan := (placement.Planner{Policy: policy}).Plan(s, epoch); len(plan.Preempt) != x.stops {
			t.Errorf("with %d members and a lead in %s: preempts %+v", x.members, x.lead, plan.Preempt)
		}
	}
}

// drawWindows returns windows of some machines of the arena, near and far.
func drawWindows(t *rapid.T, a *arena) (list []placement.Window) {
	for id := range a.machines {
		for range rapid.IntRange(0, 2).Draw(t, "windows") {
			closes := a.now.Add(time.Duration(rapid.IntRange(-1, 60).Draw(t, "closes")) * time.Minute)
			w := placement.Window{ID: int64(len(list)), Machine: id, Closes: closes,
				Lead: closes.Add(-time.Duration(rapid.IntRange(0, 20).Draw(t, "lead")) * time.Minute)}
			if rapid.Bool().Draw(t, "undrain") {
				w.Ends = closes.Add(time.Duration(rapid.IntRange(1, 30).Draw(t, "length")) * time.Minute)
			}
			list = append(list, w)
		}
	}
	slices.SortFunc(list, func(x, y placement.Window) int {
		if c := strings.Compare(string(x.Machine), string(y.Machine)); c != 0 {
			return c
		}
		return x.Closes.Compare(y.Closes)
	})
	return list
}

// No job starts on a machine if it may run into the machine's next window. Where nothing is kept for
// other jobs, each job that fits on a machine outside of its windows starts.
func TestNoStartCrossesAWindow(t *testing.T) {
	t.Parallel()
	for name, policy := range map[string]placement.Policy{
		"plain":   {},
		"reserve": {Backfill: 2},
		"preempt": {Order: placement.Priority, Backfill: 2, Preempt: true, NominationFor: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) {
				a := newArena(t, placement.Planner{Policy: policy, Pack: placement.Pack(rapid.IntRange(0, 1).Draw(t, "pack"))})
				for range rapid.IntRange(1, 4).Draw(t, "machines") {
					a.machine(rapid.IntRange(1, 4).Draw(t, "gpus"))
				}
				t.Repeat(map[string]func(*rapid.T){
					"job": func(t *rapid.T) {
						r := gpuRequest(rapid.IntRange(1, 2).Draw(t, "gpus"), rapid.SampledFrom([]int{1, 1, 2}).Draw(t, "members"))
						limit := time.Duration(rapid.IntRange(0, 40).Draw(t, "limit")) * time.Minute
						a.job(r, placement.Job{TimeLimit: limit, Priority: 1000 * rapid.IntRange(0, 1).Draw(t, "priority"),
							Preemptible: true}, time.Duration(rapid.IntRange(1, 40).Draw(t, "lasts"))*time.Minute)
					},
					"windows": func(t *rapid.T) {
						a.windows = drawWindows(t, a)
						placement.SetWindows(a.s, a.windows)
					},
					"time": func(*rapid.T) { a.now = a.now.Add(time.Minute) },
					"": func(t *rapid.T) {
						jobs := map[berth.JobID]placement.Job{}
						for id, j := range a.jobs {
							jobs[id] = j
						}
						p := a.plan()
						for _, start := range p.Start {
							for _, g := range start.Ranks {
								if !a.clear(g.Machine, jobs[start.Job]) {
									t.Fatalf("job %+v starts on %s at %s, windows %+v", jobs[start.Job], g.Machine, a.now, a.windows)
								}
							}
						}
						if name == "plain" {
							a.leavesNone(t)
						}
					},
				})
			})
		})
	}
}

// clear reports whether a job that starts now keeps clear of the windows of a machine.
func (a *arena) clear(m berth.MachineID, j placement.Job) bool {
	i := slices.IndexFunc(a.windows, func(w placement.Window) bool { return w.Machine == m })
	if i < 0 {
		return true
	}
	w := a.windows[i]
	if j.TimeLimit > 0 {
		return !a.now.Add(j.TimeLimit).After(w.Closes)
	}
	return a.now.Before(w.Lead)
}

// leavesNone checks that no waiting single job fits on a machine outside of its windows.
func (a *arena) leavesNone(t *rapid.T) {
	for _, id := range sorted(a.jobs) {
		j := a.jobs[id]
		r := a.requests[j.Class]
		if r.Members > 1 || j.EligibleAt.After(a.now) {
			continue
		}
		for _, m := range sorted(a.machines) {
			free := int64(len(a.machines[m].GPUs)) - a.machines[m].Used.GPUMilli/1000
			if free >= int64(r.GPUs) && a.clear(m, j) {
				t.Fatalf("job %+v waits, although %s has %d GPUs free at %s, windows %+v", j, m, free, a.now, a.windows)
			}
		}
	}
}

// The reason names the machine and the time at which it closes.
func TestAWindowIsNamedAsTheReason(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		closes, limit time.Duration
		text          string
	}{
		{10 * time.Hour, 20 * time.Hour, "m is reserved for maintenance from 2026-01-01T10:00:00Z: this job may run until 2026-01-01T20:00:00Z"},
		{time.Hour / 2, 0, "m is reserved for maintenance from 2026-01-01T00:30:00Z: this job has no time_limit, and such jobs start no " +
			"later than 1h before"},
		{10 * time.Hour, time.Hour, ""},
	} {
		s, r := oneMachine(x.closes)
		s.UpsertJob(placement.Job{ID: "job", Class: r.Class(), SubmittedAt: epoch, EligibleAt: epoch, TimeLimit: x.limit})
		w, ok := placement.Planner{}.Why(s, "job", epoch)
		if !ok {
			t.Fatal("the job is not known")
		}
		got := ""
		for _, b := range w.Blockers {
			if b.Code == "maintenance" {
				got = b.Text
			}
		}
		if got != x.text {
			t.Errorf("a window in %s, and a job with limit %s: %q, want %q", x.closes, x.limit, got, x.text)
		}
		near := slices.ContainsFunc(w.Fit.Clauses, func(c placement.Clause) bool { return c.Name == "maintenance" })
		if near != (x.closes < time.Hour) {
			t.Errorf("a window in %s: clauses %+v", x.closes, w.Fit.Clauses)
		}
	}
}
