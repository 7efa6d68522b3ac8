package placement_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"berth"
	"berth/placement"
	"berth/spec"
)

// wards is a cluster with machines of two models, for jobs with alternatives.
type wards struct {
	t       interface{ Fatalf(string, ...any) }
	s       *placement.Snapshot
	planner placement.Planner
	jobs    []placement.Job
}

func newWards(t interface{ Fatalf(string, ...any) }) *wards {
	return &wards{t: t, s: placement.NewSnapshot()}
}

// machine adds or changes a machine of a model, with some of its GPUs in use.
func (w *wards) machine(id, model string, gpus, used int) {
	m := placement.Machine{ID: berth.MachineID(id), Epoch: 1, State: berth.MachineReady,
		Total: berth.Capacity{CPUMilli: 64000, MemoryMiB: 64000, GPUMilli: int64(gpus) * 1000},
		Used:  berth.Capacity{CPUMilli: int64(used) * 1000, MemoryMiB: int64(used) * 1000, GPUMilli: int64(used) * 1000}}
	for i := range gpus {
		d := placement.Device{Index: i, Model: model, MemoryMiB: 80 << 10, Healthy: true}
		if i < used {
			d.UsedMilli = 1000
		}
		m.GPUs = append(m.GPUs, d)
	}
	w.s.UpsertMachine(m)
}

// class defines the class of a request for GPUs of a model.
func (w *wards) class(model string, gpus, members int) string {
	r := spec.Request{CPUMilli: int64(gpus) * 1000, MemoryMiB: int64(gpus) * 1000, GPUs: gpus, GPUMilli: 1000, GPUTypes: []string{model},
		Members: members, Execution: spec.AtLeastOnce}
	w.s.DefineClass(r.Class(), r)
	return r.Class()
}

// job adds a waiting job. The first choice is open, and each other one opens at its time.
func (w *wards) job(id string, in int, choices ...placement.Alternative) placement.Job {
	j := placement.Job{ID: berth.JobID(id), Tenant: "default", Class: choices[in].Class, Version: 1, Priority: 500,
		SubmittedAt: epoch.Add(time.Duration(len(w.jobs)) * time.Millisecond), EligibleAt: epoch, InForce: in}
	if len(choices) > 1 {
		j.Alternatives = choices
	}
	w.jobs = append(w.jobs, j)
	w.s.UpsertJob(j)
	return j
}

// starts lists the planned starts as "job alternative machine...".
func (w *wards) starts(after time.Duration) (list []string) {
	for _, s := range w.planner.Plan(w.s, epoch.Add(after)).Start {
		text := fmt.Sprintf("%s %d", s.Job, s.Alternative)
		for _, g := range s.Ranks {
			text += " " + string(g.Machine)
		}
		list = append(list, text)
	}
	return list
}

// wants checks the starts of a plan at a time.
func (w *wards) wants(t *testing.T, after time.Duration, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, w.starts(after)); diff != "" {
		t.Errorf("after %s (-want +got):\n%s", after, diff)
	}
}

func choice(class string, after time.Duration) placement.Alternative {
	a := placement.Alternative{Class: class}
	if after > 0 {
		a.Opens = epoch.Add(after)
	}
	return a
}

func TestAnAlternativeIsTakenAfterItsWaitAndOnlyWithoutRoomForAnEarlierOne(t *testing.T) {
	t.Parallel()
	w := newWards(t)
	w.machine("h1", "H100", 8, 1)
	w.machine("a1", "A100", 8, 0)
	w.machine("l1", "L40S", 8, 0)
	w.job("j", 0, choice(w.class("H100", 8, 1), 0), choice(w.class("A100", 8, 1), 10*time.Minute), choice(w.class("L40S", 8, 1), time.Hour))
	w.wants(t, 10*time.Minute-time.Second)
	w.wants(t, 10*time.Minute, "j 1 a1")
	w.machine("a1", "A100", 8, 8)
	w.wants(t, 59*time.Minute)
	w.wants(t, time.Hour, "j 2 l1")
	w.machine("a1", "A100", 8, 0)
	w.wants(t, time.Hour, "j 1 a1")
	w.machine("h1", "H100", 8, 0)
	w.wants(t, time.Hour, "j 0 h1")
}

