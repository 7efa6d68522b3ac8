package placement_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"berth"
	"berth/placement"
	"berth/spec"
)

// nominated is a cluster of machines of one GPU. Each running job holds one of them. Job "w" waits for a GPU with
// the lowest priority and has no part in any nomination.
type nominated struct {
	*placement.Snapshot
	kept []placement.Nomination
}

func newNominated(running ...placement.Running) *nominated {
	s := &nominated{Snapshot: placement.NewSnapshot()}
	for i, r := range running {
		m := placement.Machine{ID: gpuOf(i).Machine, Epoch: 1, State: berth.MachineReady, Total: berth.Capacity{GPUMilli: 1000},
			GPUs: []placement.Device{{Model: "A", Healthy: true}}}
		if r.Job != "" {
			m.Used, m.GPUs[0].UsedMilli = m.Total, 1000
			r.Tenant, r.Version, r.Attempt, r.Ranks, r.StartedAt = "x", 1, 1, []berth.Grant{gpuOf(i)}, noon.Add(-time.Hour)
			s.UpsertRunning(r)
		}
		s.UpsertMachine(m)
	}
	for _, members := range []int{1, 2} {
		s.DefineClass(fmt.Sprint(members), spec.Request{GPUs: 1, GPUMilli: 1000, Members: members, Execution: spec.AtLeastOnce})
	}
	s.waits("w", 1, 100)
	return s
}

// gpuOf is the only GPU of a machine.
func gpuOf(machine int) berth.Grant {
	return berth.Grant{Machine: berth.MachineID(fmt.Sprintf("m%d", machine)), Epoch: 1, Capacity: berth.Capacity{GPUMilli: 1000},
		GPUs: []berth.DeviceShare{{Milli: 1000}}}
}

// waits adds a waiting job with a time limit of ten minutes.
func (s *nominated) waits(id berth.JobID, members, priority int) {
	s.UpsertJob(placement.Job{ID: id, Tenant: "x", Class: fmt.Sprint(members), Version: 1, Priority: priority,
		SubmittedAt: noon, EligibleAt: noon, TimeLimit: 10 * time.Minute})
}

// nominate keeps the GPU of a machine for a job.
func (s *nominated) nominate(id berth.JobID, machine int, victim berth.JobID, change func(*placement.Nomination)) {
	g := gpuOf(machine)
	m := placement.Nomination{For: id, Machine: g.Machine, Capacity: g.Capacity, GPUs: g.GPUs, Victim: victim}
	if change != nil {
		change(&m)
	}
	s.kept = append(s.kept, m)
	s.SetNominations(s.kept)
}

func stopping(id berth.JobID, after time.Duration) placement.Running {
	return placement.Running{Job: id, Priority: 100, Stopping: true, StopBy: noon.Add(after)}
}

// plan returns the plan and the reserved start of job w, from now on; -1 without one.
func (s *nominated) plan() (placement.Plan, time.Duration) {
	plan, starts, _ := placement.Planner{Policy: placement.Policy{Order: placement.Priority, BandWidth: 100, Backfill: 4, Preempt: true}}.
		Reserve(s.Snapshot, noon)
	if at, ok := starts["w"]; ok {
		return plan, at.Sub(noon)
	}
	return plan, -1
}

// TestANominatedJobHoldsAllItsCapacityFromTheLastStop checks that no start is reserved in capacity of a nominated
// job before the job has ended, although a part of that capacity is free earlier.
func TestANominatedJobHoldsAllItsCapacityFromTheLastStop(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]placement.Running{"free": {}, "released earlier": stopping("s0", time.Minute)} {
		s := newNominated(first, stopping("s1", 5*time.Minute))
		s.waits("g", 2, 500)
		s.nominate("g", 0, first.Job, nil)
		s.nominate("g", 1, "s1", nil)
		if _, at := s.plan(); at != 15*time.Minute {
			t.Errorf("%s: the start behind the nominated job is reserved after %v, want 15m", name, at)
		}
	}
}

