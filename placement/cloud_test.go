package placement_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"berth"
	"berth/placement"
	"berth/spec"
)

// sites returns a snapshot with a machine on premises, and machines of a cloud on demand, of the spot market and of
// unknown price. The agents of the latter two report a site on premises.
func sites() *placement.Snapshot {
	s := placement.NewSnapshot()
	for _, m := range []placement.Machine{
		{ID: "a-prem", Site: "on_prem", Region: "eu-west-1"},
		{ID: "b-demand", Site: "cloud", Region: "us-east-1", Market: "on_demand", Price: 4},
		{ID: "c-spot", Site: "on_prem", Region: "eu-west-1", Market: "spot", Price: 1},
		{ID: "d-unpriced", Site: "on_prem", Market: "on_demand"},
	} {
		m.Epoch, m.State, m.Total = 1, berth.MachineReady, berth.Capacity{CPUMilli: 1000}
		s.UpsertMachine(m)
	}
	return s
}

// placesOf returns the machines on which jobs of a request may start, in order.
func placesOf(s *placement.Snapshot, r spec.Request) string {
	r.CPUMilli, r.Members = 1000, 1
	s.DefineClass(r.Class(), r)
	for i := range 5 {
		s.UpsertJob(placement.Job{ID: berth.JobID(fmt.Sprintf("job-%d", i)), Class: r.Class(), SubmittedAt: epoch, EligibleAt: epoch})
	}
	var list []string
	for _, start := range (placement.Planner{}).Plan(s, epoch).Start {
		list = append(list, string(start.Ranks[0].Machine[:1]))
	}
	slices.Sort(list)
	return strings.Join(list, "")
}

func TestConditionsOnMachinesOfClouds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		request spec.Request
		want    string
	}{
		{spec.Request{}, "abcd"},
		{spec.Request{Site: "on_prem"}, "a"},
		{spec.Request{Site: "cloud"}, "bcd"},
		{spec.Request{Spot: spec.SpotNever}, "abd"},
		{spec.Request{Spot: spec.SpotPrefer}, "abcd"},
		{spec.Request{Spot: spec.SpotOnly}, "ac"},
		{spec.Request{MaxPrice: 4}, "abc"},
		{spec.Request{MaxPrice: 3.99}, "ac"},
		{spec.Request{MaxPrice: 0.5}, "a"},
		{spec.Request{Residency: []string{"eu"}}, "ac"},
		{spec.Request{Residency: []string{"eu-west-1", "us"}}, "abc"},
		{spec.Request{Residency: []string{"ap"}}, ""},
	} {
		if got := placesOf(sites(), c.request); got != c.want {
			t.Errorf("%+v starts on %q, want %q", c.request, got, c.want)
		}
	}
}

// A class with a price that is defined after the machines are known tells machines of different prices apart.
func TestMachinesDifferByPrice(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s, most, want := placement.NewSnapshot(), float64(rapid.IntRange(1, 5).Draw(t, "max")), 0
		for i, price := range rapid.SliceOfN(rapid.IntRange(0, 6), 1, 5).Draw(t, "prices") {
			s.UpsertMachine(placement.Machine{ID: berth.MachineID(fmt.Sprintf("m%d", i)), Epoch: 1, State: berth.MachineReady,
				Total: berth.Capacity{CPUMilli: 1000}, Market: "spot", Price: float64(price)})
			if price > 0 && float64(price) <= most {
				want++
			}
		}
		if rapid.Bool().Draw(t, "others first") {
			r := spec.Request{CPUMilli: 1, Members: 1}
			s.DefineClass(r.Class(), r)
			(placement.Planner{}).Plan(s, epoch)
		}
		if got := len(placesOf(s, spec.Request{MaxPrice: most})); got != want {
			t.Fatalf("%d starts, want %d", got, want)
		}
	})
}

func TestConditionsOnCloudsAreExplained(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		request spec.Request
		clause  string
	}{
		{spec.Request{Residency: []string{"ap"}}, "residency"},
		{spec.Request{Site: "moon"}, "site"},
		{spec.Request{MaxPrice: 0.5, Site: "cloud"}, "max_price_per_hour"},
		{spec.Request{Spot: spec.SpotNever, Regions: []string{"eu-west-1"}, Site: "cloud"}, "spot"},
	} {
		r := c.request
		r.CPUMilli, r.Members = 1000, 1
		fit := placement.Explain(sites(), r)
		if len(fit.Lacking) != 1 || fit.Lacking[0].Resource != c.clause {
			t.Errorf("%+v lacks %+v, want %s", c.request, fit.Lacking, c.clause)
		}
	}
}
