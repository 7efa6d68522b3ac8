package spec_test

import (
	"strings"
	"testing"

	"berth"
	"berth/spec"
)

func TestFaultsOfPoolRulesAreNamed(t *testing.T) {
	t.Parallel()
	many := make([]berth.TenantID, spec.MaxPoolTenants+1)
	for i := range many {
		many[i] = berth.TenantID(strings.Repeat("a", i%63+1))
	}
	for field, p := range map[string]spec.PoolRules{
		"":            {Tenants: []berth.TenantID{"vision", "speech"}, Description: "room 3", Version: 2},
		"tenants":     {Tenants: []berth.TenantID{}},
		"tenants[1]":  {Tenants: []berth.TenantID{"vision", "vision"}},
		"tenants[0]":  {Tenants: []berth.TenantID{"Vision"}},
		"description": {Description: strings.Repeat("x", spec.MaxPoolDescription+1)},
		"version":     {Version: -1},
	} {
		faults := p.Validate()
		if field == "" {
			if faults != nil {
				t.Errorf("%+v: %v", p, faults)
			}
			continue
		}
		if len(faults) != 1 || faults[0].Field != field || faults[0].Allowed == "" {
			t.Errorf("%+v: faults %+v, want one of %s", p, faults, field)
		}
	}
	if faults := (spec.PoolRules{Tenants: many}).Validate(); len(faults) == 0 || faults[0].Field != "tenants" {
		t.Errorf("too many tenants: %+v", faults)
	}
}

func TestPatternsOfMachineNamesAreChecked(t *testing.T) {
	t.Parallel()
	for pattern, good := range map[string]bool{
		"": true, "gpu-1": true, "gpu-*": true, "*": true, "*-*": true,
		"-*": false, "GPU-*": false, "a?": false, "a%": false, "a b": false, strings.Repeat("*", 64): false,
	} {
		if faults := (spec.NewJoinToken{Machines: pattern}).Validate(); (faults == nil) != good {
			t.Errorf("pattern %q: %+v", pattern, faults)
		}
	}
}
