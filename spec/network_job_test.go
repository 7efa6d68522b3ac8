package spec_test

import (
	"maps"
	"testing"

	"berth/spec"
)

func TestANetworkOfAJobIsChecked(t *testing.T) {
	t.Parallel()
	to := func(d ...spec.Destination) spec.Network { return spec.Network{Egress: spec.EgressList, Allow: d} }
	for field, n := range map[string]spec.Network{
		"network.egress":         {Egress: "all"},
		"network.allow":          to(),
		"network.allow[0].to":    to(spec.Destination{To: "example.com"}),
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
