package api_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/api"
	"berth/internal/control/cloud"
	"berth/spec"
	"berth/wire"
)

// burst is a request that the provider of newCloudSite can serve.
func burst(name berth.MachineID) wire.LaunchRequest {
	return wire.LaunchRequest{Pool: "burst", Provider: "lab", Type: "big", Region: "r", Machine: name}
}

func newCloudSite(t *testing.T) *site {
	t.Helper()
	return newSite(t, func(d *api.Deps) {
		d.Accounts = cloud.Accounts{Providers: map[string]cloud.Account{"lab": {Regions: []string{"r", "r2"}}}}
	})
}

func TestOnlyAdminsLaunchMachines(t *testing.T) {
	t.Parallel()
	s := newCloudSite(t)
	if _, err := s.as("alice").Launch(t.Context(), burst("vm-1")); berth.CodeOf(err) != berth.CodeForbidden {
		t.Errorf("a user launches: %v", err)
	}
	if _, err := s.as("alice").Launches(t.Context(), "", false); berth.CodeOf(err) != berth.CodeForbidden {
		t.Errorf("a user lists launches: %v", err)
	}
	made, err := s.as("admin").Launch(t.Context(), burst("vm-1"))
	if err != nil || len(made.Items) != 1 || made.Items[0].Machine != "vm-1" || made.Items[0].CreatedBy != "operator:admin" {
		t.Fatalf("%+v, %v", made, err)
	}
	list, err := s.as("admin").Launches(t.Context(), "vm-1", false)
	if err != nil || len(list.Items) != 1 {
		t.Errorf("%+v, %v", list, err)
	}
}

func TestALaunchNamesARegionInWhichInstancesAreListed(t *testing.T) {
	t.Parallel()
	r := burst("vm-1")
	r.Region = "elsewhere"
	_, err := newCloudSite(t).as("admin").Launch(t.Context(), r)
	if berth.CodeOf(err) != berth.CodeInvalid || !strings.Contains(err.Error(), "r, r2") {
		t.Errorf("launch: %v", err)
	}
}

func TestALaunchThatTheCloudJustRefusedNeedsForce(t *testing.T) {
	t.Parallel()
	s := newCloudSite(t)
	before := burst("vm-0")
	before.Key = "key-of-vm-0"
	if _, err := s.as("admin").Launch(t.Context(), before); err != nil {
		t.Fatal(err)
	}
	request := cloud.Request{Pool: "burst", Provider: "lab", Offering: cloud.Offering{Region: "r", Type: "big", Market: cloud.OnDemand}}
	closed, _ := request.Trips(&cloud.Error{Kind: cloud.Capacity})
	err := s.db.Launches.Trip(t.Context(), closed, func(b cloud.Breaker, now time.Time) cloud.Breaker {
		return b.Trip(cloud.Capacity, "no room", now)
	})
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.as("admin").Launch(t.Context(), burst("vm-1"))
	if berth.CodeOf(err) != berth.CodeConflict || !strings.Contains(err.Error(), "no room") {
		t.Errorf("launch: %v", err)
	}
	if made, err := s.as("admin").Launch(t.Context(), before); err != nil || made.Items[0].N != 1 {
		t.Errorf("a repeated call: %+v, %v", made, err)
	}
	other := burst("vm-2")
	other.Zone = "z" // another offering
	forced := burst("vm-1")
	forced.Force = true
	for _, r := range []wire.LaunchRequest{other, forced} {
		if _, err := s.as("admin").Launch(t.Context(), r); err != nil {
			t.Errorf("%+v: %v", r, err)
		}
	}
	if _, err := s.db.Pool().Exec(t.Context(), `DELETE FROM breakers`); err != nil {
		t.Fatal(err)
	}
	if _, err := s.as("admin").Launch(t.Context(), burst("vm-3")); err != nil {
		t.Errorf("launch after the breaker was closed: %v", err)
	}
}

// An admin reads at the pool, in plans and with the offers which part of a cloud is closed, until when and why.
func TestTheClosedPartOfACloudIsShown(t *testing.T) {
	t.Parallel()
	s := newCloudSite(t)
	ctx := t.Context()
	_, err := s.as("admin").SetBurst(ctx, "a", spec.Burst{Allow: []string{"lab/r"}, Spot: "prefer",
		When: &spec.BurstWhen{PlannedWaitOver: spec.Duration(time.Minute)}})
	if err != nil {
		t.Fatal(err)
	}
	var offers []cloud.Offer
	for _, m := range []cloud.Market{cloud.OnDemand, cloud.Spot} {
		offers = append(offers, cloud.Offer{Offering: cloud.Offering{Region: "r", Type: "x", Market: m}, CPUs: 4, MemoryMiB: 8192, Price: 1,
			AsOf: time.Date(2026, 11, 26, 0, 0, 0, 0, time.UTC)})
	}
	if err := s.db.Offers.Replace(ctx, "lab", offers, "test"); err != nil {
		t.Fatal(err)
	}
	refuse := func(e *cloud.Error) {
		t.Helper()
		named, _ := cloud.Request{Pool: "default", Provider: "lab", Offering: offers[1].Offering}.Trips(e)
		if err := s.db.Launches.Trip(ctx, named, func(b cloud.Breaker, now time.Time) cloud.Breaker { return b.Refused(e, now) }); err != nil {
			t.Fatal(err)
		}
	}
	refuse(&cloud.Error{Kind: cloud.Quota, Scope: "r/spot", Err: errors.New("32 of 32 used")})
	const part = "offers of lab under the quota r/spot"
	p, err := s.as("admin").Pool(ctx, "default")
	if err != nil || len(p.Closed) != 1 || p.Closed[0].Part != part || p.Closed[0].Until == nil || p.Closed[0].Scope != "quota" ||
		!strings.Contains(p.Closed[0].Reason, "32 of 32 used") {
		t.Errorf("pool %+v, %v", p, err)
	}
	list, err := s.as("admin").Offers(ctx, "lab", "")
	if err != nil || len(list.Items) != 2 || list.Items[0].Closed != "" || list.Items[1].ClosedPart != part || list.Items[1].ClosedUntil == nil {
		t.Errorf("offers %+v, %v", list, err)
	}
	job := spec.Job{Name: "x", Image: "y", TimeLimit: spec.Duration(10 * time.Minute)}
	plan, err := s.as("alice").Plan(ctx, job)
	if err != nil || len(plan.Offers) != 3 || plan.Offers[1].Code != "" || plan.Offers[2].Until == nil ||
		!strings.Contains(plan.Offers[2].Note, part) || !strings.Contains(plan.Offers[2].Note, "32 of 32 used") {
		t.Errorf("plan %+v, %v", plan.Offers, err)
	}
	if strings.Contains(plan.Offers[2].Note, "the cloud refused") {
		t.Errorf("the cloud may not have been called: %s", plan.Offers[2].Note)
	}
	if _, err := s.db.Pool().Exec(ctx, `DELETE FROM breakers`); err != nil {
		t.Fatal(err)
	}
	refuse(&cloud.Error{Kind: cloud.Auth, Err: errors.New("no rights")})
	_, err = s.as("admin").Launch(ctx, burst("vm-9"))
	if berth.CodeOf(err) != berth.CodeConflict || !strings.Contains(err.Error(), "closed: all offers of lab") ||
		!strings.Contains(err.Error(), "until its settings change") ||
		strings.Contains(err.Error(), "the cloud refused") {
		t.Errorf("launch: %v", err)
	}
}
