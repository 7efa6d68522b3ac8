package placement_test

import (
	"testing"
	"time"

	"berth"
	"berth/placement"
	"berth/spec"
)

// gangVictim is a machine with two GPUs, whose CPUs and GPUs two members of a preemptible gang hold. Job "j" waits
// for both GPUs.
func gangVictim() *placement.Snapshot {
	s := placement.NewSnapshot()
	member := func(gpu int) berth.Grant {
		return berth.Grant{Machine: "m0", Epoch: 1, Capacity: berth.Capacity{CPUMilli: 500, GPUMilli: 1000},
			GPUs: []berth.DeviceShare{{Index: gpu, Milli: 1000}}}
	}
	all := berth.Capacity{CPUMilli: 1000, GPUMilli: 2000}
	s.UpsertMachine(placement.Machine{ID: "m0", Epoch: 1, State: berth.MachineReady, Total: all, Used: all,
		GPUs: []placement.Device{{Index: 0, Model: "A", Healthy: true, UsedMilli: 1000},
			{Index: 1, Model: "A", Healthy: true, UsedMilli: 1000}}})
	s.UpsertRunning(placement.Running{Job: "v", Tenant: "x", Version: 1, Attempt: 1, Priority: 100, Preemptible: true,
		Ranks: []berth.Grant{member(0), member(1)}, StartedAt: noon.Add(-time.Hour)})
	s.DefineClass("2", spec.Request{CPUMilli: 800, GPUs: 2, GPUMilli: 1000, Members: 1, Execution: spec.AtLeastOnce})
	s.UpsertJob(placement.Job{ID: "j", Tenant: "x", Class: "2", Version: 1, Priority: 900, SubmittedAt: noon, EligibleAt: noon})
	return s
}

var preempting = placement.Policy{Order: placement.Priority, BandWidth: 100, Backfill: 4, Preempt: true,
	NominationFor: 10 * time.Minute}

// TestBarredJobsPreemptNoOthers checks that a plan orders no stop for a barred job, and nominates nothing for it.
func TestBarredJobsPreemptNoOthers(t *testing.T) {
	t.Parallel()
	plan := placement.Planner{Policy: preempting, Barred: map[berth.JobID]bool{"j": true}}.Plan(gangVictim(), noon)
	if len(plan.Preempt) != 0 || len(plan.Nominate) != 0 {
		t.Errorf("preempts %+v, nominates %+v", plan.Preempt, plan.Nominate)
	}
}
