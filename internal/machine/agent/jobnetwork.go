package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strconv"

	"berth"
	"berth/activities/node"
	"berth/internal/machine/firewall"
	"berth/spec"
)

// noEgress is the policy of a network that waits for a job: it lets nothing out. It is a variable since Go has no
// constant structs, and never changes.
var noEgress = spec.Network{Egress: spec.EgressNone}

// ahead creates a network before its job is known, and returns once rules without egress are in force.
func (w *walls) ahead(ctx context.Context, name, cluster string) (node.Network, error) {
	made, err := w.runtime.EnsureNetwork(ctx, w.pooledNetwork(name, cluster))
	if err != nil {
		return node.Network{}, err
	}
	if err := w.wall(ctx, made, noEgress); err != nil {
		return node.Network{}, errors.Join(err, w.runtime.RemoveNetwork(ctx, name))
	}
	return made, nil
}

// pooledNetwork returns the request for a network that is created ahead.
func (w *walls) pooledNetwork(name, cluster string) node.Network {
	n := node.Network{
		Name: name, Hosts: 1, Labels: map[string]string{berth.LabelCluster: cluster, labelPool: w.Table.Name()},
	}
	if w.Names != nil {
		n.Labels[labelNames] = spec.EgressHeld
	}
	return n
}

// stand returns once the rules of a network that was created ahead are the rules of its job. It is cheap if they are.
// Another process may have created the container after this one read the policies of all networks. Networks of other
// kinds have their policy in their own labels.
func (w *walls) stand(ctx context.Context, name string, policy spec.Network) error {
	if !isPooled(name) {
		return nil
	}
	w.mu.Lock()
	n, known := w.known[name]
	w.mu.Unlock()
	if !w.held() || !known {
		return fmt.Errorf("network %s was removed before the start of its container: %w", name, node.ErrNoNetwork)
	}
	n.Policy = policy
	return w.write(ctx, n)
}

// poolRecords finds the policies of networks that were created ahead. The record is a label of the container on the
// network, since labels of networks cannot change.
type poolRecords struct {
	walls *walls
	known map[string]firewall.Network          // to this process
	read  map[string]map[string]node.Container // by owner and network; lists are read when they are needed
}

// policy returns the policy of a network. A network of this agent without a record is closed. A network of another
// agent of this engine has no rules here before it has a container.
func (r *poolRecords) policy(ctx context.Context, n node.Network) (policy spec.Network, walled bool, err error) {
	if known, ok := r.known[n.Name]; ok {
		return known.Policy, true, nil
	}
	owner := n.Labels[labelPool]
	list, ok := r.read[owner]
	if !ok {
		found, err := r.walls.runtime.List(ctx, map[string]string{labelPool: owner})
		if err != nil {
			return spec.Network{}, false, err
		}
		list = map[string]node.Container{}
		for _, c := range found {
			list[c.Labels[berth.LabelNetwork]] = c
		}
		if r.read == nil {
			r.read = map[string]map[string]node.Container{}
		}
		r.read[owner] = list
	}
	if c, ok := list[n.Name]; ok {
		policy, walled = r.walls.policy(node.Network{Name: n.Name, Labels: c.Labels})
		if walled {
			return policy, true, nil
		}
	}
	return noEgress, owner == r.walls.Table.Name(), nil
}

// takeNetwork takes a network out of the pool for a job with one member. A gang's network has a name that all agents of
// the engine know.
func (p *createPhase) takeNetwork() (node.Network, bool) {
	if p.claim.gang() || !p.walls.held() {
		return node.Network{}, false
	}
	return p.walls.pool.take()
}

// keepNetwork adopts the network of a container that an earlier process of this agent created for this member. The
// network that was taken for this try serves no job and goes.
func (p *createPhase) keepNetwork(c node.Container) {
	if name, ok := c.Labels[berth.LabelNetwork]; ok && name != *p.network {
		p.walls.pool.toss(*p.network)
		*p.network = name
	}
}

// ensureNetwork creates the job's network if the engine does not have the network yet. It
// returns the resolvers of containers once the network's rules are in force.
func (p *createPhase) ensureNetwork(ctx context.Context, again bool) ([]netip.Addr, error) {
	if !p.walls.held() {
		_, err := p.runtime.EnsureNetwork(ctx, p.jobNetwork())
		return nil, err
	}
	made, err := p.obtainNetwork(ctx, again)
	if err != nil {
		return nil, err
	}
	if err := p.walls.wall(ctx, made, p.claim.Spec.Network); err != nil {
		return nil, err
	}
	return p.walls.resolvers(made, p.claim.Spec.Network), nil
}

// jobNetwork returns the request for a network that is named by its job.
func (p *createPhase) jobNetwork() node.Network {
	return node.Network{Name: *p.network, Labels: map[string]string{
		berth.LabelCluster: p.cluster(),
		berth.LabelJob:     string(p.job),
		berth.LabelAttempt: strconv.Itoa(p.attempt),
	}}
}

// obtainNetwork returns the network that was taken out of the pool, or creates one. After an error it asks the engine
// for a taken network, too: the operator may have pruned the network.
func (p *createPhase) obtainNetwork(ctx context.Context, again bool) (node.Network, error) {
	if p.ahead != nil {
		if !again {
			return *p.ahead, nil
		}
		return p.runtime.EnsureNetwork(ctx, p.walls.pooledNetwork(p.ahead.Name, p.cluster()))
	}
	policy, err := policyLabel(p.claim.Spec.Network)
	if err != nil {
		return node.Network{}, err
	}
	n := p.jobNetwork()
	n.Labels[labelPolicy], n.Hosts = policy, max(1, len(p.claim.Peers))
	if p.walls.Names != nil {
		n.Labels[labelNames] = spec.EgressHeld
	}
	made, err := p.runtime.EnsureNetwork(ctx, n)
	if errors.Is(err, node.ErrNoNetwork) && p.walls.pool.yield(ctx) { // jobs come before the pool
		made, err = p.runtime.EnsureNetwork(ctx, n)
	}
	switch {
	case err != nil:
	case p.claim.Spec.Network.Strict() && made.Labels[labelPolicy] != policy:
		err = fmt.Errorf("network.egress: %s: an agent that enforces no policies has made "+
			"the network of this job: %w", p.claim.Spec.Network.Egress, node.ErrNoNetwork)
	case p.claim.Spec.Network.Named() && made.Labels[labelNames] != spec.EgressHeld:
		err = fmt.Errorf("network.allow: an agent that does not restrict names has made the network of this "+
			"job: %w", node.ErrNoNetwork)
	}
	return made, err
}

// policyLabel returns the value of labelPolicy.
func policyLabel(policy spec.Network) (string, error) {
	text, err := json.Marshal(policy)
	return string(text), err
}

// poolLabels returns the labels of a container on a network that was created ahead: the record of its policy.
func (p *createPhase) poolLabels() (map[string]string, error) {
	if p.ahead == nil {
		return nil, nil
	}
	policy, err := policyLabel(p.claim.Spec.Network)
	return map[string]string{labelPool: p.walls.Table.Name(), labelPolicy: policy}, err
}
