package placement_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"berth"
	"berth/placement"
	"berth/spec"
)

// repair is a cluster of machines with a GPU each, m0 to m3, on which gang "a"
// waits for its repair: room for it is kept on m0 and m2.
func repair(t *testing.T, taken ...string) *placement.Snapshot {
	t.Helper()
	s := placement.NewSnapshot()
	for i := range 4 {
		m := placement.Machine{
			ID: berth.MachineID(fmt.Sprintf("m%d", i)), Epoch: 1, State: berth.MachineReady, Total: berth.Capacity{CPUMilli: 8000, MemoryMiB: 8000, GPUMilli: 1000},
			GPUs: []placement.Device{{Index: 0, Model: "H100", MemoryMiB: 80000, Healthy: true}},
		}
		if slices.Contains(taken, string(m.ID)) {
			m.GPUs[0].UsedMilli, m.Used.GPUMilli = 1000, 1000
		}
		s.UpsertMachine(m)
	}
	for _, members := range []int{2, 3} {
		s.DefineClass(fmt.Sprint(members), spec.Request{CPUMilli: 1000, MemoryMiB: 100, GPUs: 1, GPUMilli: 1000, Members: members, Execution: spec.AtLeastOnce})
	}
	s.UpsertJob(placement.Job{ID: "a", Tenant: "x", Class: "3", Version: 5, Attempt: 1, Priority: 500, SubmittedAt: noon, EligibleAt: noon, Avoid: []berth.MachineID{"m1"}})
	var kept []placement.Nomination
	for _, m := range []berth.MachineID{"m0", "m2"} {
		kept = append(kept, placement.Nomination{
			For: "a", Machine: m, Capacity: berth.Capacity{CPUMilli: 1000, MemoryMiB: 100, GPUMilli: 1000}, GPUs: []berth.DeviceShare{{Index: 0, Milli: 1000}},
			ExpiresAt: noon.Add(time.Minute), Repair: true,
		})
	}
	s.SetNominations(kept)
	return s
}

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func places(p placement.Plan) map[berth.JobID][]berth.MachineID {
	all := map[berth.JobID][]berth.MachineID{}
	for _, s := range p.Start {
		for _, g := range s.Ranks {
			all[s.Job] = append(all[s.Job], g.Machine)
		}
	}
	return all
}

// other is a gang of two that comes after the first.
func other(s *placement.Snapshot) {
	s.UpsertJob(placement.Job{ID: "b", Tenant: "x", Class: "2", Version: 1, Priority: 500, SubmittedAt: noon.Add(time.Second), EligibleAt: noon})
}

func TestAGangIsRepairedWhereItWas(t *testing.T) {
	t.Parallel()
	for _, p := range []placement.Planner{{}, {Pack: placement.LeastFragmentation}, {Policy: placement.Policy{Backfill: 3, Preempt: true}}} {
		got := places(p.Plan(repair(t), noon))
		if !slices.Equal(got["a"], []berth.MachineID{"m0", "m2", "m3"}) {
			t.Errorf("%+v: the gang goes to %v", p, got)
		}
	}
}

func TestRoomForARepairIsKeptFromOthersUntilAGangCouldBeginWithIt(t *testing.T) {
	t.Parallel()
	s := repair(t, "m1")
	s.UpsertJob(placement.Job{ID: "a", Tenant: "x", Class: "3", Version: 5, Attempt: 1, Priority: 500, SubmittedAt: noon, EligibleAt: noon.Add(time.Hour)})
	s.DefineClass("1", spec.Request{CPUMilli: 1000, MemoryMiB: 100, GPUs: 1, GPUMilli: 1000, Members: 1, Execution: spec.AtLeastOnce})
	for i := range 3 {
		s.UpsertJob(placement.Job{ID: berth.JobID(fmt.Sprintf("s%d", i)), Tenant: "x", Class: "1", Version: 1, Priority: 500, SubmittedAt: noon, EligibleAt: noon})
	}
	plan := placement.Planner{}.Plan(s, noon)
	if got := places(plan); len(got) != 1 || !slices.Equal(got["s0"], []berth.MachineID{"m3"}) || len(plan.Yield) != 0 {
		t.Errorf("got %v, yields %v", got, plan.Yield)
	}
	other(s)
	plan = placement.Planner{}.Plan(s, noon)
	if !slices.Equal(plan.Yield, []berth.JobID{"a"}) || len(places(plan)["b"]) != 0 {
		t.Errorf("yields %v, places %v", plan.Yield, places(plan))
	}
	for i := range 3 {
		s.RemoveJob(berth.JobID(fmt.Sprintf("s%d", i)))
	}
	if plan = (placement.Planner{}).Plan(s, noon.Add(time.Minute)); len(plan.Release) != 2 || len(places(plan)["b"]) != 2 {
		t.Errorf("after its time: releases %v, places %v", plan.Release, places(plan))
	}
}