func TestAnAlternativeComesAtTheJobsTurnBeforeYoungerJobs(t *testing.T) {
	t.Parallel()
	w := newWards(t)
	w.machine("h1", "H100", 8, 8)
	w.machine("a1", "A100", 8, 0)
	a100 := w.class("A100", 8, 1)
	w.job("old", 0, choice(w.class("H100", 8, 1), 0), choice(a100, time.Minute))
	w.job("young", 0, choice(a100, 0))
	w.wants(t, 0, "young 0 a1")
	w.wants(t, time.Minute, "old 1 a1")
}

func TestAJobThatRanOnAnAlternativeMayTakeItAgainAtOnce(t *testing.T) {
	t.Parallel()
	w := newWards(t)
	w.machine("h1", "H100", 8, 8)
	w.machine("a1", "A100", 8, 0)
	w.machine("l1", "L40S", 8, 0)
	w.job("j", 1, choice(w.class("H100", 8, 1), 0), choice(w.class("A100", 8, 1), 10*time.Minute), choice(w.class("L40S", 8, 1), time.Hour))
	w.wants(t, 0, "j 1 a1")
	w.machine("a1", "A100", 8, 1)
	w.wants(t, time.Minute)
	w.machine("h1", "H100", 8, 0)
	w.wants(t, time.Minute, "j 0 h1")
}

func TestAllMembersOfAGangGetTheSameAlternative(t *testing.T) {
	t.Parallel()
	w := newWards(t)
	w.machine("h1", "H100", 8, 0)
	w.machine("h2", "H100", 8, 1)
	w.machine("a1", "A100", 8, 0)
	w.job("gang", 0, choice(w.class("H100", 8, 2), 0), choice(w.class("A100", 8, 2), time.Minute))
	w.wants(t, time.Hour)
	w.machine("a2", "A100", 8, 0)
	w.wants(t, time.Hour, "gang 1 a1 a2")
}

func TestAQuotaSkipsTheAlternativesBeyondIt(t *testing.T) {
	t.Parallel()
	w := newWards(t)
	w.s.UpsertTenant(placement.Tenant{ID: "default", Limit: berth.Capacity{GPUMilli: 8000}})
	w.machine("h1", "H100", 8, 8)
	w.machine("a1", "A100", 16, 0)
	w.machine("l1", "L40S", 8, 0)
	w.job("j", 0, choice(w.class("H100", 8, 1), 0), choice(w.class("A100", 16, 1), 0), choice(w.class("L40S", 4, 1), 0))
	w.wants(t, 0, "j 2 l1")
	// A start is charged with the hardware that the job gets: 4 of 8 GPUs, so another 4 are left.
	w.job("k", 0, choice(w.class("A100", 4, 1), 0))
	w.wants(t, 0, "j 2 l1", "k 0 a1")
	w.job("m", 0, choice(w.class("A100", 1, 1), 0))
	w.wants(t, 0, "j 2 l1", "k 0 a1")
}

func TestAQuotaBelowTheFirstChoiceLeavesTheOthers(t *testing.T) {
	t.Parallel()
	w := newWards(t)
	w.s.UpsertTenant(placement.Tenant{ID: "default", Limit: berth.Capacity{GPUMilli: 4000}})
	w.planner.Policy = placement.Policy{Backfill: 10, Preempt: true, AssumeRun: time.Hour}
	w.machine("h1", "H100", 8, 0)
	w.machine("l1", "L40S", 4, 0)
	w.job("j", 0, choice(w.class("H100", 8, 1), 0), choice(w.class("L40S", 4, 1), time.Minute))
	w.job("k", 0, choice(w.class("H100", 8, 1), 0), choice(w.class("L40S", 4, 1), time.Minute))
	w.wants(t, 0)
	w.wants(t, time.Minute, "j 1 l1")
}

