package runtimetest

import (
	"context"
	"sync"

	"berth/activities/node"
)

// network creates a network for the test. The test's end removes the network with its
// containers.
func (b *bench) network() node.Network {
	b.t.Helper()
	n := node.Network{Name: "berth-test-" + b.tag, Labels: b.labels()}
	n.Labels["berth.runtimetest.more"] = "only the network has this label"
	made, err := b.Runtime.EnsureNetwork(b.ctx, n)
	if err != nil || made.Name != n.Name || made.Labels[label] != b.tag {
		b.t.Fatalf("make network: %+v, %v", made, err)
	}
	// Clean-ups run in reverse order, so this one comes before the bench removes its
	// containers. A network can go only after its containers, so this clean-up removes
	// both.
	other := b.Again(b.t)
	b.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		left, err := other.List(ctx, b.labels())
		if err != nil {
			b.t.Error(err)
		}
		for _, c := range left {
			if err := other.Remove(ctx, c.Name); err != nil {
				b.t.Error(err)
			}
		}
		if err := other.RemoveNetwork(ctx, n.Name); err != nil {
			b.t.Error(err)
		}
		_ = other.Close()
	})
	return n
}

// networkIsMadeOnce checks that concurrent EnsureNetwork calls create one network, listed
// with its labels, and that a repeated removal succeeds.
func networkIsMadeOnce(b *bench) {
	n := b.network()
	var all sync.WaitGroup
	for range 4 { // on separate connections, as of machines that share an engine
		again := b.Again(b.t)
		all.Go(func() {
			defer again.Close()
			made, err := again.EnsureNetwork(b.ctx, n)
			if err != nil || made.Name != n.Name || made.CreatedAt.IsZero() {
				b.t.Errorf("make it again: %+v, %v", made, err)
			}
		})
	}
	all.Wait()
	found, err := b.Runtime.Networks(b.ctx, b.labels())
	if err != nil || len(found) != 1 || found[0].Name != n.Name || found[0].CreatedAt.IsZero() ||
		found[0].Labels[label] != b.tag {
		b.t.Errorf("found %+v, %v", found, err)
	}
	for range 2 {
		if err := b.Runtime.RemoveNetwork(b.ctx, n.Name); err != nil {
			b.t.Errorf("remove it: %v", err)
		}
	}
	if found, err := b.Runtime.Networks(b.ctx, b.labels()); err != nil || len(found) != 0 {
		b.t.Errorf("found %+v, %v", found, err)
	}
}

// networkWithAContainerStays checks that a network with a created or an exited container is
// not removed before that container, though the network has labels that the container lacks.
func networkWithAContainerStays(b *bench) {
	n := b.network()
	spec := b.spec("a", "exit", "0")
	spec.Network = n.Name
	b.create(spec)
	wantError(b.t, b.Runtime.RemoveNetwork(b.ctx, n.Name), node.ErrNetworkInUse, "remove it under a created container")
	b.start(spec.Name)
	if c := b.wait(spec.Name); c.ExitCode != 0 {
		b.t.Errorf("container on the network ended as %+v", c)
	}
	wantError(b.t, b.Runtime.RemoveNetwork(b.ctx, n.Name), node.ErrNetworkInUse, "remove it under an exited container")
	if err := b.Runtime.Remove(b.ctx, spec.Name); err != nil {
		b.t.Fatal(err)
	}
	if err := b.Runtime.RemoveNetwork(b.ctx, n.Name); err != nil {
		b.t.Errorf("remove it: %v", err)
	}
}

// networkOfNobody checks that no container starts on a network that does not exist. An
// engine may refuse the container at Create or at Start.
func networkOfNobody(b *bench) {
	spec := b.spec("a", "exit", "0")
	spec.Network = "berth-test-" + b.tag + "-none"
	_, err := b.Runtime.Create(b.ctx, spec)
	if err == nil {
		err = b.Runtime.Start(b.ctx, spec.Name)
	}
	if err == nil {
		b.t.Error("a container began on a network that does not exist")
	}
}
