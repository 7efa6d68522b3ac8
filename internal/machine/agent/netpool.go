package agent

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"berth"
	"berth/activities/node"
)

// labelPool is the label of a network that was created before its job was known, and of the container on it. Its
// value is the name of the table of the agent that created the network.
const labelPool = "berth.pool"

// poolPrefix begins the name of each network that was created ahead. The rest of the name is random.
const poolPrefix = "berth-ahead-"

// Waits of the pool.
const (
	// refillPause is the time from a take to the next creation: the engine handles one network at a time, and the
	// start of the container on the taken network comes first.
	refillPause = 250 * time.Millisecond
	// poolYield is the time without creations after a job found no free subnet.
	poolYield = time.Minute
	// poolDrain bounds the removals when the agent stops. The next process removes the networks that are left.
	poolDrain = 5 * time.Second
)

// networkPool holds networks that were created ahead of their jobs, each for one job. A network in the pool has no
// egress. Its life is a table in docs/adr/0121-job-networks-are-created-ahead.md. A pool makes no call to the engine
// while it is full. All methods may be called concurrently.
type networkPool struct {
	size    int           // networks that wait for a job; 0: the pool is off
	cluster func() string // that this machine serves
	timing  Timing
	log     *slog.Logger

	create  func(ctx context.Context, name, cluster string) (node.Network, error) // the rules are in force after it
	remove  func(ctx context.Context, name string) error
	present func(bridge string) bool // whether the host has this interface

	wake chan struct{} // of size 1

	mu      sync.Mutex
	idle    []node.Network  // pooled, oldest first
	tossed  []string        // to be removed: they left the pool without a job
	live    map[string]bool // networks of this process, from before their creation until their release
	yielded time.Time       // no creation before
	closed  bool
}

// newNetworkPool returns an empty pool over the walls of a machine.
func newNetworkPool(w *walls, size int, cluster func() string, timing Timing, log *slog.Logger) *networkPool {
	p := &networkPool{
		size: size, cluster: cluster, timing: timing, log: log, create: w.ahead, remove: w.remove,
		wake: make(chan struct{}, 1), live: map[string]bool{},
	}
	if w.held() {
		p.present = w.Table.HasBridge
	} else {
		p.size = 0
	}
	return p
}

// poke makes run look again.
func (p *networkPool) poke() {
	select {
	case p.wake <- struct{}{}:
	default: // a value waits
	}
}

// take takes a network out of the pool for one job, if there is one. It does not ask the engine. A network whose
// bridge is gone, after a prune by the operator for example, serves no job, and neither does one of another cluster.
func (p *networkPool) take() (node.Network, bool) {
	defer p.poke()
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.idle) > 0 {
		n := p.idle[0]
		p.idle = p.idle[1:]
		if n.Labels[berth.LabelCluster] == p.cluster() && p.present(n.Bridge) {
			return n, true
		}
		p.tossed = append(p.tossed, n.Name)
	}
	return node.Network{}, false
}

// toss has a network removed that was taken and that no container joined.
func (p *networkPool) toss(name string) {
	if !isPooled(name) {
		return
	}
	p.mu.Lock()
	p.tossed = append(p.tossed, name)
	p.mu.Unlock()
	p.poke()
}

// release ends the pool's interest in a network. From now on the sweep may remove the network.
func (p *networkPool) release(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.live, name)
}

// isLive reports whether a network is in the pool, or belongs to a member of this process.
func (p *networkPool) isLive(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.live[name]
}

// isPooled reports whether a network was created ahead of its job, by its name.
func isPooled(name string) bool { return strings.HasPrefix(name, poolPrefix) }

// yield removes the networks of the pool, so that a job gets their subnets, and stops creations for poolYield. It
// reports whether it removed any.
func (p *networkPool) yield(ctx context.Context) bool {
	p.mu.Lock()
	p.yielded = time.Now().Add(poolYield)
	given := p.idle
	p.idle = nil
	p.mu.Unlock()
	freed := false
	for _, n := range given {
		if err := p.remove(ctx, n.Name); err != nil {
			p.log.Warn("cannot remove a network that was created ahead, will be swept", "network", n.Name, "err", err)
			continue
		}
		freed = true
	}
	return freed
}

// run fills the pool until ctx ends, one network at a time, and then empties it.
func (p *networkPool) run(ctx context.Context) {
	if p.size == 0 {
		return
	}
	defer p.drain()
	back := p.timing.backoff()
	for {
		p.discard(ctx)
		missing, after := p.missing()
		switch {
		case missing && after <= 0:
			switch err := p.fill(ctx); {
			case err == nil:
				back = p.timing.backoff()
			case errors.Is(err, node.ErrNoNetwork):
				p.yield(ctx)
			case ctx.Err() == nil:
				p.log.Warn("cannot create a network ahead of jobs, will retry", "err", err)
				_ = back.wait(ctx) // the loop sees ctx's end
			}
			if ctx.Err() != nil {
				return
			}
			continue
		case !missing:
			after = 1<<63 - 1
		}
		timer := time.NewTimer(after)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-p.wake:
			timer.Stop()
			if sleep(ctx, refillPause) != nil {
				return
			}
		case <-timer.C:
		}
	}
}

// missing reports whether the pool is not full, and the time until a creation is allowed.
func (p *networkPool) missing() (bool, time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.idle) < p.size, time.Until(p.yielded)
}

// fill adds one network to the pool, once its rules are in force. If a job found no free subnet meanwhile, the network
// is removed instead.
func (p *networkPool) fill(ctx context.Context) error {
	name := poolPrefix + strings.ToLower(rand.Text()[:16])
	p.mu.Lock()
	p.live[name] = true
	p.mu.Unlock()
	n, err := p.create(ctx, name, p.cluster())
	if err != nil {
		p.release(name) // the sweep removes a network that the engine created all the same
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || time.Now().Before(p.yielded) {
		p.tossed = append(p.tossed, name)
	} else {
		p.idle = append(p.idle, n)
	}
	return nil
}

// discard removes tossed networks. The sweep removes a network whose removal fails here.
func (p *networkPool) discard(ctx context.Context) {
	p.mu.Lock()
	tossed := p.tossed
	p.tossed = nil
	p.mu.Unlock()
	for _, name := range tossed {
		if err := p.remove(ctx, name); err != nil && ctx.Err() == nil {
			p.log.Warn("cannot remove a network that was created ahead, will be swept", "network", name, "err", err)
		}
	}
}

// drain removes the pool's networks when the agent stops. Networks of members stay.
func (p *networkPool) drain() {
	ctx, cancel := context.WithTimeout(context.Background(), poolDrain)
	defer cancel()
	p.mu.Lock()
	p.closed = true
	for _, n := range p.idle {
		p.tossed = append(p.tossed, n.Name)
	}
	p.idle = nil
	p.mu.Unlock()
	p.discard(ctx)
}

// keepNetworks fills the pool, once the first session's verdict is carried out: a machine that does not serve needs
// no networks, and the containers of earlier processes come first.
func (s *Supervisor) keepNetworks(ctx context.Context) {
	if s.waitAdopted(ctx) == nil {
		s.walls.pool.run(ctx)
	}
}
