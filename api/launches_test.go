package api_test

import (
	"strings"
	"testing"
	"time"

	"berth"
	"berth/api"
	"berth/internal/control/cloud"
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
	closed, _ := request.Trips(cloud.Capacity)
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
