package spec_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"berth/spec"
)

// demanding returns a job with an input for each residency.
func demanding(residency ...[]string) spec.Job {
	s := spec.Job{Name: "x", Image: "busybox"}
	for i, r := range residency {
		s.Inputs = append(s.Inputs, spec.Input{From: "s3://bucket/set/", To: "/in" + string(rune('a'+i)), Residency: r})
	}
	return s.WithDefaults()
}

func TestConditionsOnClouds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		job    spec.Job
		place  spec.Placement
		faults string
	}{
		{"all of them", demanding([]string{"eu"}), spec.Placement{Site: "prefer_on_prem", Spot: "prefer", MaxPricePerHour: 4,
			Regions: []string{"us-east-1", "eu-west-1"}}, ""},
		{"an unknown rule", demanding(), spec.Placement{Spot: "maybe"}, "placement.spot"},
		{"a price below zero", demanding(), spec.Placement{MaxPricePerHour: -1}, "placement.max_price_per_hour"},
		{"no effect on premises", demanding(), spec.Placement{Site: "on_prem", Spot: "never", MaxPricePerHour: 1},
			"placement.spot placement.max_price_per_hour"},
		{"an empty residency", demanding([]string{}), spec.Placement{}, "inputs[0].residency"},
		{"no beginning of a region", demanding([]string{"eu", "e u"}), spec.Placement{}, "inputs[0].residency[1]"},
		{"inputs contradict each other", demanding([]string{"eu"}, nil, []string{"us", "ap"}), spec.Placement{}, "inputs[2].residency"},
		{"the regions contradict an input", demanding([]string{"eu"}), spec.Placement{Regions: []string{"us-east-1", "e"}}, "placement.regions"},
	} {
		s := c.job
		s.Placement = c.place
		var fields []string
		for _, f := range s.WithDefaults().Validate() {
			if fields = append(fields, f.Field); f.Allowed == "" {
				t.Errorf("%s: %s names no allowed value", c.name, f.Field)
			}
		}
		if got := strings.Join(fields, " "); got != c.faults {
			t.Errorf("%s: faults of %q, want %q", c.name, got, c.faults)
		}
	}
}

// A region is permitted if each input permits it, and the request of each element has the same residency.
func TestResidencyIsThatOfAllInputs(t *testing.T) {
	t.Parallel()
	regions := []string{"eu-west-1", "eu-central-1", "europe-west4", "us-east-1", ""}
	rapid.Check(t, func(t *rapid.T) {
		entries := rapid.SliceOfN(rapid.SampledFrom([]string{"eu", "eu-west", "europe", "us", "us-east-1"}), 1, 3)
		lists := rapid.SliceOfN(entries, 0, 4).Draw(t, "inputs")
		s := demanding(lists...)
		for _, region := range regions {
			want := !slices.ContainsFunc(lists, func(l []string) bool { return !spec.Resident(l, region) })
			if got := spec.Resident(spec.ResidencyOf(s.Inputs), region); got != want {
				t.Fatalf("%q is permitted: %t, want %t, by %v", region, got, want, lists)
			}
		}
		if got := s.Request().Residency; !reflect.DeepEqual(got, spec.ResidencyOf(s.Inputs)) {
			t.Fatalf("the request has %v, want %v", got, spec.ResidencyOf(s.Inputs))
		}
	})
}