func TestReservedStartsAreKeptForTheHardwareInForce(t *testing.T) {
	t.Parallel()
	w := newWards(t)
	w.planner.Policy = placement.Policy{Backfill: 1}
	h100, a100 := w.class("H100", 4, 1), w.class("A100", 8, 1)
	w.machine("h1", "H100", 8, 4)
	w.machine("a1", "A100", 8, 1)
	w.s.UpsertRunning(placement.Running{Job: "busy", Tenant: "default", Class: h100, StartedAt: epoch, TimeLimit: time.Hour,
		Ranks: []berth.Grant{{Machine: "h1", Epoch: 1, Capacity: berth.Capacity{CPUMilli: 4000, MemoryMiB: 4000, GPUMilli: 4000},
			GPUs: []berth.DeviceShare{{Index: 0, Milli: 1000}, {Index: 1, Milli: 1000}, {Index: 2, Milli: 1000}, {Index: 3, Milli: 1000}}}}})
	w.job("large", 0, choice(w.class("H100", 8, 1), 0), choice(a100, 0))
	w.job("small", 0, choice(h100, 0)) // without a limit it would delay the reserved start of large
	w.wants(t, time.Minute)
	w.machine("a1", "A100", 8, 0)
	w.wants(t, time.Minute, "large 1 a1", "small 0 h1")
}

func TestAJobWithANominationWaitsForIt(t *testing.T) {
	t.Parallel()
	w := newWards(t)
	w.machine("h1", "H100", 8, 8)
	w.machine("a1", "A100", 8, 0)
	h100 := w.class("H100", 8, 1)
	grant := berth.Grant{Machine: "h1", Epoch: 1, Capacity: berth.Capacity{CPUMilli: 8000, MemoryMiB: 8000, GPUMilli: 8000}}
	for i := range 8 {
		grant.GPUs = append(grant.GPUs, berth.DeviceShare{Index: i, Milli: 1000})
	}
	w.s.UpsertRunning(placement.Running{Job: "victim", Tenant: "default", Class: h100, StartedAt: epoch, Stopping: true,
		StopBy: epoch.Add(time.Hour), Ranks: []berth.Grant{grant}})
	w.job("j", 0, choice(h100, 0), choice(w.class("A100", 8, 1), 0))
	w.s.SetNominations([]placement.Nomination{{For: "j", Machine: "h1", Capacity: grant.Capacity, GPUs: grant.GPUs, Victim: "victim"}})
	w.wants(t, time.Minute)
	w.s.SetNominations(nil)
	w.wants(t, time.Minute, "j 1 a1")
}

// The job of the nomination waits for its own capacity. Another job of its class has none, and takes what is free.
func TestANominationKeepsNoOtherJobFromItsAlternatives(t *testing.T) {
	t.Parallel()
	w := newWards(t)
	w.machine("h1", "H100", 8, 8)
	w.machine("a1", "A100", 8, 0)
	h100 := w.class("H100", 8, 1)
	grant := berth.Grant{Machine: "h1", Epoch: 1, Capacity: berth.Capacity{CPUMilli: 8000, MemoryMiB: 8000, GPUMilli: 8000}}
	for i := range 8 {
		grant.GPUs = append(grant.GPUs, berth.DeviceShare{Index: i, Milli: 1000})
	}
	w.s.UpsertRunning(placement.Running{Job: "victim", Tenant: "default", Class: h100, StartedAt: epoch, Stopping: true,
		StopBy: epoch.Add(time.Hour), Ranks: []berth.Grant{grant}})
	a100 := w.class("A100", 8, 1)
	w.job("j1", 0, choice(h100, 0), choice(a100, 0))
	w.job("j2", 0, choice(h100, 0), choice(a100, 0))
	w.s.SetNominations([]placement.Nomination{{For: "j1", Machine: "h1", Capacity: grant.Capacity, GPUs: grant.GPUs, Victim: "victim"}})
	w.wants(t, time.Minute, "j2 1 a1")
}

