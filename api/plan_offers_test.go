package api_test

import (
	"testing"
	"time"

	"berth/api"
	"berth/internal/control/cloud"
	"berth/spec"
	"berth/wire"
)

// A plan lists the offers that the policy of the caller's tenant allows, with prices, and reserves nothing. A tenant
// without a policy sees no offer.
func TestAPlanListsOffers(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(d *api.Deps) {
		d.Accounts = cloud.Accounts{Providers: map[string]cloud.Account{"lab": {Regions: []string{"r", "far"}}}}
	})
	ctx := t.Context()
	_, err := s.as("admin").SetBurst(ctx, "a", spec.Burst{Allow: []string{"lab/r"}, MaxPricePerHour: 5,
		When: &spec.BurstWhen{PlannedWaitOver: spec.Duration(time.Minute)}})
	if err != nil {
		t.Fatal(err)
	}
	offer := func(region, kind string, price float64) cloud.Offer {
		return cloud.Offer{Offering: cloud.Offering{Region: region, Type: kind, Market: cloud.OnDemand}, CPUs: 4, MemoryMiB: 8192,
			Price: price, Source: "list", AsOf: time.Date(2026, 11, 26, 0, 0, 0, 0, time.UTC)}
	}
	if err := s.db.Offers.Replace(ctx, "lab", []cloud.Offer{offer("r", "x", 2), offer("r", "dear", 9), offer("far", "x", 1)}, "test"); err != nil {
		t.Fatal(err)
	}
	job := spec.Job{Name: "x", Image: "y", TimeLimit: spec.Duration(3 * time.Hour)}
	p, err := s.as("alice").Plan(ctx, job)
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Offers) != 3 || p.Offers[0].Provider != wire.OnPremises || p.OffersNote != "" {
		t.Fatalf("offers %+v, note %q", p.Offers, p.OffersNote)
	}
	if o := p.Offers[1]; o.Machine != "x" || o.Region != "r" || o.Machines != 1 || o.Price != 2 || o.JobCost != 6 || o.Code != "" ||
		o.Source != "list" || o.AsOf == nil {
		t.Errorf("open offer %+v", o)
	}
	if o := p.Offers[2]; o.Machine != "dear" || o.Code != "price" || o.Note == "" {
		t.Errorf("offer above the price %+v", o)
	}
	for _, paused := range []bool{true, false} {
		if _, err := s.as("admin").SetAdmission(ctx, spec.NewAdmission{Paused: &paused, Reason: "test"}); err != nil {
			t.Fatal(err)
		}
		p, err = s.as("alice").Plan(ctx, job)
		if err != nil || len(p.Offers) != 3 || (p.Offers[1].Code == "paused" && p.Offers[1].Note != "") != paused {
			t.Errorf("admission paused %t: %+v, %v", paused, p.Offers, err)
		}
	}
	job.Placement.Site = spec.SiteOnPrem
	if p, err = s.as("alice").Plan(ctx, job); err != nil || len(p.Offers) != 1 || p.OffersNote == "" {
		t.Errorf("on premises alone: %+v, note %q, %v", p.Offers, p.OffersNote, err)
	}
	job.Placement.Site = ""
	if p, err = s.as("bob").Plan(ctx, job); err != nil || len(p.Offers) != 1 || p.OffersNote == "" {
		t.Errorf("without a policy: %+v, note %q, %v", p.Offers, p.OffersNote, err)
	}
}
