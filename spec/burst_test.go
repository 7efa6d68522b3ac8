package spec_test

import (
	"cmp"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"berth/spec"
)

func TestFaultsOfBurstPoliciesAreNamed(t *testing.T) {
	t.Parallel()
	for field, b := range map[string]spec.Burst{
		"": {Allow: []string{"aws/eu-west-1"}, Residency: []string{"eu"}, Spot: spec.SpotPrefer, MaxPricePerHour: 4,
			When:  &spec.BurstWhen{PlannedWaitOver: spec.Duration(20 * time.Minute)},
			Spend: &spec.BurstSpend{Limit: 5000}, Grow: &spec.BurstGrow{Machines: 10, Per: spec.Duration(10 * time.Minute)},
			MaxMachines: 40, Idle: spec.Duration(5 * time.Minute), IdleCost: 1},
		"allow[0]":                 {Allow: []string{"aws"}},
		"allow[1]":                 {Allow: []string{"aws/a", "aws/eu/west"}},
		"residency":                {Residency: []string{}},
		"residency[0]":             {Residency: []string{"e u"}},
		"when":                     {When: &spec.BurstWhen{}},
		"when.hour_of_wait":        {When: &spec.BurstWhen{HourOfWait: -1}},
		"when.planned_wait_over":   {When: &spec.BurstWhen{PlannedWaitOver: -1}},
		"spot":                     {Spot: "maybe"},
		"max_price_per_hour":       {MaxPricePerHour: -1},
		"spend.period":             {Spend: &spec.BurstSpend{Period: "year", Limit: 1}},
		"spend.limit":              {Spend: &spec.BurstSpend{}},
		"spend.warn":               {Spend: &spec.BurstSpend{Limit: 1, Warn: 2}},
		"spend.stop_new":           {Spend: &spec.BurstSpend{Limit: 1, StopNew: 0.9, Drain: 0.8}},
		"spend.drain":              {Spend: &spec.BurstSpend{Limit: 1, Drain: 1.5}},
		"grow.machines":            {Grow: &spec.BurstGrow{Per: spec.Duration(time.Hour)}},
		"grow.per":                 {Grow: &spec.BurstGrow{Machines: 1}},
		"max_machines":             {MaxMachines: -1},
		"min_machines":             {MaxMachines: 2, MinMachines: []spec.BurstMin{{Machines: 2}, {Pool: "x", Machines: 1}}},
		"min_machines[0].machines": {MinMachines: []spec.BurstMin{{}}},
		"min_machines[0].pool":     {MinMachines: []spec.BurstMin{{Pool: "A b", Machines: 1}}},
		"min_machines[1].pool":     {MinMachines: []spec.BurstMin{{Pool: "default", Machines: 1}, {Machines: 1}}},
		"min_machines[0].types[1]": {MinMachines: []spec.BurstMin{{Machines: 1, Types: []string{"p5", "p 5"}}}},
		"idle":                     {Idle: spec.Duration(25 * time.Hour)},
		"idle_cost":                {IdleCost: 1e10},
		"version":                  {Version: -1},
		"when.waiting[0].jobs":     {When: &spec.BurstWhen{Waiting: []spec.BurstWaiting{{Jobs: 0}}}},
		"when.waiting[1].for":      {When: &spec.BurstWhen{Waiting: []spec.BurstWaiting{{Jobs: 1}, {Jobs: 2, For: -1}}}},
	} {
		faults := b.Validate()
		if field == "" {
			if faults != nil {
				t.Errorf("%+v: %v", b, faults)
			}
			continue
		}
		if len(faults) != 1 || faults[0].Field != field || faults[0].Allowed == "" {
			t.Errorf("%s: %+v", field, faults)
		}
	}
}

// An empty list of regions means no cloud, and an absent one adds no rule, also after a trip over JSON.
func TestAnEmptyListOfRegionsStaysEmpty(t *testing.T) {
	t.Parallel()
	for _, b := range []spec.Burst{{}, {Allow: []string{}}} {
		text, err := json.Marshal(b)
		if err != nil {
			t.Fatal(err)
		}
		var again spec.Burst
		if err := json.Unmarshal(text, &again); err != nil || !reflect.DeepEqual(again, b) {
			t.Errorf("%s: %+v, %v", text, again, err)
		}
	}
}

