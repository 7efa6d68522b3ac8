package placement_test

import (
	"fmt"
	"testing"
	"time"

	"berth"
	"berth/placement"
	"berth/spec"
)

// debugged returns a machine whose only GPU a debug job holds since a second, and a waiting job that needs the GPU.
func debugged(edit func(*placement.Job)) (*placement.Snapshot, time.Time) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s := placement.NewSnapshot()
	s.DefineClass("c", spec.Request{CPUMilli: 1000, MemoryMiB: 1, GPUs: 1, GPUMilli: 1000, Members: 1})
	full := berth.Capacity{CPUMilli: 1000, MemoryMiB: 1 << 10, GPUMilli: 1000}
	s.UpsertMachine(placement.Machine{ID: "m", Epoch: 1, State: berth.MachineReady, Total: full, Used: full,
		GPUs: []placement.Device{{Index: 0, Model: "H100", MemoryMiB: 1, Healthy: true, UsedMilli: 1000}}})
	s.UpsertTenant(placement.Tenant{ID: "team", Guarantee: full})
	s.UpsertTenant(placement.Tenant{ID: "other"})
	s.UpsertRunning(placement.Running{
		Job: "debug", Tenant: "team", Class: "c", Version: 1, Attempt: 1, Priority: placement.DebugPriority, Preemptible: true,
		StartedAt: now.Add(-time.Second), TimeLimit: time.Hour,
		Ranks: []berth.Grant{{Machine: "m", Epoch: 1, Capacity: full, GPUs: []berth.DeviceShare{{Index: 0, Milli: 1000}}}},
	})
	j := placement.Job{ID: "job", Tenant: "other", Class: "c", Version: 1, SubmittedAt: now, EligibleAt: now}
	if edit != nil {
		edit(&j)
	}
	s.UpsertJob(j)
	return s, now
}

// policies are the policies under which jobs wait long before they may preempt, or never may.
func policies() []placement.Policy {
	var list []placement.Policy
	for _, order := range []placement.Order{placement.Fair, placement.Priority, placement.FIFO, placement.SRSF} {
		for _, preempts := range []bool{true, false} {
			list = append(list, placement.Policy{Order: order, BandWidth: 100, Preempt: preempts, Exponent: 1,
				PreemptAfter: 5 * time.Minute, MinRuntime: 10 * time.Minute, NominationFor: 10 * time.Minute, Backfill: 8})
		}
	}
	return list
}

// TestADebugJobGivesWayAtOnce checks that neither the wait before a preemption, nor the least run time, nor a
// guarantee, nor a policy without preemption lets a debug job delay another job.
func TestADebugJobGivesWayAtOnce(t *testing.T) {
	t.Parallel()
	for _, policy := range policies() {
		s, now := debugged(nil)
		plan := placement.Planner{Policy: policy}.Plan(s, now)
		if len(plan.Preempt) != 1 || plan.Preempt[0].Job != "debug" || plan.Preempt[0].For != "job" {
			t.Errorf("order %v, preemption %t: %+v", policy.Order, policy.Preempt, plan.Preempt)
		}
	}
}

// TestADebugJobStopsNoOther checks that a waiting debug job neither preempts nor has capacity reserved, in any order.
func TestADebugJobStopsNoOther(t *testing.T) {
	t.Parallel()
	for _, policy := range policies() {
		policy.PreemptAfter, policy.MinRuntime = 0, 0
		s, now := debugged(func(j *placement.Job) { j.Priority = placement.DebugPriority })
		s.RemoveRunning("debug")
		full := berth.Capacity{CPUMilli: 1000, MemoryMiB: 1 << 10, GPUMilli: 1000}
		s.UpsertRunning(placement.Running{Job: "real", Tenant: "team", Class: "c", Version: 1, Attempt: 1, Preemptible: true,
			StartedAt: now.Add(-time.Hour), TimeLimit: 2 * time.Hour,
			Ranks: []berth.Grant{{Machine: "m", Epoch: 1, Capacity: full, GPUs: []berth.DeviceShare{{Index: 0, Milli: 1000}}}}})
		plan := placement.Planner{Policy: policy, Estimate: true}.Plan(s, now)
		if len(plan.Preempt) != 0 || len(plan.Start) != 0 || len(plan.Nominate) != 0 {
			t.Errorf("order %v: %+v", policy.Order, plan)
		}
		for _, e := range plan.Estimates {
			if e.Reserved {
				t.Errorf("order %v: a start is reserved for a debug job", policy.Order)
			}
		}
	}
}

