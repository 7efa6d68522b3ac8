package api_test

import (
	"strings"
	"testing"
	"time"

	"berth"
	"berth/internal/control/cloud"
	"berth/spec"
	"berth/wire"
)

func TestABurstPolicyIsTheAdminsAndOnlyNarrows(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	admin, alice := s.as("admin"), s.as("alice") // of tenant a
	if _, err := admin.CreateTenant(t.Context(), spec.NewTenant{ID: "org"}); err != nil {
		t.Fatal(err)
	}
	parent := berth.TenantID("org")
	if _, err := admin.UpdateTenant(t.Context(), "a", spec.TenantPatch{Parent: &parent}); err != nil {
		t.Fatal(err)
	}
	if p, err := alice.Burst(t.Context(), "a"); err != nil || p.Effective != nil {
		t.Errorf("without a policy: %+v, %v", p, err)
	}
	if _, err := alice.SetBurst(t.Context(), "a", spec.Burst{}); berth.CodeOf(err) != berth.CodeForbidden {
		t.Errorf("a user sets a policy: %v", err)
	}
	top, err := admin.SetBurst(t.Context(), "org", spec.Burst{Allow: []string{"lab/eu-1", "lab/eu-2"}, MaxMachines: 4,
		Spend: &spec.BurstSpend{Limit: 100}})
	if err != nil || top.Own.Spend.StopNew != 0.9 || top.UpdatedBy != "operator:admin" || top.Above != nil {
		t.Fatalf("%+v, %v", top, err)
	}
	a := s.call("admin", "PUT", "/v1/tenants/a/burst", `{"allow": ["lab/eu-1", "lab/us-1"], "max_machines": 5}`)
	if a.status != 422 || a.problem.Code != "invalid_spec" || len(a.problem.Errors) != 2 || a.problem.Errors[0].Field != "allow[1]" ||
		a.problem.Errors[0].Allowed != "lab/eu-1, lab/eu-2" || a.problem.Errors[1].Allowed != "at most 4" {
		t.Errorf("a policy that widens: %d %s", a.status, a.body)
	}
	if _, err := admin.SetBurst(t.Context(), "a", spec.Burst{Allow: []string{"lab/eu-2"}}); err != nil {
		t.Fatal(err)
	}
	p, err := alice.Burst(t.Context(), "a")
	if err != nil || strings.Join(p.Effective.Allow, " ") != "lab/eu-2" || p.Effective.MaxMachines != 4 || p.Own.MaxMachines != 0 {
		t.Errorf("%+v, %v", p, err)
	}
	if _, err := admin.SetBurst(t.Context(), "a", spec.Burst{Version: 7}); berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("a change of another version: %v", err)
	}
	for _, want := range []berth.Code{"", berth.CodeNotFound} {
		if err := admin.DeleteBurst(t.Context(), "a"); berth.CodeOf(err) != want {
			t.Errorf("delete: %v", err)
		}
	}
}

func TestUsersSeeOffersAndTheUsageOfTheirTenant(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	if _, err := s.as("admin").SetBurst(t.Context(), "a", spec.Burst{Allow: []string{"lab/r"}, Spend: &spec.BurstSpend{Limit: 8}}); err != nil {
		t.Fatal(err)
	}
	offer := cloud.Offer{Offering: cloud.Offering{Region: "r", Type: "x", Market: cloud.OnDemand}, CPUs: 4, MemoryMiB: 1024,
		Price: 2, Source: "list", AsOf: time.Date(2026, 11, 26, 0, 0, 0, 0, time.UTC)}
	if err := s.db.Offers.Replace(t.Context(), "lab", []cloud.Offer{offer}, "test"); err != nil {
		t.Fatal(err)
	}
	if list, err := s.as("alice").Offers(t.Context(), "lab", ""); err != nil || len(list.Items) != 1 || list.Items[0].Price != 2 {
		t.Errorf("%+v, %v", list, err)
	}
	own := wire.OfferPrice{Provider: "lab", Region: "r", Type: "x", Market: "on_demand", Price: 1.5}
	if err := s.as("alice").SetOfferPrice(t.Context(), own); berth.CodeOf(err) != berth.CodeForbidden {
		t.Errorf("a user sets a price: %v", err)
	}
	if err := s.as("admin").SetOfferPrice(t.Context(), own); err != nil {
		t.Error(err)
	}
	if list, err := s.as("alice").Offers(t.Context(), "", ""); err != nil || list.Items[0].Price != 1.5 || list.Items[0].Source != "operator" {
		t.Errorf("%+v, %v", list, err)
	}
	_, err := s.db.Launches.Request(t.Context(), cloud.Request{Pool: "p", Provider: "lab", Offering: offer.Offering, Price: 2, Tenant: "a"},
		[]berth.MachineID{"vm-1"}, "", "leader")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.as("alice").CloudUsage(t.Context(), "pool", "", "", ""); berth.CodeOf(err) != berth.CodeForbidden {
		t.Errorf("a user sees the costs of pools: %v", err)
	}
	if list, err := s.as("admin").CloudUsage(t.Context(), "pool", "", "", ""); err != nil || len(list.Items) != 1 ||
		list.Items[0].Pool != "p" || list.Items[0].Machines != 1 || list.Items[0].Reserved != 2 {
		t.Errorf("by pool: %+v, %v", list, err)
	}
	if _, err := s.as("admin").CloudUsage(t.Context(), "region", "", "", ""); berth.CodeOf(err) != berth.CodeInvalid {
		t.Errorf("by region: %v", err)
	}
	list, err := s.as("alice").CloudUsage(t.Context(), "", "", "", "")
	if err != nil || len(list.Items) != 1 || list.Items[0].Tenant != "a" || list.Items[0].Reserved != 2 || *list.Items[0].Share != 0.25 {
		t.Errorf("%+v, %v", list, err)
	}
	if _, err := s.as("bob").CloudUsage(t.Context(), "", "a", "", ""); berth.CodeOf(err) != berth.CodeNotFound {
		t.Errorf("usage of another tenant: %v", err)
	}
	for query, want := range map[string]string{"period=year": "day, week, month", "date=26.11.2026": "a date such as"} {
		if a := s.call("admin", "GET", "/v1/usage?"+query, ""); a.status != 400 || !strings.Contains(a.body, want) {
			t.Errorf("%s: %d %s", query, a.status, a.body)
		}
	}
	s.metricsWith(
		`berth_cloud_spend_dollars{kind="reserved",tenant="a"} 2`, `berth_cloud_spend_dollars{kind="settled",tenant="a"} 0`,
		`berth_cloud_spend_dollars{kind="limit",tenant="a"} 8`, `berth_cloud_spend_dollars{kind="warn",tenant="a"} 6.4`,
		`berth_cloud_spend_dollars{kind="stop_new",tenant="a"} 7.2`,
	)
	launches, err := s.as("admin").Launches(t.Context(), "vm-1", false)
	if err != nil || launches.Items[0].Tenant != "a" || launches.Items[0].Reserved != 2 || launches.Items[0].Cost != 0 {
		t.Errorf("%+v, %v", launches, err)
	}
}