// TestANominationNamesTheJobThatHoldsItsCapacity checks that capacity which a job still holds after an earlier order
// to stop is nominated as that job's, and that no start is reserved in it.
func TestANominationNamesTheJobThatHoldsItsCapacity(t *testing.T) {
	t.Parallel()
	s := newNominated(stopping("s", 5*time.Minute), placement.Running{Job: "p", Priority: 100, Preemptible: true})
	s.waits("g", 2, 500)
	plan, at := s.plan()
	var holders []berth.JobID
	for _, m := range plan.Nominate {
		holders = append(holders, m.Victim)
	}
	if !slices.Equal(holders, []berth.JobID{"s", "p"}) || at != 15*time.Minute {
		t.Errorf("the holders are %q and the start behind the gang is reserved after %v, want s, p and 15m", holders, at)
	}
}

// TestAPreemptionForARepairKeepsItsCapacityOnce checks that a gang which preempts others for its repair gives up
// the nominations of the repair: those of the preemption include the capacity that the gang needs.
func TestAPreemptionForARepairKeepsItsCapacityOnce(t *testing.T) {
	t.Parallel()
	s := newNominated(placement.Running{}, placement.Running{Job: "p", Priority: 100, Preemptible: true})
	s.waits("g", 2, 500)
	s.nominate("g", 0, "", func(m *placement.Nomination) { m.Repair, m.ExpiresAt = true, noon.Add(time.Minute) })
	s.waits("w2", 1, 100)
	plan, starts, list := placement.Planner{Policy: placement.Policy{Order: placement.Priority, BandWidth: 100, Backfill: 4, Preempt: true}}.
		Reserve(s.Snapshot, noon)
	if len(plan.Preempt) != 1 || len(plan.Nominate) != 2 || len(plan.Release) != 1 {
		t.Errorf("the plan has %d preemptions, %d nominations and releases %d of the repair, want 1, 2 and 1",
			len(plan.Preempt), len(plan.Nominate), len(plan.Release))
	}
	for id, at := range starts {
		if at.Sub(noon) != 10*time.Minute {
			t.Errorf("%s has a start reserved after %v, want 10m: %+v", id, at.Sub(noon), list)
		}
	}
	if len(starts) != 2 || len(list) != 2 || list[0].Grant.Machine == list[1].Grant.Machine {
		t.Errorf("the starts of w and w2 are reserved at %v: %+v", starts, list)
	}
}

// TestAGangUnderRepairHoldsItsCapacityUntilItsNominationsExpire checks that no start is reserved earlier in that
// capacity: the gang still lacks a place for one member, and its start is unknown.
func TestAGangUnderRepairHoldsItsCapacityUntilItsNominationsExpire(t *testing.T) {
	t.Parallel()
	s := newNominated(placement.Running{}, placement.Running{Job: "p", Priority: 900})
	s.waits("g", 2, 500)
	s.nominate("g", 0, "", func(m *placement.Nomination) { m.Repair, m.ExpiresAt = true, noon.Add(30*time.Minute) })
	if _, at := s.plan(); at != 30*time.Minute {
		t.Errorf("the start in the capacity of the repair is reserved after %v, want 30m", at)
	}
}

// TestCapacityOfARepairIsNominatedOnce checks that the capacity which a stopping gang keeps for its repair is not
// nominated for a job that preempts others.
func TestCapacityOfARepairIsNominatedOnce(t *testing.T) {
	t.Parallel()
	s := newNominated(stopping("k", 5*time.Minute), placement.Running{Job: "p", Priority: 100, Preemptible: true})
	s.nominate("k", 0, "k", func(m *placement.Nomination) { m.Repair, m.ExpiresAt = true, noon.Add(6*time.Minute) })
	s.waits("g", 2, 500)
	plan, _ := s.plan()
	for _, m := range plan.Nominate {
		if m.Victim == "k" {
			t.Errorf("the GPU that k keeps for its repair is nominated for %s", m.For)
		}
	}
}