// A tenant whose quota bars an alternative keeps no job of another tenant from it.
func TestAQuotaKeepsNoOtherTenantFromAnAlternative(t *testing.T) {
	t.Parallel()
	w := newWards(t)
	w.s.UpsertTenant(placement.Tenant{ID: "default", Limit: berth.Capacity{GPUMilli: 8000}})
	w.s.UpsertTenant(placement.Tenant{ID: "other"})
	w.machine("h1", "H100", 8, 8)
	w.machine("a1", "A100", 16, 0)
	h100, a100 := w.class("H100", 8, 1), w.class("A100", 16, 1)
	j := w.job("ja", 0, choice(h100, 0), choice(a100, 0))
	w.wants(t, 0)
	j.ID, j.Tenant = "jb", "other"
	w.s.UpsertJob(j)
	w.wants(t, 0, "jb 1 a1")
}

// Explanations of jobs that are not in the queue leave a snapshot as it was, also if alternatives have opened since the
// last plan, which defines classes.
func TestExplainingAJobLeavesTheClassesOfOpenedAlternatives(t *testing.T) {
	t.Parallel()
	w := newWards(t)
	w.machine("h1", "H100", 8, 8)
	w.machine("a1", "A100", 8, 8)
	w.job("j", 0, choice(w.class("H100", 8, 1), 0), choice(w.class("A100", 8, 1), time.Minute))
	at := epoch.Add(time.Hour)
	for gpus := 1; gpus <= 3; gpus++ {
		r := spec.Request{CPUMilli: 1000, MemoryMiB: 1000, GPUs: gpus, GPUMilli: 1000, Members: 1, Execution: spec.AtLeastOnce}
		w.planner.WhyNew(w.s, placement.Job{ID: "new", Tenant: "default", Class: r.Class(), Priority: 500, SubmittedAt: at, EligibleAt: at}, r, at)
	}
	w.job("k", 0, choice(w.class("A100", 2, 1), 0))
	w.machine("a1", "A100", 16, 6)
	w.wants(t, time.Hour, "j 1 a1", "k 0 a1")
}

func TestEachAlternativeIsExplained(t *testing.T) {
	t.Parallel()
	w := newWards(t)
	w.s.UpsertTenant(placement.Tenant{ID: "default", Limit: berth.Capacity{GPUMilli: 12_000}})
	w.machine("a1", "A100", 8, 1)
	w.machine("l1", "L40S", 16, 0)
	w.job("j", 0, choice(w.class("H100", 8, 1), 0), choice(w.class("A100", 8, 1), time.Minute), choice(w.class("L40S", 16, 1), time.Minute),
		choice(w.class("L40S", 8, 1), time.Hour))
	why, ok := w.planner.Forecast(w.s, epoch.Add(2*time.Minute)).Why("j")
	if !ok || why.StartsNow || len(why.Alternatives) != 4 {
		t.Fatalf("got %+v", why)
	}
	// The first choice fits on no machine, but the job may still start.
	if len(why.Blockers) != 1 || why.Blockers[0].Code != "no_room" {
		t.Errorf("the job is blocked by %+v", why.Blockers)
	}
	for i, want := range []string{"unsatisfiable", "no_room", "limit", ""} {
		a := why.Alternatives[i]
		got := ""
		if len(a.Blockers) > 0 {
			got = a.Blockers[0].Code
		}
		if got != want || a.Number != i || a.InForce != (i == 0) || a.Opens.IsZero() != (i < 3) {
			t.Errorf("alternative %d is blocked by %q, want %q: %+v", i, got, want, a)
		}
	}
	over := overviewOf(w.s, w.planner, epoch.Add(2*time.Minute), 100)
	if over["j"].Code != "no_room" {
		t.Errorf("the overview has %+v", over["j"])
	}
	if later, _ := w.planner.Forecast(w.s, epoch.Add(time.Hour)).Why("j"); !later.StartsNow {
		t.Errorf("after an hour the job waits: %+v", later.Blockers)
	}
}