func TestPeriodsOfSpendBeginAtMidnightUTC(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 29, 23, 59, 59, 0, time.FixedZone("", -7200)) // a Monday in UTC
	for period, want := range map[spec.SpendPeriod]string{"day": "2026-11-30", "week": "2026-11-30", "month": "2026-11-01"} {
		if got := period.Start(at).Format(time.DateOnly); got != want {
			t.Errorf("%s: %s, want %s", period, got, want)
		}
	}
	sunday := time.Date(2026, 11, 29, 23, 0, 0, 0, time.UTC)
	if got := spec.SpendWeek.Start(sunday).Format(time.DateOnly); got != "2026-11-23" {
		t.Errorf("week of a Sunday: %s", got)
	}
}

// regions and prices of the property tests; an offer is one of each.
var (
	someRegions = []string{"aws/eu-west-1", "aws/us-east-1", "gcp/europe-west4", "lab/berlin"}
	somePrices  = []float64{0, 1, 2, 4, 8}
)

// drawBurst draws a valid policy, of which each setting may be absent.
func drawBurst(t *rapid.T, name string) spec.Burst {
	pick := func(label string, n int) int { return rapid.IntRange(0, n).Draw(t, name+" "+label) }
	some := func(label string, of []string, least int) []string {
		list := rapid.SliceOfNDistinct(rapid.SampledFrom(of), least, len(of), rapid.ID[string]).Draw(t, name+" "+label)
		return append([]string{}, list...)
	}
	var b spec.Burst
	if pick("has allow", 3) > 0 {
		b.Allow = some("allow", someRegions, 0)
	}
	if pick("has residency", 1) > 0 {
		b.Residency = some("residency", []string{"eu", "eu-west", "europe", "us", "berlin"}, 1)
	}
	b.Spot = rapid.SampledFrom([]spec.SpotRule{"", spec.SpotNever, spec.SpotPrefer, spec.SpotOnly}).Draw(t, name+" spot")
	b.MaxPricePerHour = rapid.SampledFrom(somePrices).Draw(t, name+" price")
	b.MaxMachines, b.IdleCost = pick("machines", 5), float64(pick("idle cost", 3))
	b.Idle = spec.Duration(pick("idle", 3)) * spec.Duration(time.Minute)
	if pick("has when", 1) > 0 {
		b.When = &spec.BurstWhen{HourOfWait: float64(pick("hour", 3)),
			PlannedWaitOver: spec.Duration(pick("wait", 3)) * spec.Duration(time.Minute)}
		for range pick("rules", 3) {
			b.When.Waiting = append(b.When.Waiting, spec.BurstWaiting{Jobs: 1 + pick("jobs", 3),
				For: spec.Duration(pick("for", 3)) * spec.Duration(time.Minute)})
		}
	}
	if pick("has grow", 1) > 0 {
		b.Grow = &spec.BurstGrow{Machines: 1 + pick("growth", 3), Per: spec.Duration(1+pick("per", 3)) * spec.Duration(time.Minute)}
	}
	if pick("has spend", 1) > 0 {
		b.Spend = &spec.BurstSpend{Limit: float64(1 + pick("limit", 9)),
			Period: rapid.SampledFrom([]spec.SpendPeriod{"", spec.SpendDay, spec.SpendWeek, spec.SpendMonth}).Draw(t, name+" period"),
			Drain:  1, StopNew: rapid.SampledFrom([]float64{0, 0.5, 1}).Draw(t, name+" stop_new")}
	}
	return b
}

// bursts reports whether a policy sends a job with that planned wait, or that gain an hour.
func bursts(w *spec.BurstWhen, wait time.Duration, cost float64) bool {
	return w != nil && (w.PlannedWaitOver > 0 && wait > w.PlannedWaitOver.Std() || w.HourOfWait > cost)
}

// crowd reports whether a policy sends that number of jobs that have waited so long.
func crowd(w *spec.BurstWhen, jobs int, wait time.Duration) bool {
	return w != nil && slices.ContainsFunc(w.Waiting, func(r spec.BurstWaiting) bool {
		return jobs >= r.Jobs && wait >= r.For.Std()
	})
}

