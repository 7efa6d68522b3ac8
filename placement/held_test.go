package placement_test

import (
	"fmt"
	"testing"
	"time"

	"berth"
	"berth/placement"
	"berth/spec"
)

// heldCluster has machines of one GPU whose jobs belong to tenant x. On the first ones, as many as kept, half of
// the GPU is free and held: a job of tenant y is nominated for a part of it, so no other job of tenant x may join.
// A fifth belongs to a job that may be preempted at a low cost. On the other machines nothing is free, and
// the job that may be preempted costs more.
func heldCluster(kept, machines, members int) *placement.Snapshot {
	s := placement.NewSnapshot()
	s.KeepTenantsApart()
	part := func(m berth.MachineID, milli int64) berth.Grant {
		return berth.Grant{Machine: m, Epoch: 1, Capacity: berth.Capacity{GPUMilli: milli},
			GPUs: []berth.DeviceShare{{Milli: milli}}}
	}
	request := func(milli int64, members int) spec.Request {
		return spec.Request{GPUs: 1, GPUMilli: milli, Members: members, Execution: spec.AtLeastOnce}
	}
	var nominations []placement.Nomination
	s.DefineClass("y", request(300, 1))
	for i := range machines {
		id := berth.MachineID(fmt.Sprintf("m%d", i))
		m := placement.Machine{ID: id, Epoch: 1, State: berth.MachineReady, Total: berth.Capacity{GPUMilli: 1000},
			GPUs: []placement.Device{{Model: "A", Healthy: true}}}
		run := func(name string, milli int64, ran time.Duration, preemptible, stopping bool) {
			r := placement.Running{Job: berth.JobID(name + string(id)), Tenant: "x", Version: 1, Attempt: 1,
				Ranks: []berth.Grant{part(id, milli)}, StartedAt: noon.Add(-ran), Preemptible: preemptible}
			if r.Stopping = stopping; stopping {
				r.StopBy = noon.Add(time.Minute)
			}
			s.UpsertRunning(r)
			m.GPUs[0].UsedMilli += milli
			m.Used.GPUMilli += milli
		}
		if i < kept {
			run("stopping", 300, time.Hour, true, true)
			run("cheap", 200, time.Minute, true, false)
			s.UpsertJob(placement.Job{ID: berth.JobID("y" + id), Tenant: "y", Class: "y", Version: 1, Priority: 300,
				SubmittedAt: noon, EligibleAt: noon})
			nominations = append(nominations, placement.Nomination{For: berth.JobID("y" + id), Machine: id,
				Capacity: berth.Capacity{GPUMilli: 300}, GPUs: part(id, 300).GPUs, Victim: berth.JobID("stopping" + id)})
		} else {
			run("dear", 700, time.Hour, true, false)
			run("firm", 300, time.Minute, false, false)
		}
		s.UpsertMachine(m)
	}
	s.SetNominations(nominations)
	s.DefineClass("x", request(700, members))
	s.UpsertJob(placement.Job{ID: "new", Tenant: "x", Class: "x", Version: 1, Priority: 900, SubmittedAt: noon, EligibleAt: noon})
	return s
}

// TestPreemptionCountsOnNoHeldCapacity checks that capacity held for a nominated job gives no room to another
// job that preempts, neither to a single job nor to the members of a gang.
func TestPreemptionCountsOnNoHeldCapacity(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ kept, machines, members, victims int }{
		"a single job passes over a machine with held capacity": {1, 2, 1, 1},
		"a gang, too":                     {1, 3, 2, 2},
		"no victim gives a job held room": {1, 1, 1, 0},
		"nor a gang":                      {1, 2, 2, 0},
	} {
		s := heldCluster(c.kept, c.machines, c.members)
		plan := placement.Planner{Policy: placement.Policy{Order: placement.Priority, BandWidth: 100, Preempt: true, Backfill: 4}}.Plan(s, noon)
		if len(plan.Preempt) != c.victims {
			t.Errorf("%s: %d victims, want %d: %+v", name, len(plan.Preempt), c.victims, plan.Preempt)
		}
		for _, x := range plan.Preempt {
			if x.Job[:4] != "dear" {
				t.Errorf("%s: preempts %s", name, x.Job)
			}
		}
	}
}
