package placement_test

import (
	"slices"
	"strings"
	"testing"

	"berth"
	"berth/placement"
	"berth/spec"
)

// twoPools returns a snapshot with a machine in pool p and one in pool q, and with tenants a, b and
// below, which is a tenant below a.
func twoPools() *placement.Snapshot {
	s := placement.NewSnapshot()
	for _, t := range []placement.Tenant{{ID: "a", Weight: 1}, {ID: "b", Weight: 1}, {ID: "below", Parent: "a", Weight: 1}} {
		s.UpsertTenant(t)
	}
	for _, pool := range []string{"p", "q"} {
		s.UpsertMachine(placement.Machine{ID: berth.MachineID("m-" + pool), Epoch: 1, State: berth.MachineReady, Pool: pool,
			Total: berth.Capacity{CPUMilli: 4000}})
	}
	return s
}

// submitTo adds a waiting job that fits either machine.
func submitTo(s *placement.Snapshot, id berth.JobID, t berth.TenantID) {
	r := spec.Request{CPUMilli: 3000, Members: 1}
	s.DefineClass(r.Class(), r)
	s.UpsertJob(placement.Job{ID: id, Tenant: t, Class: r.Class(), SubmittedAt: epoch, EligibleAt: epoch})
}

// starts returns where the next plan starts jobs, as "job machine".
func starts(s *placement.Snapshot) (list []string) {
	for _, start := range (placement.Planner{}).Plan(s, epoch).Start {
		list = append(list, string(start.Job)+" "+string(start.Ranks[0].Machine))
	}
	slices.Sort(list)
	return list
}

func TestAPoolTakesJobsOfItsTenantsOnly(t *testing.T) {
	t.Parallel()
	p := func(tenants ...berth.TenantID) placement.Pool { return placement.Pool{Name: "p", Tenants: tenants} }
	q := func(tenants ...berth.TenantID) placement.Pool { return placement.Pool{Name: "q", Tenants: tenants} }
	for name, x := range map[string]struct {
		tenant berth.TenantID
		pools  []placement.Pool
		want   []string
	}{
		"no rules":                   {"b", nil, []string{"job m-p"}},
		"a pool of the tenant":       {"b", []placement.Pool{p("b"), q("a")}, []string{"job m-p"}},
		"a pool of another tenant":   {"b", []placement.Pool{p("a")}, []string{"job m-q"}},
		"a pool of the parent":       {"below", []placement.Pool{p("b"), q("a")}, []string{"job m-q"}},
		"a pool of the tenant below": {"a", []placement.Pool{p("below")}, []string{"job m-q"}},
		"pools of no tenant":         {"b", []placement.Pool{p(), q()}, nil},
		"several tenants":            {"b", []placement.Pool{p("a", "below"), q("a", "b")}, []string{"job m-q"}},
	} {
		before, after := twoPools(), twoPools()
		placement.SetPools(before, x.pools)
		submitTo(before, "job", x.tenant)
		submitTo(after, "job", x.tenant)
		placement.SetPools(after, x.pools)
		if got := starts(before); !slices.Equal(got, x.want) {
			t.Errorf("%s, with the rules before the job: starts %v, want %v", name, got, x.want)
		}
		if got := starts(after); !slices.Equal(got, x.want) {
			t.Errorf("%s, with the job before the rules: starts %v, want %v", name, got, x.want)
		}
	}
}

func TestWaitingJobsFollowChangesOfPoolsAndTenants(t *testing.T) {
	t.Parallel()
	s := twoPools()
	submitTo(s, "job", "below")
	rules := []placement.Pool{{Name: "p", Tenants: []berth.TenantID{"b"}}, {Name: "q", Tenants: []berth.TenantID{"b"}}}
	placement.SetPools(s, rules)
	if got := starts(s); got != nil {
		t.Errorf("both pools are closed, and yet: %v", got)
	}
	s.UpsertTenant(placement.Tenant{ID: "below", Parent: "b", Weight: 1})
	placement.SetPools(s, rules)
	if got := starts(s); len(got) != 1 {
		t.Errorf("the tenant has moved below b, which both pools take: starts %v", got)
	}
	s.UpsertTenant(placement.Tenant{ID: "below", Parent: "a", Weight: 1})
	placement.SetPools(s, rules)
	if got := starts(s); got != nil {
		t.Errorf("the tenant has moved back: starts %v", got)
	}
	placement.SetPools(s, nil)
	if got := starts(s); len(got) != 1 {
		t.Errorf("no pool has a rule any more: starts %v", got)
	}
}

func TestAClosedPoolIsNamedAsTheReason(t *testing.T) {
	t.Parallel()
	s := twoPools()
	placement.SetPools(s, []placement.Pool{{Name: "p", Tenants: []berth.TenantID{"a"}}})
	s.RemoveMachine("m-q")
	submitTo(s, "job", "b")
	w, ok := placement.Planner{}.Why(s, "job", epoch)
	if !ok {
		t.Fatal("the job is not known")
	}
	const reason = "pool p takes tenant a only"
	at := slices.IndexFunc(w.Fit.Clauses, func(c placement.Clause) bool { return c.Name == "pool_tenants" })
	if at < 0 || w.Fit.Clauses[at].After != 1 || w.Fit.FitEver != 0 || len(w.Fit.Candidates) > 0 ||
		!strings.Contains(w.Fit.Summary, reason) || !strings.Contains(w.Fit.Short, reason) {
		t.Errorf("explained as %+v", w.Fit)
	}
	r := spec.Request{CPUMilli: 1000, Members: 1}
	fresh := placement.Job{ID: "new", Tenant: "b", Class: r.Class(), SubmittedAt: epoch, EligibleAt: epoch}
	if w := (placement.Planner{}).WhyNew(s, fresh, r, epoch); w.Fit.FitEver != 0 {
		t.Errorf("a job that is about to be submitted: %+v", w.Fit)
	}
	fresh.Tenant = "below"
	if w := (placement.Planner{}).WhyNew(s, fresh, r, epoch); w.Fit.FitNow != 1 {
		t.Errorf("a job of a tenant below the pool's: %+v", w.Fit)
	}
}
