package placement_test

import (
	"fmt"
	"testing"
	"time"

	"berth"
	"berth/placement"
	"berth/spec"
)

// stoppingGangs is a cluster on which gangs of 512 stop, and 40 jobs of unlike classes wait that may preempt one job
// each, beside the stopping gangs.
func stoppingGangs(gangs int) *placement.Snapshot {
	const members, total, each = 512, 64000, 10
	s := placement.NewSnapshot()
	grant := func(m berth.MachineID, cpu int64) berth.Grant {
		return berth.Grant{Machine: m, Epoch: 1, Capacity: berth.Capacity{CPUMilli: cpu}}
	}
	run := func(id string, preemptible, stopping bool, ranks ...berth.Grant) {
		r := placement.Running{Job: berth.JobID(id), Tenant: "x", Version: 1, Attempt: 1, Priority: 100,
			Preemptible: preemptible, Ranks: ranks, StartedAt: noon.Add(-time.Hour), Stopping: stopping}
		if stopping {
			r.StopBy = noon.Add(time.Minute)
		}
		s.UpsertRunning(r)
	}
	ranks := make([][]berth.Grant, gangs)
	for i := range members {
		id := berth.MachineID(fmt.Sprintf("machine-with-a-name-%04d", i))
		for k := range gangs {
			ranks[k] = append(ranks[k], grant(id, each))
		}
		run(fmt.Sprintf("p%d", i), i < 64, false, grant(id, total-each*int64(gangs)))
		all := berth.Capacity{CPUMilli: total}
		s.UpsertMachine(placement.Machine{ID: id, Epoch: 1, State: berth.MachineReady, Total: all, Used: all})
	}
	for k := range gangs {
		run(fmt.Sprintf("s%d", k), false, true, ranks[k]...)
	}
	for c := range 40 {
		s.DefineClass(fmt.Sprint(c), spec.Request{CPUMilli: 40000 + int64(c), Members: 1, Execution: spec.AtLeastOnce})
		s.UpsertJob(placement.Job{ID: berth.JobID(fmt.Sprintf("j%02d", c)), Tenant: "x", Class: fmt.Sprint(c), Version: 1,
			Priority: 900, SubmittedAt: noon, EligibleAt: noon})
	}
	return s
}

// TestPreemptionBesideStoppingGangsCostsLittle checks that each preemption of a plan recomputes only the machines that
// it touches. The plan takes about 1 s; it took 33 s when each preemption recomputed all stopping gangs.
func TestPreemptionBesideStoppingGangsCostsLittle(t *testing.T) {
	s := stoppingGangs(64)
	began := time.Now()
	plan := placement.Planner{Policy: preempting}.Plan(s, noon)
	if took := time.Since(began); took > 10*time.Second || len(plan.Preempt) != 32 {
		t.Errorf("a plan of %d preemptions beside 64 stopping gangs took %v, want 32 in at most 10 s", len(plan.Preempt), took)
	}
}