// drawWards returns a cluster of drawn machines and jobs with alternatives.
func drawWards(t *rapid.T) *wards {
	w := newWards(t)
	models := []string{"H100", "A100", "L40S"}
	for i := range rapid.IntRange(1, 6).Draw(t, "machines") {
		w.machine(fmt.Sprintf("m%d", i), rapid.SampledFrom(models).Draw(t, "model"), 8, rapid.IntRange(0, 8).Draw(t, "used"))
	}
	if rapid.Bool().Draw(t, "quota") {
		w.s.UpsertTenant(placement.Tenant{ID: "default", Limit: berth.Capacity{GPUMilli: int64(rapid.IntRange(1, 24).Draw(t, "limit")) * 1000}})
	}
	w.planner.Policy = placement.Policy{Backfill: rapid.IntRange(0, 3).Draw(t, "backfill"), AssumeRun: time.Hour,
		Order: rapid.SampledFrom([]placement.Order{placement.Fair, placement.FIFO}).Draw(t, "order")}
	for i := range rapid.IntRange(1, 20).Draw(t, "jobs") {
		members := rapid.IntRange(1, 2).Draw(t, "members")
		var list []placement.Alternative
		after := time.Duration(0)
		for range rapid.IntRange(1, 3).Draw(t, "choices") {
			list = append(list, choice(w.class(rapid.SampledFrom(models).Draw(t, "wants"), rapid.IntRange(1, 8).Draw(t, "gpus"), members), after))
			after += time.Duration(rapid.IntRange(0, 20).Draw(t, "wait")) * time.Minute
		}
		w.job(fmt.Sprintf("j%02d", i), rapid.IntRange(0, len(list)-1).Draw(t, "in force"), list...)
	}
	return w
}

// A start has the request of the alternative that it names, and the alternative is open. A plan of a
// snapshot that saw earlier plans equals that of a fresh one, and no job with an open alternative that has
// room for it, after all starts of the plan, is left out.
func TestStartsHaveTheRequestOfAnOpenAlternative(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := drawWards(t)
		now := epoch
		for range rapid.IntRange(1, 4).Draw(t, "plans") {
			now = now.Add(time.Duration(rapid.IntRange(0, 15).Draw(t, "minutes")) * time.Minute)
			plan := w.planner.Plan(w.s, now)
			fresh := w.fresh()
			if diff := cmp.Diff(w.planner.Plan(fresh, now), plan); diff != "" {
				t.Fatalf("the plan differs from one of a fresh snapshot:\n%s", diff)
			}
			for _, s := range plan.Start {
				w.checkStart(s, now)
			}
		}
	})
}

// fresh returns a new snapshot of the same rows.
func (w *wards) fresh() *placement.Snapshot {
	s := placement.NewSnapshot()
	w.s.EachMachine(func(m placement.Machine) { s.UpsertMachine(m) })
	if x, ok := w.s.Tenant("default"); ok {
		s.UpsertTenant(x)
	}
	for _, j := range w.jobs {
		for _, class := range append([]string{j.Class}, classes(j)...) {
			r, _ := placement.RequestOf(w.s, class)
			s.DefineClass(class, r)
		}
		s.UpsertJob(j)
	}
	return s
}

func classes(j placement.Job) (list []string) {
	for _, a := range j.Alternatives {
		list = append(list, a.Class)
	}
	return list
}

// checkStart checks that a start has the request of the alternative that it names, and that it is open.
func (w *wards) checkStart(s berth.Start, now time.Time) {
	j := w.jobs[slices.IndexFunc(w.jobs, func(j placement.Job) bool { return j.ID == s.Job })]
	class := j.Class
	if len(j.Alternatives) > 0 {
		a := j.Alternatives[s.Alternative]
		if class = a.Class; s.Alternative > j.InForce && a.Opens.After(now) {
			w.t.Fatalf("job %s starts with alternative %d, which opens at %s", j.ID, s.Alternative, a.Opens)
		}
	}
	r, _ := placement.RequestOf(w.s, class)
	for _, g := range s.Ranks {
		m, _ := w.s.Machine(g.Machine)
		if g.Capacity != r.Capacity() || m.GPUs[0].Model != r.GPUTypes[0] || len(s.Ranks) != r.Members {
			w.t.Fatalf("job %s starts with %+v on %s, and alternative %d wants %+v", j.ID, g.Capacity, m.GPUs[0].Model, s.Alternative, r)
		}
	}
}
