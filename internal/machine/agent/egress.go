package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"sync"
	"time"

	"berth"
	"berth/activities/node"
	"berth/internal/lib/publicnet"
	"berth/internal/machine/firewall"
	"berth/internal/machine/resolver"
	"berth/spec"
)

// Egress configures the enforcement of egress policies. The zero value enforces none: containers
// use the engine's bridge.
type Egress struct {
	Table *firewall.Table // holds the rules; nil: none
	// Private are networks that are not public and that jobs may list.
	Private []netip.Prefix
	// Resolvers are the name servers of containers; none: the ones of the engine, or Names.
	Resolvers []netip.Addr
	// Ahead is the number of networks that wait for jobs; 0: each job's network is created at the start of the job.
	Ahead int
	// Names is the machine's own resolver, to which the table leads all questions of containers; nil: the table lets
	// questions to Resolvers through.
	Names *resolver.Server
}

// labelPolicy is the label of a walled network with its policy, a spec.Network as JSON. It is
// the only record of the policy on the machine.
const labelPolicy = "berth.egress"

// labelNames is the label, with the value spec.EgressHeld, of a network whose containers resolve only
// the names of their lists. Networks of agents without a resolver lack it.
const labelNames = "berth.names"

// walls keeps the rules of this machine's job networks. All methods may be called concurrently,
// and do nothing on a machine that enforces no policy.
type walls struct {
	Egress
	runtime node.Runtime
	log     *slog.Logger

	mu      sync.Mutex
	known   map[string]firewall.Network // networks with rules, by the engine's name for them
	refused refusedNames

	pool *networkPool
}

// newWalls returns the walls of a machine, without any network.
func newWalls(cfg Config, cluster func() string, log *slog.Logger) *walls {
	w := &walls{Egress: cfg.Egress, runtime: cfg.Runtime, log: log, known: map[string]firewall.Network{}}
	w.pool = newNetworkPool(w, cfg.Egress.Ahead, cluster, cfg.Timing, log)
	if w.Names != nil {
		w.Names.OnRefused(func(n firewall.Network, name string) { w.refused.add(n.Name, name) })
	}
	return w
}

// held reports whether this machine enforces policies.
func (w *walls) held() bool { return w.Table != nil }

// labels returns the machine's labels about policies. A gang is walled only if its network is
// the engine's own.
func (w *walls) labels(gangNetwork string) map[string]string {
	labels := map[string]string{}
	if w.held() {
		labels[spec.EgressLabel] = spec.EgressHeld
		if gangNetwork == "" {
			labels[spec.EgressGangLabel] = spec.EgressHeld
		}
		if w.Names != nil {
			labels[spec.NamesLabel] = spec.EgressHeld
		}
	}
	return labels
}

// restore writes the rules of all networks of the engine, those of other clusters included:
// containers of an earlier cluster may still run. It is the first step of an agent process, since
// the table takes no network before.
func (w *walls) restore(ctx context.Context) error {
	if !w.held() {
		return nil
	}
	mark := w.Table.Mark()
	w.mu.Lock()
	before := maps.Clone(w.known)
	w.mu.Unlock()
	found, err := w.runtime.Networks(ctx, nil)
	if err != nil {
		return err
	}
	now, err := w.walled(ctx, found, before)
	if err != nil {
		return err
	}
	if err := w.Table.Restore(ctx, mark, slices.Collect(maps.Values(now))); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for name := range before { // networks that came after the list stay
		if _, listed := now[name]; !listed {
			delete(w.known, name)
			w.refused.forget(name)
		}
	}
	for name, n := range now {
		// A job may have taken the network after the list: this process knows the policy better.
		if _, newer := w.known[name]; !newer || !isPooled(name) {
			w.known[name] = n
		}
	}
	return nil
}

// walled describes the networks with a policy, of all that the engine has. before has the ones that this process knows.
func (w *walls) walled(
	ctx context.Context, found []node.Network, before map[string]firewall.Network,
) (map[string]firewall.Network, error) {
	now := map[string]firewall.Network{}
	records := poolRecords{walls: w, known: before}
	for _, n := range found {
		policy, walled := w.policy(n)
		if n.Labels[labelPool] != "" {
			var err error
			if policy, walled, err = records.policy(ctx, n); err != nil {
				return nil, err
			}
		}
		if !walled { // made by an agent that enforces no policies, and perhaps walled by this process
			var b firewall.Network
			b, walled = before[n.Name]
			policy = b.Policy
		}
		if !walled || n.Bridge == "" || !n.Subnet.IsValid() {
			continue
		}
		now[n.Name] = bridgeOf(n, policy)
	}
	return now, nil
}

// bridgeOf describes an engine's network for the rules.
func bridgeOf(n node.Network, policy spec.Network) firewall.Network {
	return firewall.Network{
		Name: n.Name, Bridge: n.Bridge, Subnet: n.Subnet, Policy: policy,
		AnyName: n.Labels[labelNames] != spec.EgressHeld,
	}
}

// policy returns the policy that the engine has recorded for a network, if it has one.
func (w *walls) policy(n node.Network) (policy spec.Network, walled bool) {
	text, walled := n.Labels[labelPolicy]
	if !walled {
		return spec.Network{}, false
	}
	if err := json.Unmarshal([]byte(text), &policy); err != nil {
		w.log.Error("network has an unreadable egress policy, its containers reach nothing",
			"network", n.Name, "err", err)
		policy = spec.Network{Egress: spec.EgressNone}
	}
	return policy, true
}

