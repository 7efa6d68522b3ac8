package spec_test

import (
	"maps"
	"strings"
	"testing"

	"berth/spec"
)

func TestANetworkOfAJobIsChecked(t *testing.T) {
	t.Parallel()
	to := func(d ...spec.Destination) spec.Network { return spec.Network{Egress: spec.EgressList, Allow: d} }
	for field, n := range map[string]spec.Network{
		"network.egress":         {Egress: "all"},
		"network.allow":          to(),
		"network.allow[0].to":    to(spec.Destination{To: "exämple.com"}),
		"network.allow[0].ports": to(spec.Destination{To: "11.0.0.1", Ports: "0"}),
	} {
		faults := spec.Job{Name: "x", Image: "busybox", Network: n}.WithDefaults().Validate()
		if len(faults) != 1 || faults[0].Field != field {
			t.Errorf("%+v: faults are %+v, want one of %s", n, faults, field)
		}
	}
	open := spec.Network{Allow: []spec.Destination{{To: "11.0.0.1"}}}
	if faults := (spec.Job{Name: "x", Image: "busybox", Network: open}).WithDefaults().Validate(); len(faults) != 1 {
		t.Errorf("destinations of a policy without a list: %+v", faults)
	}
}

// A name in a list is not taken for a network, and covers names exactly.
func TestANameInAListCoversNames(t *testing.T) {
	t.Parallel()
	for _, faulty := range []string{
		"", "localhost", "*", "*.", "*.org", "*.*.org", "a.*.org", "a*.example.org", "example.org.", ".example.org",
		"a..example.org", "-a.example.org", "a-.example.org", "a b.org", "a.org:443", "https://a.org", "a.org/x", "1.2.3.4.5",
		"1.2.3", "::1", "2001:db8::1", "10.0.0.1/33", "a.12", "\x00.org", strings.Repeat("a", 64) + ".org",
		strings.Repeat("abc.", 63) + "org",
	} {
		j := spec.Job{Name: "x", Image: "busybox", Network: spec.Network{
			Egress: spec.EgressList, Allow: []spec.Destination{{To: faulty}}}}
		faults := j.WithDefaults().Validate()
		if len(faults) != 1 || faults[0].Field != "network.allow[0].to" || !strings.Contains(faults[0].Allowed, "*.example.org") {
			t.Errorf("%q: faults are %+v", faulty, faults)
		}
	}
	for _, row := range []struct {
		to, name string
		want     bool
	}{
		{"pypi.org", "pypi.org", true},
		{"PyPI.org", "pypi.org", true},
		{"pypi.org", "a.pypi.org", false},
		{"pypi.org", "xpypi.org", false},
		{"*.example.org", "a.example.org", true},
		{"*.example.org", "a.b.example.org", true},
		{"*.example.org", "example.org", false},
		{"*.example.org", ".example.org", false},
		{"*.example.org", "xexample.org", false},
		{"*.example.org", "example.org.evil.net", false},
		{"_dns.example.org", "_dns.example.org", true},
		{"10.0.0.1", "10.0.0.1", false},
	} {
		if got := (spec.Destination{To: row.to}).Covers(row.name); got != row.want {
			t.Errorf("%s covers %s: %t", row.to, row.name, got)
		}
	}
}

// Only a policy beyond the default restricts the machines, by a label that no user can set.
func TestAStrictPolicyAsksForALabel(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		members int
		network spec.Network
		want    map[string]string
	}{
		{1, spec.Network{}, nil},
		{1, spec.Network{Egress: spec.EgressPublic}, nil},
		{1, spec.Network{Egress: spec.EgressNone}, map[string]string{spec.EgressLabel: spec.EgressHeld}},
		{2, spec.Network{Egress: spec.EgressNone}, map[string]string{spec.EgressGangLabel: spec.EgressHeld}},
		{1, spec.Network{Egress: spec.EgressList, Allow: []spec.Destination{{To: "11.0.0.1"}}},
			map[string]string{spec.EgressLabel: spec.EgressHeld}},
		{1, spec.Network{Egress: spec.EgressList, Allow: []spec.Destination{{To: "11.0.0.1"}, {To: "pypi.org"}}},
			map[string]string{spec.EgressLabel: spec.EgressHeld, spec.NamesLabel: spec.EgressHeld}},
	} {
		j := spec.Job{Name: "x", Image: "busybox", Network: row.network, Members: row.members}.WithDefaults()
		if got := j.Request().Labels; !maps.Equal(got, row.want) {
			t.Errorf("%+v with %d members asks for %v, want %v", row.network, row.members, got, row.want)
		}
	}
	own := spec.Job{Name: "x", Image: "busybox"}
	own.Placement.Labels = map[string]string{spec.EgressLabel: "held"}
	if faults := own.WithDefaults().Validate(); len(faults) != 1 || faults[0].Field != "placement.labels."+spec.EgressLabel {
		t.Errorf("a job that asks for the label itself: %+v", faults)
	}
}
