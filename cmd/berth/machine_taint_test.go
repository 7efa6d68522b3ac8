package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/spec"
	"berth/wire"
)

func TestArgumentsOfTaints(t *testing.T) {
	t.Parallel()
	got := taintChange([]string{"maintenance", "team=ml", "old-", "older:no_schedule-"})
	want := spec.TaintChange{Add: []string{"maintenance", "team=ml"}, Remove: []string{"old", "older"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestFlagsOfAPoolKeepTheOtherRules(t *testing.T) {
	t.Parallel()
	now := wire.Pool{Tenants: []berth.TenantID{"a"}, Description: "old", Approval: true, OneTenant: true, Taints: []string{"x:no_schedule"}, Version: 3}
	kept := spec.PoolRules{Tenants: now.Tenants, Description: "old", Approval: true, OneTenant: true, Taints: now.Taints, Version: 3}
	f := poolFlags{tenants: []string{"all"}, taints: []string{"none"}, description: "new"}
	if diff := cmp.Diff(kept, f.apply(now, func(string) bool { return false })); diff != "" {
		t.Errorf("without flags: %s", diff)
	}
	if diff := cmp.Diff(spec.PoolRules{Description: "new", Version: 3}, f.apply(now, func(string) bool { return true })); diff != "" {
		t.Errorf("with all flags: %s", diff)
	}
}
