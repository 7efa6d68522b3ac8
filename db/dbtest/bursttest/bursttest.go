// Package bursttest draws trees of tenants with burst policies at random, for property tests, and judges launches
// by them. It restates the rules: it judges a launch by each single policy on the path of its tenant, and knows
// neither effective policies nor the SQL of sums.
package bursttest

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/internal/control/cloud"
	"berth/spec"
)

// Tree is a set of tenants, most of them below others, with policies.
type Tree struct {
	Tenants  []berth.TenantID
	Policies map[berth.TenantID]spec.Burst // with defaults
	Parents  map[berth.TenantID]berth.TenantID
}

// Create creates forty tenants with random policies, which have the rule when; nil: none has one.
func Create(t testing.TB, d *db.DB, r *rand.Rand, when *spec.BurstWhen) *Tree {
	t.Helper()
	f := &Tree{Parents: map[berth.TenantID]berth.TenantID{}, Policies: map[berth.TenantID]spec.Burst{}}
	for i := range 40 {
		id := berth.TenantID(fmt.Sprintf("t%d", i))
		if i >= 3 { // three roots
			f.Parents[id] = f.Tenants[r.IntN(min(i, 12))]
		}
		f.Tenants = append(f.Tenants, id)
		if err := d.Tenants.Create(t.Context(), spec.NewTenant{ID: id, Parent: f.Parents[id]}); err != nil {
			t.Fatal(err)
		}
		switch {
		case i == 0 || i == 2: // two of the roots permit almost everything, and the third has no policy
			f.set(t, d, id, spec.Burst{Allow: Places, Spot: spec.SpotPrefer, When: when,
				Spend: &spec.BurstSpend{Limit: float64(20 + r.IntN(20))}})
		case i > 2 && r.IntN(2) == 0:
			// A policy that widens is refused, and another one is drawn.
			for n := 0; n < 20 && !f.set(t, d, id, randomBurst(r, when)); n++ {
			}
		}
	}
	return f
}

// set stores a policy, and reports false if it would permit more than those above it.
func (f *Tree) set(t testing.TB, d *db.DB, id berth.TenantID, b spec.Burst) bool {
	t.Helper()
	err := d.Burst.Set(t.Context(), id, b, "user:test")
	if err != nil && berth.CodeOf(err) != berth.CodeInvalid {
		t.Fatal(err)
	}
	if err == nil {
		f.Policies[id] = b.WithDefaults()
	}
	return err == nil
}

// Places are all regions that the policies name, as provider/region.
var Places = []string{"lab/eu-1", "lab/eu-2", "lab/us-1", "far/eu-1"}

// randomBurst returns a policy in which most settings are absent.
func randomBurst(r *rand.Rand, when *spec.BurstWhen) spec.Burst {
	b := spec.Burst{When: when}
	maybe := func(share int, set func()) {
		if r.IntN(share) == 0 {
			set()
		}
	}
	maybe(2, func() {
		b.Allow = []string{}
		for _, place := range Places {
			maybe(2, func() { b.Allow = append(b.Allow, place) })
		}
	})
	maybe(4, func() { b.Residency = []string{[]string{"eu", "us", "eu-2"}[r.IntN(3)]} })
	maybe(3, func() { b.Spot = []spec.SpotRule{spec.SpotNever, spec.SpotPrefer, spec.SpotOnly}[r.IntN(3)] })
	maybe(4, func() { b.MaxPricePerHour = float64(2 + r.IntN(6)) })
	maybe(3, func() { b.MaxMachines = 3 + r.IntN(8) })
	maybe(4, func() { b.MinMachines = []spec.BurstMin{{Machines: 1 + r.IntN(2)}} })
	maybe(2, func() {
		b.Spend = &spec.BurstSpend{Limit: float64(5 + r.IntN(60)), StopNew: []float64{0, 0.5, 1}[r.IntN(3)],
			Period: []spec.SpendPeriod{spec.SpendDay, spec.SpendWeek, spec.SpendMonth}[r.IntN(3)]}
	})
	return b
}

// Path returns a tenant and all tenants above it.
func (f *Tree) Path(id berth.TenantID) (path []berth.TenantID) {
	for ; id != ""; id = f.Parents[id] {
		path = append(path, id)
	}
	return path
}

