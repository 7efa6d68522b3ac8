package placement_test

import (
	"fmt"
	"testing"
	"time"

	"berth"
	"berth/placement"
	"berth/spec"
)

// waitInVain adds a machine without GPUs that an unpreemptible job fills, and jobs that wait for its cores alone. Each
// job is of the class that classOf names.
func waitInVain(s *placement.Snapshot, now time.Time, jobs int, classOf func(i int) string, priority int) {
	full := berth.Capacity{CPUMilli: 4000, MemoryMiB: 1 << 10}
	s.UpsertMachine(placement.Machine{ID: "n", Epoch: 1, State: berth.MachineReady, Total: full, Used: full})
	s.UpsertRunning(placement.Running{Job: "firm", Tenant: "team", Class: "n", Version: 1, Attempt: 1,
		Priority: priority, StartedAt: now.Add(-time.Hour), TimeLimit: 24 * time.Hour,
		Ranks: []berth.Grant{{Machine: "n", Epoch: 1, Capacity: full}}})
	for i := range jobs {
		s.DefineClass(classOf(i), spec.Request{CPUMilli: 4000, MemoryMiB: int64(1 + i), Members: 1})
		early := now.Add(-time.Minute)
		s.UpsertJob(placement.Job{ID: berth.JobID(fmt.Sprintf("early-%02d", i)), Tenant: "other", Class: classOf(i),
			Version: 1, Priority: priority, SubmittedAt: early, EligibleAt: early})
	}
}

// TestJobsInVainEndNoSearchForDebugJobs checks that a debug job gives way also to a job behind many blocked jobs of one
// class, which it cannot serve.
func TestJobsInVainEndNoSearchForDebugJobs(t *testing.T) {
	t.Parallel()
	for _, policy := range policies() {
		s, now := debugged(nil)
		waitInVain(s, now, 1, func(int) string { return "d" }, 0)
		for i := range 40 {
			early := now.Add(-time.Minute)
			s.UpsertJob(placement.Job{ID: berth.JobID(fmt.Sprintf("more-%02d", i)), Tenant: "other", Class: "d",
				Version: 1, SubmittedAt: early, EligibleAt: early})
		}
		plan := placement.Planner{Policy: policy}.Plan(s, now)
		if len(plan.Preempt) != 1 || plan.Preempt[0].Job != "debug" || plan.Preempt[0].For != "job" {
			t.Errorf("order %v, preemption %t: %+v", policy.Order, policy.Preempt, plan.Preempt)
		}
	}
}

// TestADebugJobTakesNoOrdinarySearch checks that many young jobs, which may stop a debug job alone, leave the searches
// of the plan to a job that has waited long enough to preempt others.
func TestADebugJobTakesNoOrdinarySearch(t *testing.T) {
	t.Parallel()
	s, now := debugged(func(j *placement.Job) {
		j.Priority, j.SubmittedAt = 100, j.SubmittedAt.Add(-time.Hour)
		j.EligibleAt = j.SubmittedAt
	})
	full := berth.Capacity{CPUMilli: 1000, MemoryMiB: 1 << 10, GPUMilli: 1000}
	s.RemoveRunning("debug")
	s.UpsertRunning(placement.Running{Job: "real", Tenant: "team", Class: "c", Version: 1, Attempt: 1,
		Preemptible: true, StartedAt: now.Add(-time.Hour), TimeLimit: 24 * time.Hour, Ranks: []berth.Grant{
			{Machine: "m", Epoch: 1, Capacity: full, GPUs: []berth.DeviceShare{{Index: 0, Milli: 1000}}}}})
	s.UpsertTenant(placement.Tenant{ID: "team"})
	small := berth.Capacity{CPUMilli: 100, MemoryMiB: 100}
	s.UpsertMachine(placement.Machine{ID: "o", Epoch: 1, State: berth.MachineReady, Total: small, Used: small})
	s.UpsertRunning(placement.Running{Job: "debug", Tenant: "team", Class: "o", Version: 1, Attempt: 1,
		Preemptible: true, Priority: placement.DebugPriority, StartedAt: now.Add(-time.Second), TimeLimit: time.Hour,
		Ranks: []berth.Grant{{Machine: "o", Epoch: 1, Capacity: small}}})
	waitInVain(s, now, 40, func(i int) string { return fmt.Sprintf("d%02d", i) }, 200)
	for _, order := range []placement.Order{placement.Fair, placement.Priority} {
		policy := placement.Policy{Order: order, BandWidth: 100, Preempt: true, PreemptAfter: 5 * time.Minute,
			MinRuntime: 10 * time.Minute, NominationFor: 10 * time.Minute, Backfill: 8}
		plan := placement.Planner{Policy: policy}.Plan(s, now)
		if len(plan.Preempt) != 1 || plan.Preempt[0].Job != "real" || plan.Preempt[0].For != "job" {
			t.Errorf("order %v: %+v", order, plan.Preempt)
		}
	}
}
