package autoscale_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/internal/control/autoscale"
	"berth/internal/control/cloud"
	"berth/placement"
	"berth/spec"
)

// quotes renders quotes as machines, type, reason and cost.
func quotes(q autoscale.Quotes) string {
	list := []string{string(q.Why)}
	for _, x := range q.List {
		list = append(list, fmt.Sprintf("%dx%s:%s $%.2f", x.Machines, x.Offer.Type, x.Refused, x.Cost))
	}
	return strings.Join(list, " ")
}

func TestQuotes(t *testing.T) {
	t.Parallel()
	job := func() autoscale.Quoted {
		return autoscale.Quoted{Job: placement.Job{Tenant: "a", Remaining: 2 * time.Hour}, Run: 2 * time.Hour,
			Request: spec.Request{Members: 1, GPUs: gpus, GPUMilli: 1000, Execution: spec.AtLeastOnce}}
	}
	for _, c := range []struct {
		name   string
		change func(*autoscale.Facts, *db.BurstState, *autoscale.Quoted)
		want   string
	}{
		{"one offer", func(*autoscale.Facts, *db.BurstState, *autoscale.Quoted) {}, " 1xbig: $16.00"},
		{"open offers by price, then closed ones, then others",
			func(f *autoscale.Facts, _ *db.BurstState, _ *autoscale.Quoted) {
				f.Offers = append(f.Offers, offered("dear", 9), offered("cheap", 2), offered("huge", 100))
				p := f.Policies["a"]
				p.MaxPricePerHour = 50
				f.Policies["a"] = p
				refused(f, now.Add(time.Minute), false)
			}, " 1xcheap: $4.00 1xdear: $18.00 1xbig:closed $16.00 1xhuge:price $200.00"},
		{"a gang needs several machines", func(_ *autoscale.Facts, _ *db.BurstState, j *autoscale.Quoted) { j.Request.Members = 3 },
			" 3xbig: $48.00"},
		{"without a run time there is no cost", func(_ *autoscale.Facts, _ *db.BurstState, j *autoscale.Quoted) { j.Run = 0 }, " 1xbig: $0.00"},
		{"the money of a tenant above", func(f *autoscale.Facts, _ *db.BurstState, _ *autoscale.Quoted) {
			f.Spent = map[berth.TenantID]db.Spent{"root": {Room: 15}, "a": {Room: 100}}
		}, " 1xbig:budget $16.00"},
		{"the machines of all tenants below a policy", func(f *autoscale.Facts, s *db.BurstState, _ *autoscale.Quoted) {
			f.Policies["root"] = limited(f.Policies["root"], 2)
			s.Machines = map[berth.TenantID]int{"b": 2}
		}, " 1xbig:max $16.00"},
		{"the price of the job", func(_ *autoscale.Facts, _ *db.BurstState, j *autoscale.Quoted) { j.Request.MaxPrice = 7 },
			" 1xbig:job_price $16.00"},
		{"what the job excludes is left out", func(_ *autoscale.Facts, _ *db.BurstState, j *autoscale.Quoted) {
			j.Request.Site = spec.SiteOnPrem
		}, "site"},
		{"what the policy forbids is left out", func(f *autoscale.Facts, _ *db.BurstState, _ *autoscale.Quoted) {
			f.Policies["a"] = spec.Burst{Allow: []string{"lab/there"}, When: &spec.BurstWhen{}}
		}, "forbidden"},
		{"a tenant without a policy", func(f *autoscale.Facts, _ *db.BurstState, _ *autoscale.Quoted) { clear(f.Policies) }, "no_policy"},
		{"a policy without when", func(f *autoscale.Facts, _ *db.BurstState, _ *autoscale.Quoted) {
			f.Policies["a"] = spec.Burst{Allow: []string{"lab/here"}}
		}, "no_when"},
		{"a pause of the admission", func(f *autoscale.Facts, _ *db.BurstState, _ *autoscale.Quoted) { f.Paused = true }, " 1xbig:paused $16.00"},
		{"the money is reserved for the expected time", func(f *autoscale.Facts, _ *db.BurstState, j *autoscale.Quoted) {
			f.Spent, j.Job.Remaining = map[berth.TenantID]db.Spent{"a": {Room: 15}}, time.Hour
		}, " 1xbig: $16.00"},
		{"a spot machine for a short job", func(f *autoscale.Facts, _ *db.BurstState, j *autoscale.Quoted) {
			spotOf(f)
			j.Job.Remaining = time.Minute
		}, " 1xbig: $16.00"},
		{"no spot machine for a long job", func(f *autoscale.Facts, _ *db.BurstState, j *autoscale.Quoted) {
			spotOf(f)
			j.Run = time.Minute
		}, "spot"},
		{"a constraint on the pool", func(f *autoscale.Facts, _ *db.BurstState, j *autoscale.Quoted) {
			f.Accounts.Providers["lab"] = cloud.Account{Regions: []string{"here"}, Settings: json.RawMessage("{}"),
				Pools: map[string]json.RawMessage{"open": nil}} // the first pool
			j.Request.Constraint = `machine.pool == "default"`
		}, " 1xbig: $16.00"},
		{"what does not fit is left out", func(_ *autoscale.Facts, _ *db.BurstState, j *autoscale.Quoted) { j.Request.GPUs = 2 * gpus }, "no_fit"},
	} {
		f, state, j := full(), db.BurstState{}, job()
		c.change(f, &state, &j)
		if got := quotes(autoscale.QuotesOf(*f, state, j)); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// A closed offer names the reason of its cloud and the time of the next try, but not the ones of another pool.
func TestAQuoteNamesTheRefusalOfTheCloud(t *testing.T) {
	t.Parallel()
	f := full()
	o := f.Offers[0]
	until := now.Add(time.Hour)
	f.Breakers = []db.ProbedBreaker{
		{Breaker: cloud.Breaker{Scope: cloud.ScopeOffering, Key: breakerOf(cloud.ScopeOffering, "default", o), Step: 1, Until: now.Add(time.Minute),
			Reason: "no capacity"}},
		{Breaker: cloud.Breaker{Scope: cloud.ScopeProvider, Key: "lab", Step: 1, Until: until, Reason: "no quota"}},
		{Breaker: cloud.Breaker{Scope: cloud.ScopePool, Key: breakerOf(cloud.ScopePool, "theirs", o), Step: 1, Reason: "of another pool"}},
	}
	q := autoscale.QuotesOf(*f, db.BurstState{Boots: map[string]time.Duration{"lab/here/big": time.Minute}},
		autoscale.Quoted{Job: placement.Job{Tenant: "a"}, Request: spec.Request{Members: 1, GPUs: gpus, GPUMilli: 1000, Execution: spec.AtLeastOnce}})
	if len(q.List) != 1 || q.List[0].Closed != "no quota" || !q.List[0].Until.Equal(until) || q.List[0].Boot != time.Minute {
		t.Errorf("%+v", q)
	}
}

// spotOf turns the first offer into one of the spot market, which the policies permit.
func spotOf(f *autoscale.Facts) {
	f.Offers[0].Market = cloud.Spot
	for t, p := range f.Policies {
		p.Spot = spec.SpotPrefer
		f.Policies[t] = p
	}
}

// An offer without a reason is one from which the scaler launches, and without such an offer it launches none.
func TestAnOpenQuoteIsWhatTheScalerLaunches(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		change   func(*autoscale.Facts)
		run      time.Duration // for the cost
		launches string
	}{
		{"three offers", func(f *autoscale.Facts) { f.Offers = append(f.Offers, offered("cheap", 2), offered("dear", 9)) }, time.Hour, "cheap"},
		{"no when", func(f *autoscale.Facts) { f.Policies["a"] = spec.Burst{Allow: []string{"lab/here"}} }, time.Hour, ""},
		{"paused", func(f *autoscale.Facts) { f.Paused = true }, time.Hour, ""},
		{"money by the expected time", func(f *autoscale.Facts) {
			f.Spent = map[berth.TenantID]db.Spent{"a": {Room: 9}}
		}, 2 * time.Hour, "big"},
		{"money for less than the expected time", func(f *autoscale.Facts) {
			f.Spent, f.Waiting[0].Remaining = map[berth.TenantID]db.Spent{"a": {Room: 9}}, 2*time.Hour
		}, time.Hour, ""},
		{"spot, short", func(f *autoscale.Facts) {
			spotOf(f)
			f.Waiting[0].Remaining = time.Minute
		}, time.Hour, "big"},
		{"spot, long", spotOf, time.Minute, ""},
		{"spot, by the time limit", func(f *autoscale.Facts) {
			spotOf(f)
			f.Waiting[0].Remaining, f.Waiting[0].TimeLimit = 0, time.Minute
		}, time.Hour, "big"},
	} {
		f := full()
		wait(f, "j1", "a", 1)
		c.change(f)
		launches := ""
		o := autoscale.Decide(*f)
		for _, r := range o.Requests {
			launches += r.Type
		}
		q := autoscale.QuotesOf(*f, db.BurstState{}, autoscale.Quoted{Job: f.Waiting[0], Request: f.Classes[f.Waiting[0].Class], Run: c.run})
		open := ""
		if len(q.List) > 0 && q.List[0].Refused == "" {
			open = q.List[0].Offer.Type
		}
		if launches != c.launches || open != launches {
			t.Errorf("%s: launched %s, quoted %s", c.name, requested(o), quotes(q))
		}
	}
}

// A long list of offers is cut after the cheapest ones.
func TestQuotesAreBounded(t *testing.T) {
	t.Parallel()
	f := full()
	f.Offers = nil
	for i := range autoscale.MostQuotes + 7 {
		f.Offers = append(f.Offers, offered(fmt.Sprintf("x%03d", i), float64(100-i)))
	}
	q := autoscale.QuotesOf(*f, db.BurstState{}, autoscale.Quoted{Job: placement.Job{Tenant: "a"},
		Request: spec.Request{Members: 1, GPUs: gpus, GPUMilli: 1000, Execution: spec.AtLeastOnce}})
	if len(q.List) != autoscale.MostQuotes || q.Left != 7 || q.List[0].Offer.Price != float64(100-autoscale.MostQuotes-6) {
		t.Errorf("%d quotes, %d left out, the first at %v", len(q.List), q.Left, q.List[0].Offer.Price)
	}
}
