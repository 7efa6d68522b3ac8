package placement_test

import (
	"slices"
	"testing"
	"time"

	"berth"
	"berth/placement"
	"berth/spec"
)

// head adds the first job in the queue, which may use no machine of avoid.
func head(s *nominated, avoid ...berth.MachineID) {
	s.DefineClass("head", spec.Request{GPUs: 1, GPUMilli: 1000, Members: 1, Avoid: avoid, Execution: spec.AtLeastOnce})
	s.UpsertJob(placement.Job{ID: "head", Tenant: "x", Class: "head", Version: 1, Priority: 900, SubmittedAt: noon,
		EligibleAt: noon})
}

// planWith returns the plan with that many reserved starts.
func planWith(s *nominated, backfill int) placement.Plan {
	p := placement.Policy{Order: placement.Priority, BandWidth: 100, Backfill: backfill, Preempt: true}
	return placement.Planner{Policy: p}.Plan(s.Snapshot, noon)
}

// TestAJobThatNeedsNoVictimsAnyLongerKeepsItsPlaces checks that a job which gets room from its own nominations and a
// stopping job has that room nominated: otherwise a lower job preempts others and takes it.
func TestAJobThatNeedsNoVictimsAnyLongerKeepsItsPlaces(t *testing.T) {
	t.Parallel()
	s := newNominated(placement.Running{}, stopping("u", 5*time.Minute), placement.Running{Job: "p", Priority: 100, Preemptible: true})
	s.waits("g", 2, 500)
	s.nominate("g", 0, "", nil)
	s.waits("j2", 2, 400)
	for _, m := range planWith(s, 0).Nominate {
		if m.For == "j2" {
			t.Errorf("%s of %q is nominated for j2", m.Machine, m.Victim)
		}
	}
}

// TestAnUnrelatedStopDelaysNothing checks that a job preempts again if only a job whose capacity it does not count on
// stops at an unknown time on its machine.
func TestAnUnrelatedStopDelaysNothing(t *testing.T) {
	t.Parallel()
	s := newNominated(placement.Running{}, placement.Running{Job: "p", Priority: 100, Preemptible: true, PreemptedFor: []berth.JobID{"head"}})
	m, _ := s.Machine("m1")
	m.Total.GPUMilli, m.Used.GPUMilli = 2000, 2000
	m.GPUs = append(m.GPUs, placement.Device{Index: 1, Model: "A", Healthy: true, UsedMilli: 1000})
	s.UpsertMachine(m)
	z := berth.Grant{Machine: "m1", Epoch: 1, Capacity: berth.Capacity{GPUMilli: 1000}, GPUs: []berth.DeviceShare{{Index: 1, Milli: 1000}}}
	s.UpsertRunning(placement.Running{Job: "z", Tenant: "x", Version: 1, Attempt: 1, Priority: 100, Stopping: true,
		StartedAt: noon.Add(-time.Hour), Ranks: []berth.Grant{z}})
	s.waits("g", 2, 500)
	s.waits("o", 1, 950)
	s.nominate("g", 0, "", nil)
	s.kept = append(s.kept, placement.Nomination{For: "o", Machine: "m1", Victim: "z", Capacity: z.Capacity, GPUs: z.GPUs})
	s.SetNominations(s.kept)
	head(s, "m1")
	if got := victimsOf(planWith(s, 1)); !slices.Equal(got, []berth.JobID{"p"}) {
		t.Errorf("stops %v, want p", got)
	}
}

// TestAFailedSearchKeepsItsPromises checks that capacity nominated for a job is not promised to another after the job
// has found no victims.
func TestAFailedSearchKeepsItsPromises(t *testing.T) {
	t.Parallel()
	s := newNominated(stopping("s", 5*time.Minute), placement.Running{Job: "p", Priority: 450, Preemptible: true, PreemptedFor: []berth.JobID{"g"}})
	s.DefineClass("3", spec.Request{GPUs: 1, GPUMilli: 1000, Members: 3, Execution: spec.AtLeastOnce})
	s.waits("g", 3, 900)
	s.nominate("g", 0, "s", nil)
	s.waits("j2", 2, 800)
	for _, m := range planWith(s, 0).Nominate {
		if m.Victim == "s" {
			t.Errorf("%s of s is nominated for g and for %s", m.Machine, m.For)
		}
	}
}

// repairs adds gang g, which is under repair: it keeps m0 for a minute and may not use m2, where its member has failed.
func (s *nominated) repairs() {
	s.DefineClass("repaired", spec.Request{GPUs: 1, GPUMilli: 1000, Members: 2, Avoid: []berth.MachineID{"m2"}, Execution: spec.AtLeastOnce})
	s.UpsertJob(placement.Job{ID: "g", Tenant: "x", Class: "repaired", Version: 1, Priority: 500, SubmittedAt: noon, EligibleAt: noon,
		TimeLimit: 10 * time.Minute})
	s.nominate("g", 0, "", func(m *placement.Nomination) { m.Repair, m.ExpiresAt = true, noon.Add(time.Minute) })
}

// TestARepairYieldsAlsoWhileOtherJobsStop checks that a gang under repair which gets the rest of its room from a job that
// stops keeps the nominations of the repair as they are: they expire after a minute, and end for another gang that could
// start with their capacity.
func TestARepairYieldsAlsoWhileOtherJobsStop(t *testing.T) {
	t.Parallel()
	for _, priority := range []int{400, 900} {
		s := newNominated(placement.Running{}, stopping("u", 5*time.Minute), placement.Running{})
		s.RemoveJob("w") // it would take m2
		s.repairs()
		s.waits("big", 2, priority)
		plan := planWith(s, 0)
		if !slices.Equal(plan.Yield, []berth.JobID{"g"}) || len(plan.Nominate) != 0 {
			t.Errorf("other gang with priority %d: yields %v and nominates %+v, want g and nothing", priority, plan.Yield, plan.Nominate)
		}
	}
}

// TestAJobOfOneMemberThatNeedsNoVictimsKeepsItsPlace checks that a job whose nominated machine is lost, while another job
// releases enough, has that place nominated: otherwise a lower job preempts others and takes it.
func TestAJobOfOneMemberThatNeedsNoVictimsKeepsItsPlace(t *testing.T) {
	t.Parallel()
	s := newNominated(placement.Running{}, stopping("u", 5*time.Minute), placement.Running{Job: "p", Priority: 100, Preemptible: true})
	s.waits("g", 1, 500)
	m, _ := s.Machine("m0")
	m.State = berth.MachineDraining
	s.UpsertMachine(m)
	s.nominate("g", 0, "", nil)
	s.waits("j2", 2, 400)
	plan := planWith(s, 0)
	if n := plan.Nominate; len(n) != 1 || n[0].For != "g" || n[0].Machine != "m1" || n[0].Victim != "u" || len(plan.Preempt) != 0 {
		t.Errorf("nominates %+v and stops %v, want m1 of u for g and nothing", n, victimsOf(plan))
	}
}