// TestAJobAwaitsNoVictimThatRunsOn checks that a job preempts the holder of capacity nominated for it if nobody has
// ordered that holder to stop.
func TestAJobAwaitsNoVictimThatRunsOn(t *testing.T) {
	t.Parallel()
	s := newNominated(placement.Running{Job: "v", Priority: 100, Preemptible: true})
	s.waits("g", 1, 500)
	s.nominate("g", 0, "v", nil)
	plan, _ := s.plan()
	if len(plan.Preempt) != 1 || plan.Preempt[0].Job != "v" {
		t.Errorf("preempts %+v, want v", plan.Preempt)
	}
}

// TestAJobThatPreemptsAgainStopsOnlyWhatItLacks checks that a job with nominations that give it a part of its room
// preempts as few others as it lacks, and that the new nominations replace the earlier ones.
func TestAJobThatPreemptsAgainStopsOnlyWhatItLacks(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]placement.Running{"free": {}, "not yet released": stopping("s", 5*time.Minute)} {
		running := []placement.Running{first}
		for _, id := range []berth.JobID{"p1", "p2"} {
			running = append(running, placement.Running{Job: id, Priority: 100, Preemptible: true})
		}
		s := newNominated(running...)
		s.waits("g", 2, 500)
		s.nominate("g", 0, first.Job, nil)
		plan, at := s.plan()
		if len(plan.Preempt) != 1 || len(plan.Nominate) != 2 || len(plan.Release) != 1 {
			t.Errorf("%s: the plan has %d preemptions, %d nominations and releases %d, want 1, 2 and 1",
				name, len(plan.Preempt), len(plan.Nominate), len(plan.Release))
		}
		want := 10 * time.Minute
		if first.Job != "" {
			want = 15 * time.Minute
		}
		if at != want {
			t.Errorf("%s: the start behind the job is reserved after %v, want %v", name, at, want)
		}
	}
}

// TestAReplacedNominationReservesNothing checks that capacity is not reserved for the nominations that a job has had
// before it preempted again. A victim of these without a known end ran on, so that they had no end.
func TestAReplacedNominationReservesNothing(t *testing.T) {
	t.Parallel()
	s := newNominated(stopping("s", 5*time.Minute), placement.Running{Job: "v", Priority: 100, Preemptible: true})
	s.waits("g", 2, 500)
	s.nominate("g", 0, "s", nil)
	s.nominate("g", 1, "v", nil)
	s.waits("w2", 1, 100)
	plan, starts, _ := placement.Planner{Policy: placement.Policy{Order: placement.Priority, BandWidth: 100, Backfill: 4, Preempt: true}}.
		Reserve(s.Snapshot, noon)
	for _, id := range []berth.JobID{"w", "w2"} {
		if at := starts[id].Sub(noon); at != 15*time.Minute {
			t.Errorf("%s has a start reserved after %v, want 15m; the plan stops %v", id, at, victimsOf(plan))
		}
	}
}

// TestAJobThatPreemptsAgainDelaysNoReservedStart checks that a job does not preempt again if it would then start later, and
// a reserved start depends on the time at which the job leaves the capacity nominated for it.
func TestAJobThatPreemptsAgainDelaysNoReservedStart(t *testing.T) {
	t.Parallel()
	s := newNominated(placement.Running{}, stopping("s", 5*time.Minute),
		placement.Running{Job: "p", Priority: 100, Preemptible: true, PreemptedFor: []berth.JobID{"head"}})
	request := spec.Request{GPUs: 1, GPUMilli: 1000, Members: 1, Avoid: []berth.MachineID{"m1"}, Execution: spec.AtLeastOnce}
	s.DefineClass("head", request)
	s.UpsertJob(placement.Job{ID: "head", Tenant: "x", Class: "head", Version: 1, Priority: 900, SubmittedAt: noon, EligibleAt: noon})
	request.Members, request.Avoid = 3, nil
	s.DefineClass("3", request)
	s.waits("g", 3, 500)
	s.nominate("g", 0, "", nil)
	plan, starts, _ := placement.Planner{Policy: placement.Policy{Order: placement.Priority, BandWidth: 100, Backfill: 1, Preempt: true}}.
		Reserve(s.Snapshot, noon)
	if at := starts["head"].Sub(noon); at != 10*time.Minute || len(plan.Preempt) != 0 {
		t.Errorf("the start of the head is reserved after %v, want 10m; the plan stops %v", at, victimsOf(plan))
	}
}