// The effective policy of a child permits nothing that its parent's refuses, and nothing that the child's
// own settings refuse. It is the same whether the child's policy is narrowed once or twice.
func TestAChildOnlyNarrows(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		top, own, low := drawBurst(t, "top"), drawBurst(t, "own"), drawBurst(t, "low")
		parent, _ := spec.EffectiveBurst(top, own)
		child, ok := spec.EffectiveBurst(top, own, low)
		if !ok {
			t.Fatal("a policy is on the path")
		}
		for _, place := range someRegions {
			provider, region, _ := strings.Cut(place, "/")
			for _, price := range somePrices {
				for _, spot := range []bool{false, true} {
					permits := child.Refusal(provider, region, spot, price) == ""
					if permits && parent.Refusal(provider, region, spot, price) != "" {
						t.Fatalf("%s, spot %t, $%g: permitted below and not above\n%+v\n%+v", place, spot, price, parent, child)
					}
					stated := low
					stated.Spot = cmp.Or(low.Spot, spec.SpotPrefer) // which excludes no market
					if low.Allow == nil {
						stated.Allow = someRegions
					}
					if permits && stated.Refusal(provider, region, spot, price) != "" {
						t.Fatalf("%s, spot %t, $%g: permitted, and not by the child's own %+v", place, spot, price, low)
					}
				}
			}
		}
		bounded(t, "max_machines", parent.MaxMachines, child.MaxMachines)
		bounded(t, "idle", int(parent.Idle), int(child.Idle))
		bounded(t, "idle_cost", int(parent.IdleCost), int(child.IdleCost))
		if parent.When != nil {
			for _, wait := range []time.Duration{0, time.Minute + 1, 2*time.Minute + 1, time.Hour} {
				for _, cost := range []float64{0.5, 1.5, 2.5, 9} {
					if bursts(child.When, wait, cost) && !bursts(parent.When, wait, cost) {
						t.Fatalf("a wait of %s at $%g bursts below and not above: %+v, %+v", wait, cost, parent.When, child.When)
					}
				}
			}
		}
		for jobs := range 6 {
			for wait := range 5 {
				d := time.Duration(wait) * time.Minute
				if crowd(child.When, jobs, d) && (parent.When != nil && !crowd(parent.When, jobs, d) ||
					low.When != nil && !crowd(low.When, jobs, d)) {
					t.Fatalf("%d jobs after %s burst below and not above, or not by the child's own: %+v, %+v, %+v", jobs, d,
						parent.When, child.When, low.When)
				}
				if low.Widens(parent) == nil && low.When != nil && crowd(low.When, jobs, d) && !crowd(child.When, jobs, d) {
					t.Fatalf("%d jobs after %s burst by a permitted policy %+v, and not by the result %+v", jobs, d, low.When, child.When)
				}
			}
		}
		if p, c := parent.Spend, child.Spend; p != nil && (c == nil || c.Limit > p.Limit || c.StopNew > p.StopNew ||
			c.Drain > p.Drain || order(c.Period) > order(p.Period)) {
			t.Fatalf("spend %+v below %+v", c, p)
		}
		if p, c := parent.Grow, child.Grow; p != nil && (c == nil || c.Machines > p.Machines || c.Per < p.Per) {
			t.Fatalf("grow %+v below %+v", c, p)
		}
		if low.Widens(parent) == nil && low.Spend == nil && low.Grow == nil {
			if again := spec.Narrow(child, low); !reflect.DeepEqual(again, child) {
				t.Fatalf("narrowed twice: %+v, once: %+v", again, child)
			}
		}
		if same := spec.Narrow(parent, spec.Burst{}); !reflect.DeepEqual(same, parent) {
			t.Fatalf("an empty policy changes %+v to %+v", parent, same)
		}
	})
}

func bounded(t *rapid.T, name string, above, below int) {
	if above > 0 && (below == 0 || below > above) {
		t.Fatalf("%s is %d below %d", name, below, above)
	}
}

func order(p spec.SpendPeriod) int {
	return slices.Index([]spec.SpendPeriod{spec.SpendDay, spec.SpendWeek, spec.SpendMonth}, p)
}