// Forbids returns the rule of any single policy on the path of a launch's tenant that the launch breaks.
func (f *Tree) Forbids(l cloud.Record) string {
	path := f.Path(l.Tenant)
	policies, spot := 0, spec.SpotNever
	for _, id := range slices.Backward(path) {
		b, ok := f.Policies[id]
		if !ok {
			continue
		}
		if policies++; policies == 1 && b.Allow == nil {
			return "the topmost policy allows no cloud"
		}
		within := func(r string) bool { return strings.HasPrefix(l.Region, r) }
		switch {
		case b.Allow != nil && !slices.Contains(b.Allow, l.Provider+"/"+l.Region):
			return "region of " + string(id)
		case b.Residency != nil && !slices.ContainsFunc(b.Residency, within):
			return "residency of " + string(id)
		case b.Spot == spec.SpotNever && l.Market == cloud.Spot, b.Spot == spec.SpotOnly && l.Market != cloud.Spot:
			return "spot rule of " + string(id)
		case l.Price <= 0, b.MaxPricePerHour > 0 && l.Price > b.MaxPricePerHour:
			return "price of " + string(id)
		}
		if policies == 1 && b.Spot != "" {
			spot = b.Spot
		}
	}
	if policies == 0 {
		return "no policy"
	}
	if l.Market == cloud.Spot && spot == spec.SpotNever {
		return "no policy at the top allows spot"
	}
	return ""
}

// books are the rows of one snapshot.
type books struct {
	Now      time.Time `json:"now"`
	Launches []struct {
		cloud.Record
		Reserved int64 `json:"reserved"`
		Settled  int64 `json:"settled"`
	} `json:"launches"`
	Spend []struct {
		Tenant  berth.TenantID `json:"tenant"`
		Day     string         `json:"day"`
		Settled int64          `json:"settled"`
	} `json:"spend"`
	Pools int64 `json:"pools"` // settled costs of all pools
}

// Audit reads all rows in one statement and returns the broken rules: launches without permission, in a forbidden
// region or above their price, and tenants beyond their money or their number of machines.
func (f *Tree) Audit(ctx context.Context, d *db.DB) (faults []string, err error) {
	var text []byte
	err = d.Pool().QueryRow(ctx, `
		SELECT jsonb_build_object('now', now(), 'launches', (
				SELECT coalesce(jsonb_agg(to_jsonb(l) - 'request'), '[]') FROM launches l),
			'spend', (SELECT coalesce(jsonb_agg(s), '[]') FROM spend s),
			'pools', (SELECT coalesce(sum(s.settled), 0) FROM pool_spend s))`).Scan(&text)
	if err != nil {
		return nil, err
	}
	var b books
	if err := json.Unmarshal(text, &b); err != nil {
		return nil, err
	}
	return f.judge(b), nil
}

// judge returns the rules that the rows of a snapshot break.
func (f *Tree) judge(b books) (faults []string) {
	used, machines, settled := map[berth.TenantID]int64{}, map[berth.TenantID]int{}, int64(0)
	for _, l := range b.Launches {
		if why := f.Forbids(l.Record); why != "" {
			faults = append(faults, fmt.Sprintf("%s of %s for %s at $%g breaks %s", l.Offering, l.Provider, l.Tenant,
				l.Price, why))
		}
		if l.State.Settled() && l.Reserved != 0 {
			faults = append(faults, fmt.Sprintf("machine %s is %s and reserves %d", l.Machine, l.State, l.Reserved))
		}
		for _, id := range f.Path(l.Tenant) {
			used[id] += l.Reserved
			if !l.State.Settled() {
				machines[id]++
			}
		}
		settled += l.Settled
	}
	if settled != b.Pools {
		faults = append(faults, fmt.Sprintf("launches have cost %d micro-dollars, and pools %d", settled, b.Pools))
	}
	for _, s := range b.Spend {
		settled -= s.Settled
		for _, id := range f.Path(s.Tenant) {
			p := f.Policies[id].Spend
			if p != nil && s.Day >= p.Period.Start(b.Now).Format(time.DateOnly) {
				used[id] += s.Settled
			}
		}
	}
	if settled != 0 {
		faults = append(faults, fmt.Sprintf("costs of launches and of days differ by %d micro-dollars", settled))
	}
	for id, p := range f.Policies {
		if p.Spend != nil && float64(used[id]) > p.Spend.Limit*p.Spend.StopNew*1e6 {
			faults = append(faults, fmt.Sprintf("%s has used or reserved %d micro-dollars of %+v", id, used[id],
				p.Spend))
		}
		if p.MaxMachines > 0 && machines[id] > p.MaxMachines {
			faults = append(faults, fmt.Sprintf("%s has %d machines of %d", id, machines[id], p.MaxMachines))
		}
	}
	return faults
}
