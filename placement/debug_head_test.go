package placement_test

import (
	"testing"
	"time"

	"berth"
	"berth/placement"
	"berth/spec"
)

// headed returns a machine of eight GPUs. A real job has four of them for two hours, and a debug job four for a day.
// The first job of the queue needs the whole machine. The second one needs four GPUs for the given time.
func headed(limit time.Duration) (*placement.Snapshot, time.Time) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s := placement.NewSnapshot()
	s.DefineClass("whole", spec.Request{CPUMilli: 8000, MemoryMiB: 8, GPUs: 8, GPUMilli: 1000, Members: 1})
	s.DefineClass("half", spec.Request{CPUMilli: 4000, MemoryMiB: 4, GPUs: 4, GPUMilli: 1000, Members: 1})
	full := berth.Capacity{CPUMilli: 8000, MemoryMiB: 8, GPUMilli: 8000}
	m := placement.Machine{ID: "m", Epoch: 1, State: berth.MachineReady, Total: full, Used: full}
	shares := make([]berth.DeviceShare, 8)
	for i := range shares {
		m.GPUs = append(m.GPUs, placement.Device{Index: i, Model: "H100", MemoryMiB: 1, Healthy: true, UsedMilli: 1000})
		shares[i] = berth.DeviceShare{Index: i, Milli: 1000}
	}
	s.UpsertMachine(m)
	s.UpsertTenant(placement.Tenant{ID: "team"})
	half := berth.Capacity{CPUMilli: 4000, MemoryMiB: 4, GPUMilli: 4000}
	run := func(id berth.JobID, priority int, limit time.Duration, gpus []berth.DeviceShare) {
		s.UpsertRunning(placement.Running{Job: id, Tenant: "team", Class: "half", Version: 1, Attempt: 1,
			Priority: priority, Preemptible: priority < 0, StartedAt: now, TimeLimit: limit,
			Ranks: []berth.Grant{{Machine: "m", Epoch: 1, Capacity: half, GPUs: gpus}}})
	}
	run("real", 0, 2*time.Hour, shares[:4])
	run("debug", placement.DebugPriority, 24*time.Hour, shares[4:])
	early := now.Add(-time.Minute)
	s.UpsertJob(placement.Job{ID: "head", Tenant: "team", Class: "whole", Version: 1, SubmittedAt: early,
		EligibleAt: early})
	s.UpsertJob(placement.Job{ID: "job", Tenant: "team", Class: "half", Version: 1, SubmittedAt: now, EligibleAt: now,
		TimeLimit: limit})
	return s, now
}

// TestADebugJobDelaysNoReservedStart checks that a reserved start expects a debug job to be gone, and that a later job
// stops the debug job on the machine of that start exactly if it ends before the start.
func TestADebugJobDelaysNoReservedStart(t *testing.T) {
	t.Parallel()
	for _, policy := range policies() {
		if policy.Order == placement.SRSF {
			continue // the second job is the shorter one, and comes first
		}
		for _, limit := range []time.Duration{time.Hour, 2 * time.Hour, 0} {
			s, now := headed(limit)
			plan := placement.Planner{Policy: policy, Estimate: true}.Plan(s, now)
			stops := len(plan.Preempt) == 1 && plan.Preempt[0].Job == "debug" && plan.Preempt[0].For == "job"
			if stops != (limit == time.Hour) || !stops && len(plan.Preempt) > 0 {
				t.Errorf("order %v, time limit %v: %+v", policy.Order, limit, plan.Preempt)
			}
			head := plan.Estimates[0]
			if head.Job != "head" || !head.Reserved || !head.Start.Equal(now.Add(2*time.Hour)) {
				t.Errorf("order %v, time limit %v: the first job starts after %v, %+v", policy.Order, limit,
					head.Start.Sub(now), head)
			}
		}
	}
}
