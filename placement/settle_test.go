package placement_test

import (
	"testing"
	"time"

	"berth"
	"berth/placement"
	"berth/spec"
)

// A job with alternatives that finds no place closes the class of its plain resources. A plain job of this class after
// it gets its reserved start all the same, in a fresh snapshot and in a kept one.
func TestAClosedClassKeepsItsReservedStart(t *testing.T) {
	t.Parallel()
	for _, members := range []int{1, 2} {
		for _, kept := range []bool{false, true} {
			s := placement.NewSnapshot()
			s.DefineClass("a", spec.Request{CPUMilli: 1, MemoryMiB: 1, GPUs: 1, GPUMilli: 1000, Members: members,
				Execution: spec.AtLeastOnce})
			s.DefineClass("b", spec.Request{CPUMilli: 2, MemoryMiB: 1, GPUs: 4, GPUMilli: 1000, Members: 1,
				Execution: spec.AtLeastOnce})
			s.UpsertTenant(placement.Tenant{ID: "t", Weight: 1, Limit: berth.Capacity{GPUMilli: 2000}})
			busy := berth.Grant{Machine: "m", Epoch: 1, Capacity: berth.Capacity{CPUMilli: 1, GPUMilli: 4000}}
			m := placement.Machine{ID: "m", Epoch: 1, State: berth.MachineReady, Used: busy.Capacity,
				Total: berth.Capacity{CPUMilli: 9000, MemoryMiB: 9000, GPUMilli: 4000}}
			for i := range 4 {
				m.GPUs = append(m.GPUs, placement.Device{Index: i, Model: "A", Healthy: true, UsedMilli: 1000})
				busy.GPUs = append(busy.GPUs, berth.DeviceShare{Index: i, Milli: 1000})
			}
			s.UpsertMachine(m)
			s.UpsertRunning(placement.Running{Job: "r", Attempt: 1, StartedAt: epoch, TimeLimit: time.Hour,
				Ranks: []berth.Grant{busy}})
			plain := job(2, "a", 500)
			p := placement.Planner{Estimate: true, Policy: placement.Policy{Backfill: 5, Order: placement.Priority}}
			if kept {
				s.UpsertJob(plain)
				p.Plan(s, epoch)
				s.RemoveJob(plain.ID)
			}
			choosy := job(1, "a", 900)
			choosy.Tenant, choosy.Alternatives = "t", []placement.Alternative{{Class: "a"}, {Class: "b"}}
			s.UpsertJob(choosy)
			s.UpsertJob(plain)
			reserved := false
			for _, e := range p.Plan(s, epoch).Estimates {
				reserved = reserved || e.Job == plain.ID && e.Reserved
			}
			if !reserved {
				t.Errorf("%d members, snapshot kept %v: no reserved start", members, kept)
			}
		}
	}
}