// restoreFirst repeats restore until it succeeds or ctx ends.
func (w *walls) restoreFirst(ctx context.Context, timing Timing) {
	for wait := timing.backoff(); ctx.Err() == nil; {
		err := w.restore(ctx)
		if err == nil {
			return
		}
		w.log.Warn("cannot write the egress rules of present networks, will retry", "err", err)
		_ = wait.wait(ctx) // the loop sees ctx's end
	}
}

// wall returns once the rules of a network are in force.
func (w *walls) wall(ctx context.Context, n node.Network, policy spec.Network) error {
	if n.Bridge == "" || !n.Subnet.IsValid() {
		return fmt.Errorf("wall network %s: the engine reports neither its bridge nor its subnet", n.Name)
	}
	return w.write(ctx, bridgeOf(n, policy))
}

// write returns once these rules of a network are in force.
func (w *walls) write(ctx context.Context, n firewall.Network) error {
	w.mu.Lock() // first: from its rules on, each comparison finds the network here
	w.known[n.Name] = n
	w.mu.Unlock()
	if err := w.Table.Add(ctx, n); err != nil {
		return fmt.Errorf("wall network %s: %w", n.Name, err)
	}
	return nil
}

// resolvers returns the name servers of the containers on a walled network. Without names there
// is one all the same, the bridge's address, which the rules reject: an engine that is given none
// asks the host's own in the namespace of the host, where the rules do not see the question. On a
// host whose name servers containers cannot reach, the rules lead questions to the bridge's address
// to the machine's resolver.
func (w *walls) resolvers(n node.Network, policy spec.Network) []netip.Addr {
	gateway := []netip.Addr{n.Subnet.Masked().Addr().Next()}
	if policy.Policy() == spec.EgressNone || len(w.Resolvers) == 0 && w.Names != nil {
		return gateway
	}
	return w.Resolvers
}

// remove removes a network that no container is on, and then its rules. The error is the engine's.
func (w *walls) remove(ctx context.Context, name string) error {
	var mark firewall.Mark // another member may make the network again before the rules go
	if w.held() {
		mark = w.Table.Mark()
	}
	w.pool.release(name)
	err := w.runtime.RemoveNetwork(ctx, name)
	if err == nil {
		w.left(ctx, name, mark)
	}
	return err
}

// left drops the rules of a network that the engine has removed after since.
func (w *walls) left(ctx context.Context, name string, since firewall.Mark) {
	if !w.held() {
		return
	}
	w.mu.Lock()
	n, known := w.known[name]
	w.mu.Unlock()
	if !known {
		return
	}
	w.refused.forget(name)
	if err := w.Table.Remove(ctx, since, n.Bridge); err != nil && ctx.Err() == nil {
		w.log.Warn("cannot remove the egress rules of a network, will retry with the next change",
			"network", name, "err", err)
	}
}

// permits returns the reason why the operator of this machine forbids a policy, or nil.
func (w *walls) permits(policy spec.Network) error {
	for i, d := range policy.Allow {
		if d.Name() != "" {
			continue // the addresses are judged once they are known
		}
		p, err := d.Prefix()
		if err != nil {
			return berth.Errorf(berth.CodeInvalid, "network.allow[%d].to: %v", i, err)
		}
		special := slices.ContainsFunc(publicnet.Special4(), p.Overlaps)
		within := func(private netip.Prefix) bool { return private.Bits() <= p.Bits() && private.Overlaps(p) }
		if special && !slices.ContainsFunc(w.Private, within) {
			return berth.Errorf(berth.CodeInvalid, "network.allow[%d].to: %s is not public, and the operator of this "+
				"machine does not let jobs reach it (berth-agent --private-egress)", i, d.To)
		}
	}
	return nil
}

// protectEvery is the interval of look-ups of the control plane's name.
const protectEvery = time.Minute

// maxControl bounds the addresses of the control plane, of which old ones are kept: a name may
// alternate between addresses.
const maxControl = 256

// watch repairs the table after foreign changes and keeps the control plane's addresses in it,
// until ctx ends.
func (w *walls) watch(ctx context.Context, b beat, server string) {
	if !w.held() {
		return
	}
	var all sync.WaitGroup
	defer all.Wait()
	all.Go(func() { w.Table.Run(ctx, nil) })
	var known []netip.Addr
	for {
		known = w.protect(ctx, server, known)
		if b.sleep(ctx, protectEvery) != nil {
			return
		}
	}
}

// protect puts the server's present and known addresses out of reach, and returns them.
func (w *walls) protect(ctx context.Context, server string, known []netip.Addr) []netip.Addr {
	u, err := url.Parse(server)
	if err != nil {
		return known // the configuration was checked
	}
	found, err := net.DefaultResolver.LookupNetIP(ctx, "ip", u.Hostname())
	if err != nil {
		if ctx.Err() == nil {
			w.log.Warn("cannot resolve the control plane's name for the egress rules, will retry", "err", err)
		}
		return known
	}
	for _, a := range found {
		// Loopback is the machine itself, which no job reaches.
		if a = a.Unmap(); !a.IsLoopback() && !slices.Contains(known, a) && len(known) < maxControl {
			known = append(known, a)
		}
	}
	if err := w.Table.Protect(ctx, known); err != nil && !errors.Is(err, context.Canceled) {
		w.log.Warn("cannot write the control plane's addresses into the egress rules, will retry", "err", err)
		return nil
	}
	return known
}