// TestADebugJobComesLast checks that a debug job takes only the rest of the other jobs of a plan, in every order.
func TestADebugJobComesLast(t *testing.T) {
	t.Parallel()
	for _, policy := range policies() {
		policy.Aging, policy.Cross = time.Second, policy.Preempt // with jobs that age across bands, and without
		s, now := debugged(nil)
		s.RemoveRunning("debug")
		m, _ := s.Machine("m")
		m.Used, m.GPUs[0].UsedMilli = berth.Capacity{}, 0
		s.UpsertMachine(m)
		early := now.Add(-time.Hour)
		s.UpsertJob(placement.Job{ID: "debug", Tenant: "team", Class: "c", Version: 1, Priority: placement.DebugPriority,
			SubmittedAt: early, EligibleAt: early})
		plan := placement.Planner{Policy: policy}.Plan(s, now)
		if len(plan.Start) != 1 || plan.Start[0].Job != "job" {
			t.Errorf("order %v, across bands %t: %+v", policy.Order, policy.Cross, plan.Start)
		}
	}
}

// TestADebugJobAtItsQuotaEndsNoOtherHold checks that only the quota of other jobs counts as a stall, which ends holds.
func TestADebugJobAtItsQuotaEndsNoOtherHold(t *testing.T) {
	t.Parallel()
	for _, priority := range []int{placement.DebugPriority, 0} {
		s, now := debugged(func(j *placement.Job) { j.Tenant, j.Priority = "team", priority })
		s.UpsertTenant(placement.Tenant{ID: "team", MaxRunning: 1})
		plan := placement.Planner{Policy: placement.Policy{BandWidth: 100}}.Plan(s, now)
		want := "[] []"
		if priority >= 0 {
			want = "[team] [{debug team}]"
		}
		if got := fmt.Sprint(plan.Stalled, plan.EndHolds); got != want {
			t.Errorf("priority %d: stalled and ended are %s, want %s", priority, got, want)
		}
	}
}

// TestADebugJobIsInNoShare checks that the hold of a tenant does not put the tenant's next job behind a later job of
// another tenant. The quota of the tenant counts the hold, see TestADebugJobAtItsQuotaEndsNoOtherHold.
func TestADebugJobIsInNoShare(t *testing.T) {
	t.Parallel()
	for _, policy := range policies() {
		s, now := debugged(func(j *placement.Job) { j.Tenant = "team" })
		s.UpsertTenant(placement.Tenant{ID: "team"})
		full := berth.Capacity{CPUMilli: 1000, MemoryMiB: 1 << 10, GPUMilli: 1000}
		s.UpsertMachine(placement.Machine{ID: "o", Epoch: 1, State: berth.MachineReady, Total: full,
			GPUs: []placement.Device{{Index: 0, Model: "H100", MemoryMiB: 1, Healthy: true}}})
		later := now.Add(time.Second)
		s.UpsertJob(placement.Job{ID: "later", Tenant: "other", Class: "c", Version: 1, SubmittedAt: later,
			EligibleAt: later})
		plan := placement.Planner{Policy: policy}.Plan(s, later)
		if len(plan.Start) != 1 || plan.Start[0].Job != "job" || len(plan.Preempt) != 1 || plan.Preempt[0].For != "later" {
			t.Errorf("order %v: starts %+v, stops %+v", policy.Order, plan.Start, plan.Preempt)
		}
	}
}