// A job that fits no machine, but one that the tenant's policy permits to launch, is accepted.
func TestAJobMayNeedAMachineThatDoesNotExistYet(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.machine("m1", 2, 4096, 0)
	offers := []cloud.Offer{
		{Offering: cloud.Offering{Region: "eu-1", Type: "gpu-4", Market: cloud.OnDemand}, CPUs: 64, MemoryMiB: 1 << 19, GPUs: 4, GPUType: "H100",
			Price: 12, Source: "test", AsOf: time.Now()},
		{Offering: cloud.Offering{Region: "eu-1", Type: "gpu-8", Market: cloud.OnDemand}, CPUs: 192, MemoryMiB: 1 << 21, GPUs: 8, GPUType: "H100",
			Price: 24, Source: "test", AsOf: time.Now()},
	}
	if err := s.db.Offers.Replace(t.Context(), "lab", offers, "test"); err != nil {
		t.Fatal(err)
	}
	submit := func(gpus spec.MilliGPU, members int) error {
		t.Helper()
		j := spec.Job{Name: "x", Image: "y", Members: members, Resources: spec.Resources{GPUs: 1000 * gpus}}
		_, _, err := s.as("alice").Submit(t.Context(), j, "")
		return err
	}
	if err := submit(4, 1); !berth.IsSlug(err, berth.SlugUnsatisfiable) {
		t.Errorf("without a policy: %v", err)
	}
	set := func(b spec.Burst) {
		t.Helper()
		if _, err := s.as("admin").SetBurst(t.Context(), "a", b); err != nil {
			t.Fatal(err)
		}
	}
	policy := spec.Burst{Allow: []string{"lab/eu-1"}, MaxPricePerHour: 20}
	set(policy)
	if err := submit(4, 1); !berth.IsSlug(err, berth.SlugUnsatisfiable) {
		t.Errorf("with a policy that launches nothing for waiting jobs: %v", err)
	}
	policy.When = &spec.BurstWhen{PlannedWaitOver: spec.Duration(time.Minute)}
	set(policy)
	if err := submit(4, 1); err != nil {
		t.Errorf("a job for an offer: %v", err)
	}
	if err := submit(4, 3); err != nil {
		t.Errorf("a gang for three machines of an offer: %v", err)
	}
	if err := submit(8, 1); !berth.IsSlug(err, berth.SlugUnsatisfiable) || !strings.Contains(err.Error(), "no machine has a GPU") {
		t.Errorf("a job for an offer above the highest price: %v", err)
	}
}

// Without a period in the call, the usage has the period of the limits, so that the limits are shown.
func TestUsageHasThePeriodOfTheLimits(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	wants := func(tenant berth.TenantID, length time.Duration, limit float64) {
		t.Helper()
		list, err := s.as("admin").CloudUsage(t.Context(), "", tenant, "", "")
		if err != nil || len(list.Items) != 1 {
			t.Fatalf("%+v, %v", list, err)
		}
		u := list.Items[0]
		if got := u.To.Sub(u.From); min(got, 28*24*time.Hour) != length || u.Limit != limit {
			t.Errorf("usage of %s over %s with limit %v, want %s and %v", tenant, got, u.Limit, length, limit)
		}
	}
	const day, month = 24 * time.Hour, 28 * 24 * time.Hour
	limit := func(tenant berth.TenantID, period spec.SpendPeriod) {
		t.Helper()
		if _, err := s.as("admin").SetBurst(t.Context(), tenant, spec.Burst{Spend: &spec.BurstSpend{Period: period, Limit: 50}}); err != nil {
			t.Fatal(err)
		}
	}
	wants("a", month, 0)
	limit("a", spec.SpendDay)
	wants("a", day, 50)
	limit("b", spec.SpendWeek) // two periods: a month, in which neither limit holds
	wants("a", month, 0)
}
