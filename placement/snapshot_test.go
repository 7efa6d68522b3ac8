package placement_test

import (
	"testing"
	"time"

	"berth"
	"berth/placement"
	"berth/spec"
)

// TestARemovedMachineDropsItsCache: a machine that joins again has reported no
// cache yet.
func TestARemovedMachineDropsItsCache(t *testing.T) {
	t.Parallel()
	s, now := placement.NewSnapshot(), time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	machine := placement.Machine{
		ID: "m", State: berth.MachineReady, Total: berth.Capacity{CPUMilli: 1000, MemoryMiB: 1},
	}
	s.DefineClass("c", spec.Request{CPUMilli: 1000, MemoryMiB: 1})
	s.UpsertJob(placement.Job{ID: "j", Class: "c", SubmittedAt: now, Data: []spec.DataKey{1}})
	s.UpsertMachine(machine)
	s.SetCache("m", []spec.CachedData{{Key: 1, MiB: 1}})
	known := func() int {
		w, ok := placement.Planner{}.Why(s, "j", now)
		if !ok {
			t.Fatal("the job does not wait")
		}
		return len(w.Data)
	}
	if n := known(); n != 1 {
		t.Fatalf("%d machines hold data of the job, want 1", n)
	}
	s.RemoveMachine("m")
	s.UpsertMachine(machine)
	if n := known(); n != 0 {
		t.Errorf("%d machines hold data of the job after the removal, want 0", n)
	}
}