// TestWhatAPreemptionLeavesOfANominationStaysKept checks that capacity which a job no longer needs after it has preempted
// again is nominated for no other job in the same plan: the database may refuse the preemption.
func TestWhatAPreemptionLeavesOfANominationStaysKept(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]placement.Running{"free": {}, "not yet released": stopping("s", 5*time.Minute)} {
		victim := func(id berth.JobID) placement.Running {
			return placement.Running{Job: id, Priority: 100, Preemptible: true}
		}
		s := newNominated(first, placement.Running{Job: "firm", Priority: 900}, victim("p1"), victim("p2"), victim("p3"))
		for i, rack := range []string{"a", "a", "b", "b", "c"} {
			m, _ := s.Machine(gpuOf(i).Machine)
			m.Labels = map[string]string{"rack": rack}
			s.UpsertMachine(m)
		}
		s.DefineClass("rack", spec.Request{GPUs: 1, GPUMilli: 1000, Members: 2, SameLabel: "rack", Execution: spec.AtLeastOnce})
		s.UpsertJob(placement.Job{ID: "g", Tenant: "x", Class: "rack", Version: 1, Priority: 800, SubmittedAt: noon, EligibleAt: noon})
		s.nominate("g", 0, first.Job, nil)
		s.waits("f", 2, 500)
		plan, _ := s.plan()
		if len(plan.Release) != 1 || len(plan.Preempt) != 2 || plan.Preempt[0].For != "g" || plan.Preempt[1].For != "g" {
			t.Errorf("%s: releases %+v and preempts %+v, want one and two for g", name, plan.Release, plan.Preempt)
		}
		for _, m := range plan.Nominate {
			if m.For != "g" {
				t.Errorf("%s: %s is nominated for %s", name, m.Machine, m.For)
			}
		}
	}
}

// TestADroppedNominationDelaysNoStart checks that a job is expected to start when its victims have stopped,
// whatever an expired nomination names.
func TestADroppedNominationDelaysNoStart(t *testing.T) {
	t.Parallel()
	s := newNominated(stopping("s0", time.Minute), stopping("s1", 30*time.Minute))
	s.waits("g", 1, 500)
	s.nominate("g", 0, "s0", nil)
	s.nominate("g", 1, "s1", func(m *placement.Nomination) { m.ExpiresAt = noon })
	if _, at := s.plan(); at != 11*time.Minute {
		t.Errorf("the start behind the job is reserved after %v, want 11m", at)
	}
}

// TestAStoppingGangKeepsItsCapacityForItsRepair checks that no start is reserved in the capacity of a stopping gang
// before the nominations of its repair expire.
func TestAStoppingGangKeepsItsCapacityForItsRepair(t *testing.T) {
	t.Parallel()
	s := newNominated(stopping("k", 5*time.Minute), placement.Running{Job: "p", Priority: 900})
	s.nominate("k", 0, "k", func(m *placement.Nomination) { m.Repair, m.ExpiresAt = true, noon.Add(6*time.Minute) })
	if _, at := s.plan(); at != 6*time.Minute {
		t.Errorf("the start in the capacity of the gang is reserved after %v, want 6m", at)
	}
}

// TestAStopWithoutATimeEndsByTheLimit checks that the capacity of a job that stops at an unknown time is not expected
// before the limit of the job.
func TestAStopWithoutATimeEndsByTheLimit(t *testing.T) {
	t.Parallel()
	s := newNominated(placement.Running{Job: "s", Priority: 100, Stopping: true, TimeLimit: 90 * time.Minute})
	if _, at := s.plan(); at != 30*time.Minute {
		t.Errorf("the start behind the stop is reserved after %v, want 30m", at)
	}
}
