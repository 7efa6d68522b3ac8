package fakeruntime

import (
	"context"
	"slices"

	"berth/wire"
)

// modern are the facts of an engine without known holes.
func modern() wire.HostFacts {
	return wire.HostFacts{Runtime: "runc", Seccomp: "builtin", LSM: "apparmor", Cgroup: "2",
		Components: []wire.HostComponent{
			{Name: wire.ComponentEngine, Version: "99.0.0"}, {Name: wire.ComponentContainerd, Version: "99.0.0"},
			{Name: wire.ComponentRunc, Version: "99.0.0"}, {Name: wire.ComponentKernel, Version: "99.0.0"},
		}}
}

// hosts holds the facts that a Fake reports.
type hosts struct {
	fake  *Fake
	facts wire.HostFacts // guarded by fake.mu
}

// SetHost replaces the facts that Host returns. At first they describe an engine without known holes.
func (h *hosts) SetHost(facts wire.HostFacts) {
	h.fake.mu.Lock()
	defer h.fake.mu.Unlock()
	h.facts = facts
}

// SetVersion replaces the version of one component in the facts that Host returns.
func (h *hosts) SetVersion(component, version string) {
	h.fake.mu.Lock()
	defer h.fake.mu.Unlock()
	h.facts.Components = slices.Clone(h.facts.Components)
	for i := range h.facts.Components {
		if h.facts.Components[i].Name == component {
			h.facts.Components[i].Version = version
		}
	}
}

// Host returns the facts of SetHost.
func (h *hosts) Host(ctx context.Context, _ bool) (wire.HostFacts, error) {
	if err := h.fake.allow(ctx, Call{Method: "Host"}); err != nil {
		return wire.HostFacts{}, err
	}
	h.fake.mu.Lock()
	defer h.fake.mu.Unlock()
	return h.facts, nil
}
