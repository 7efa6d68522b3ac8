package main

import (
	"testing"

	"berth"
	"berth/wire"
)

// Users see their own jobs on a machine only, and still learn that jobs keep it from being drained.
func TestWorkLeftCountsJobsThatTheCallerDoesNotSee(t *testing.T) {
	t.Parallel()
	total := berth.Capacity{CPUMilli: 4000}
	for _, c := range []struct {
		m    wire.Machine
		want string
	}{
		{wire.Machine{Capacity: total, Free: berth.Capacity{CPUMilli: 3000}}, "jobs of other tenants left"},
		{wire.Machine{Capacity: total, Free: total}, "waiting for logs, outputs or the removal of containers"},
		{wire.Machine{Capacity: total, Jobs: []wire.MachineJob{{Job: "a"}, {Job: "a", Rank: 1}}}, "1 job left"},
	} {
		if got := workLeft(c.m); got != c.want {
			t.Errorf("%+v: %q, want %q", c.m, got, c.want)
		}
	}
}
