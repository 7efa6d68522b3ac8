package placement_test

import (
	"slices"
	"strings"
	"testing"

	"berth"
	"berth/placement"
	"berth/spec"
)

const oldRunc = "runc 1.1.5 is older than 1.1.12, which fixes CVE-2024-21626"

// belowFloors returns a snapshot with machines of 8 cores, m1 below the security floors, and with the tenant guests, which is
// untrusted, and the tenant interns below it.
func belowFloors(machines int) *placement.Snapshot {
	s := wholes(machines)
	s.UpsertTenant(placement.Tenant{ID: "guests", Untrusted: true})
	s.UpsertTenant(placement.Tenant{ID: "interns", Parent: "guests"})
	s.UpsertTenant(placement.Tenant{ID: "team"})
	placement.SetPools(s, nil)
	m, _ := s.Machine("m1")
	m.Unmet = oldRunc
	s.UpsertMachine(m)
	return s
}

// waitsFor adds a waiting job of 6 cores.
func waitsFor(s *placement.Snapshot, id berth.JobID, t berth.TenantID) {
	r := spec.Request{CPUMilli: 6000, Members: 1}
	s.DefineClass(r.Class(), r)
	s.UpsertJob(placement.Job{ID: id, Tenant: t, Class: r.Class(), Version: 1, SubmittedAt: epoch, EligibleAt: epoch})
}

func TestUntrustedJobsStartOnMachinesThatMeetTheFloors(t *testing.T) {
	t.Parallel()
	for tenant, want := range map[berth.TenantID]bool{"guests": false, "interns": false, "team": true, "": true} {
		for _, pack := range []placement.Pack{placement.BestFit, placement.LeastFragmentation} {
			s := belowFloors(1)
			waitsFor(s, "j", tenant)
			p := placement.Planner{Pack: pack, Demand: true}.Plan(s, epoch)
			if got := len(p.Start) == 1; got != want {
				t.Errorf("a job of %q: starts %v", tenant, startedBy(p))
			}
		}
	}
	s := belowFloors(2)
	waitsFor(s, "a", "guests")
	waitsFor(s, "b", "guests")
	p := placement.Planner{}.Plan(s, epoch)
	if len(p.Start) != 1 || p.Start[0].Ranks[0].Machine != "m2" {
		t.Errorf("two machines, one below the floors: %+v", p.Start)
	}
}

func TestTrustAndVerdictsChangePlans(t *testing.T) {
	t.Parallel()
	s := belowFloors(1)
	waitsFor(s, "j", "interns")
	starts := func() bool { return len(placement.Planner{}.Plan(s, epoch).Start) == 1 }
	verdict := func(unmet string) {
		m, _ := s.Machine("m1")
		m.Unmet = unmet
		s.UpsertMachine(m)
	}
	trust := func(untrusted bool) {
		s.UpsertTenant(placement.Tenant{ID: "guests", Untrusted: untrusted})
		placement.SetPools(s, nil)
	}
	for i, step := range []struct {
		do   func()
		want bool
	}{
		{func() {}, false}, {func() { verdict("") }, true}, {func() { verdict("another reason") }, false},
		{func() { verdict("a third reason") }, false}, {func() { trust(false) }, true}, {func() { trust(true) }, false},
		{func() { verdict("") }, true},
	} {
		step.do()
		if got := starts(); got != step.want {
			t.Errorf("step %d: starts %v, want %v", i, got, step.want)
		}
	}
}

func TestAJobBelowTheFloorsIsExplained(t *testing.T) {
	t.Parallel()
	s := belowFloors(2)
	m, _ := s.Machine("m2")
	m.Used = berth.Capacity{CPUMilli: 8000}
	s.UpsertMachine(m)
	waitsFor(s, "j", "guests")
	w, _ := placement.Planner{}.Why(s, "j", epoch)
	at := slices.IndexFunc(w.Fit.Clauses, func(c placement.Clause) bool { return c.Name == "floors" })
	if at < 0 || w.Fit.Clauses[at].After != 1 || !strings.Contains(w.Fit.Clauses[at].Text, "m1: "+oldRunc) {
		t.Errorf("explained as %+v", w.Fit)
	}
	s.RemoveMachine("m2")
	w, _ = placement.Planner{}.Why(s, "j", epoch)
	if w.Fit.Unsatisfiable() || w.Fit.FitEver != 1 || !strings.Contains(w.Fit.Summary, "m1: "+oldRunc) {
		t.Errorf("on a machine below the floors alone: %+v", w.Fit)
	}
	waitsFor(s, "trusted", "team")
	w, _ = placement.Planner{}.Why(s, "trusted", epoch)
	if slices.ContainsFunc(w.Fit.Clauses, func(c placement.Clause) bool { return c.Name == "floors" && c.After > 0 }) {
		t.Errorf("a trusted job is explained as %+v", w.Fit)
	}
}

// A job with alternatives keeps to the floors with each of them.
func TestAlternativesKeepToTheFloors(t *testing.T) {
	t.Parallel()
	s := belowFloors(1)
	first, second := spec.Request{CPUMilli: 7000, Members: 1}, spec.Request{CPUMilli: 5000, Members: 1}
	for _, r := range []spec.Request{first, second} {
		s.DefineClass(r.Class(), r)
	}
	s.UpsertJob(placement.Job{ID: "j", Tenant: "guests", Class: first.Class(), Version: 1, SubmittedAt: epoch, EligibleAt: epoch,
		Alternatives: []placement.Alternative{{Class: first.Class()}, {Class: second.Class()}}})
	if p := (placement.Planner{}).Plan(s, epoch); len(p.Start) != 0 {
		t.Errorf("starts %+v", p.Start)
	}
	m, _ := s.Machine("m1")
	m.Unmet = ""
	s.UpsertMachine(m)
	if p := (placement.Planner{}).Plan(s, epoch); len(p.Start) != 1 {
		t.Error("does not start on a machine that meets the floors")
	}
}
