package placement_test

import (
	"testing"
	"time"

	"berth"
	"berth/placement"
	"berth/spec"
)

// Holders are the jobs on machines that the class may use, the earliest known end first.
func TestHoldersAreTheJobsOnUsableMachines(t *testing.T) {
	t.Parallel()
	s := placement.NewSnapshot()
	for id, region := range map[berth.MachineID]string{"m1": "eu", "m2": "eu", "m3": "us"} {
		s.UpsertMachine(placement.Machine{ID: id, Epoch: 1, State: berth.MachineReady, Region: region,
			Total: berth.Capacity{CPUMilli: 4000, MemoryMiB: 4096},
			Used:  berth.Capacity{CPUMilli: 4000, MemoryMiB: 400}})
	}
	s.DefineClass("eu", spec.Request{CPUMilli: 2000, MemoryMiB: 100, Members: 1, Regions: []string{"eu"}})
	for _, r := range []struct {
		job   berth.JobID
		limit time.Duration
		on    []berth.MachineID
	}{
		{"endless", 0, []berth.MachineID{"m1"}}, {"late", time.Hour, []berth.MachineID{"m1"}},
		{"soon", time.Minute, []berth.MachineID{"m2", "m2", "m1", "m3"}},
		{"abroad", time.Second, []berth.MachineID{"m3"}},
	} {
		x := placement.Running{Job: r.job, Tenant: "t", Class: "eu", StartedAt: epoch, TimeLimit: r.limit}
		for _, m := range r.on {
			x.Ranks = append(x.Ranks, berth.Grant{Machine: m, Epoch: 1,
				Capacity: berth.Capacity{CPUMilli: 1000, MemoryMiB: 100}})
		}
		s.UpsertRunning(x)
	}
	got := s.Holders("eu")
	if len(got) != 3 || got[0].Job != "soon" || got[1].Job != "late" || got[2].Job != "endless" {
		t.Fatalf("%+v", got)
	}
	if on := got[0].Machines; len(on) != 2 || on[0] != "m1" || on[1] != "m2" ||
		!got[0].EndsBy.Equal(epoch.Add(time.Minute)) || !got[2].EndsBy.IsZero() {
		t.Errorf("%+v", got)
	}
	if list := s.Holders("unknown"); list != nil {
		t.Errorf("%+v", list)
	}
}