// A gang whose last ranks are about to stop keeps what the others gave back.
func TestRoomOfAStoppingGangIsWithheld(t *testing.T) {
	t.Parallel()
	s := repair(t, "m1", "m3")
	s.RemoveJob("a")
	s.UpsertRunning(placement.Running{Job: "a", Tenant: "x", Class: "3", Attempt: 1, Stopping: true, StopBy: noon, Ranks: []berth.Grant{{Machine: "m3"}}})
	other(s)
	plan := placement.Planner{}.Plan(s, noon)
	if len(plan.Start) != 0 || len(plan.Release) != 0 {
		t.Errorf("starts %v, releases %v", places(plan), plan.Release)
	}
}

func TestAGangThatNoNetworkHoldsIsToldSo(t *testing.T) {
	t.Parallel()
	s := placement.NewSnapshot()
	for i, network := range []string{"engine/a", "engine/b", "host", "host"} {
		s.UpsertMachine(placement.Machine{
			ID: berth.MachineID(fmt.Sprintf("m%d", i)), Epoch: 1, State: berth.MachineReady, Network: network, Total: berth.Capacity{CPUMilli: 1000, MemoryMiB: 1000},
		})
	}
	e := placement.Explain(s, spec.Request{CPUMilli: 1000, MemoryMiB: 100, Members: 3, Execution: spec.AtLeastOnce})
	want := []placement.Shortfall{{Resource: "members", Asked: "3", Largest: "2 on one network"}}
	if !slices.Equal(e.Lacking, want) {
		t.Errorf("lacking %+v", e.Lacking)
	}
}

// A gang that displaces others for its repair displaces no more than the hole
// needs.
func TestARepairDisplacesOnlyWhatIsInTheHole(t *testing.T) {
	t.Parallel()
	s := repair(t, "m1", "m3")
	s.UpsertJob(placement.Job{ID: "a", Tenant: "x", Class: "3", Version: 5, Attempt: 1, Priority: 800, SubmittedAt: noon, EligibleAt: noon})
	s.DefineClass("1", spec.Request{CPUMilli: 1000, MemoryMiB: 100, GPUs: 1, GPUMilli: 1000, Members: 1, Execution: spec.AtLeastOnce})
	for _, m := range []berth.MachineID{"m1", "m3"} {
		s.UpsertRunning(placement.Running{
			Job: berth.JobID("on-" + m), Tenant: "x", Class: "1", Version: 3, Attempt: 1, Priority: 200, Preemptible: true, StartedAt: noon.Add(-time.Hour),
			Ranks: []berth.Grant{{Machine: m, Epoch: 1, Capacity: berth.Capacity{CPUMilli: 1000, MemoryMiB: 100, GPUMilli: 1000}, GPUs: []berth.DeviceShare{{Index: 0, Milli: 1000}}}},
		})
	}
	plan := placement.Planner{Policy: placement.Policy{Preempt: true, BandWidth: 100}}.Plan(s, noon.Add(time.Second))
	if len(plan.Preempt) != 1 || plan.Preempt[0].For != "a" {
		t.Errorf("preempts %+v", plan.Preempt)
	}
}

// A gang under repair yields to no job that could not use the room because of maintenance windows.
func TestARepairYieldsToNoJobThatAWindowBars(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		limit time.Duration
		yield []berth.JobID
	}{{20 * time.Hour, nil}, {5 * time.Hour, []berth.JobID{"a"}}, {0, []berth.JobID{"a"}}} {
		s := repair(t, "m1", "m3")
		var windows []placement.Window
		for i, m := range []berth.MachineID{"m0", "m2"} {
			windows = append(windows, placement.Window{ID: int64(i), Machine: m, Closes: noon.Add(10 * time.Hour), Lead: noon.Add(9 * time.Hour)})
		}
		placement.SetWindows(s, windows)
		s.UpsertJob(placement.Job{ID: "b", Tenant: "x", Class: "2", Version: 1, Priority: 500, SubmittedAt: noon.Add(time.Second), EligibleAt: noon, TimeLimit: x.limit})
		if plan := (placement.Planner{}).Plan(s, noon); !slices.Equal(plan.Yield, x.yield) || len(plan.Start) != 0 {
			t.Errorf("for a job with limit %s: yields %v, want %v; starts %v", x.limit, plan.Yield, x.yield, places(plan))
		}
	}
}
