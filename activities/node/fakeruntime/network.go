package fakeruntime

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"berth/activities/node"
)

// EnsureNetwork records the network. It connects nothing: the programs of a fake use the
// network of their process.
func (f *Fake) EnsureNetwork(ctx context.Context, n node.Network) (node.Network, error) {
	if err := f.allow(ctx, Call{Method: "EnsureNetwork", Subject: n.Name}); err != nil {
		return node.Network{}, err
	}
	return slowly(ctx, f.Faults, Call{Method: "EnsureNetwork", Subject: n.Name}, func() (node.Network, error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if _, ok := f.networks[n.Name]; !ok {
			// The first call decides; the labels are copied, since the caller may reuse its
			// map.
			n.Labels, n.CreatedAt = maps.Clone(n.Labels), time.Now()
			f.networks[n.Name] = n
		}
		return f.networks[n.Name], nil
	})
}

// RemoveNetwork removes a network without containers.
func (f *Fake) RemoveNetwork(ctx context.Context, name string) error {
	if err := f.allow(ctx, Call{Method: "RemoveNetwork", Subject: name}); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	// Exited containers count too, as in Docker: a restart of one would need the network.
	for _, c := range f.containers {
		if c.spec.Network == name {
			return fmt.Errorf("remove network %s: container %s is on it: %w", name, c.spec.Name, node.ErrNetworkInUse)
		}
	}
	delete(f.networks, name)
	return nil
}

// Networks returns the networks with every given label, by name.
func (f *Fake) Networks(ctx context.Context, labels map[string]string) ([]node.Network, error) {
	if err := f.allow(ctx, Call{Method: "Networks"}); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var found []node.Network
	for _, n := range f.networks {
		if carries(n.Labels, labels) {
			found = append(found, n)
		}
	}
	slices.SortFunc(found, func(a, b node.Network) int { return strings.Compare(a.Name, b.Name) })
	return found, nil
}

// known reports whether a container may be created on a network; f.mu is held.
func (f *Fake) known(network string) bool {
	_, ok := f.networks[network]
	return ok || network == "" || network == node.HostNetwork || f.options.Networks[network]
}

// carries reports whether all wanted labels are present with the same values.
func carries(have, want map[string]string) bool {
	for k, v := range want {
		if x, ok := have[k]; !ok || x != v {
			return false
		}
	}
	return true
}