// A policy that widens is refused by field, and one that does not is stored as it is meant.
func TestWideningIsNamed(t *testing.T) {
	t.Parallel()
	top, _ := spec.EffectiveBurst(spec.Burst{Allow: []string{"aws/eu-west-1"}, Residency: []string{"eu"}, Spot: spec.SpotNever,
		MaxPricePerHour: 4, MaxMachines: 4, Idle: spec.Duration(time.Minute), IdleCost: 1,
		When: &spec.BurstWhen{PlannedWaitOver: spec.Duration(time.Hour),
			Waiting: []spec.BurstWaiting{{Jobs: 5, For: spec.Duration(10 * time.Minute)}, {Jobs: 100}}},
		Spend: &spec.BurstSpend{Period: spec.SpendWeek, Limit: 100},
		Grow:  &spec.BurstGrow{Machines: 2, Per: spec.Duration(time.Hour)}})
	for field, b := range map[string]spec.Burst{
		"":                       {Allow: []string{}, MaxPricePerHour: 3, Spot: spec.SpotNever, Spend: &spec.BurstSpend{Period: "day", Limit: 9}},
		"allow[0]":               {Allow: []string{"aws/us-east-1"}},
		"residency[1]":           {Residency: []string{"eu-west", "e"}},
		"spot":                   {Spot: spec.SpotPrefer},
		"max_price_per_hour":     {MaxPricePerHour: 5},
		"max_machines":           {MaxMachines: 5},
		"min_machines":           {MinMachines: []spec.BurstMin{{Machines: 5}}},
		"idle":                   {Idle: spec.Duration(time.Hour)},
		"idle_cost":              {IdleCost: 2},
		"when.planned_wait_over": {When: &spec.BurstWhen{PlannedWaitOver: spec.Duration(time.Minute)}},
		"when.hour_of_wait":      {When: &spec.BurstWhen{HourOfWait: 1}},
		"when.waiting[1]": {When: &spec.BurstWhen{Waiting: []spec.BurstWaiting{
			{Jobs: 100}, {Jobs: 99, For: spec.Duration(time.Minute)}, {Jobs: 5, For: spec.Duration(time.Hour)}}}},
		"spend.period":   {Spend: &spec.BurstSpend{Period: "month", Limit: 9}},
		"spend.limit":    {Spend: &spec.BurstSpend{Period: "week", Limit: 101}},
		"spend.stop_new": {Spend: &spec.BurstSpend{Period: "week", Limit: 10, StopNew: 0.95}},
		"grow":           {Grow: &spec.BurstGrow{Machines: 2, Per: spec.Duration(time.Minute)}},
	} {
		faults := b.Widens(top)
		if field == "" && faults != nil || field != "" && (len(faults) != 1 || faults[0].Field != field || faults[0].Allowed == "") {
			t.Errorf("%s: %+v", field, faults)
		}
	}
}

// A tenant keeps its own machines alone: otherwise each tenant below would keep as many.
func TestALeastNumberOfMachinesIsNotInherited(t *testing.T) {
	t.Parallel()
	above := spec.Burst{Allow: []string{"aws/a"}, MaxMachines: 3, MinMachines: []spec.BurstMin{{Machines: 2, Types: []string{"p5"}}}}
	if b, _ := spec.EffectiveBurst(above); len(b.MinMachines) != 1 {
		t.Errorf("the policy of the tenant itself keeps %+v", b.MinMachines)
	}
	below, _ := spec.EffectiveBurst(above, spec.Burst{MaxMachines: 1})
	if n, _ := below.MinMachinesIn("default"); n != 0 {
		t.Errorf("a tenant below keeps %d machines", n)
	}
	own := spec.Burst{MinMachines: []spec.BurstMin{{Pool: "x", Machines: 4}}}
	below, _ = spec.EffectiveBurst(above, own)
	if n, _ := below.MinMachinesIn("x"); n != 4 || !slices.Equal(below.MinPools(), []string{"x"}) {
		t.Errorf("a tenant with a number of its own keeps %+v", below.MinMachines)
	}
	if faults := own.Widens(above); len(faults) != 1 || faults[0].Field != "min_machines" {
		t.Errorf("4 machines are kept below a tenant that may have 3: %+v", faults)
	}
}
