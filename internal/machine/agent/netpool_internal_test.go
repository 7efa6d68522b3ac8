package agent

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"berth"
	"berth/activities/node"
)

// poolEngine is an engine of networks with a fixed number of subnets.
type poolEngine struct {
	mu      sync.Mutex
	subnets int             // that are free
	has     map[string]bool // networks
	calls   int
	gone    map[string]bool // bridges that somebody removed
}

// poolOver returns a pool of a size over an engine.
func poolOver(e *poolEngine, size int) *networkPool {
	e.has, e.gone = map[string]bool{}, map[string]bool{}
	p := &networkPool{
		size: size, cluster: func() string { return "c1" }, log: slog.New(slog.DiscardHandler),
		timing: Timing{}.withDefaults(), wake: make(chan struct{}, 1), live: map[string]bool{},
		create: func(_ context.Context, name, cluster string) (node.Network, error) {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.calls++
			if e.subnets == 0 {
				return node.Network{}, fmt.Errorf("create: %w", node.ErrNoNetwork)
			}
			e.subnets--
			e.has[name] = true
			return node.Network{Name: name, Bridge: "b" + name, Labels: map[string]string{berth.LabelCluster: cluster}}, nil
		},
		present: func(bridge string) bool {
			e.mu.Lock()
			defer e.mu.Unlock()
			return !e.gone[bridge]
		},
	}
	p.remove = func(_ context.Context, name string) error {
		p.release(name)
		e.mu.Lock()
		defer e.mu.Unlock()
		e.calls++
		if e.has[name] {
			delete(e.has, name)
			e.subnets++
		}
		return nil
	}
	return p
}

// state returns the number of networks of the engine, its free subnets, and the calls so far.
func (e *poolEngine) state() (networks, subnets, calls int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.has), e.subnets, e.calls
}

// Twenty starts at one time share no network, and the pool is full again afterwards.
func TestANetworkIsTakenOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := &poolEngine{subnets: 100}
		p := poolOver(e, 8)
		ctx, cancel := context.WithCancel(t.Context())
		var all, takes sync.WaitGroup
		all.Go(func() { p.run(ctx) })
		synctest.Wait()
		var mu sync.Mutex
		taken := map[string]int{}
		for range 20 {
			takes.Go(func() {
				if n, ok := p.take(); ok {
					mu.Lock()
					defer mu.Unlock()
					taken[n.Name]++
				}
			})
		}
		takes.Wait()
		if len(taken) != 8 {
			t.Errorf("%d networks were taken of 8", len(taken))
		}
		for name, times := range taken {
			if times != 1 {
				t.Errorf("network %s was taken %d times", name, times)
			}
			if !p.isLive(name) {
				t.Errorf("the sweep may remove %s, which a job has", name)
			}
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if n, _, _ := e.state(); n != 16 {
			t.Errorf("the engine has %d networks, want 8 of jobs and 8 in the pool", n)
		}
		cancel()
		all.Wait()
		if n, _, _ := e.state(); n != 8 {
			t.Errorf("the engine has %d networks after the agent's stop, want the 8 of jobs", n)
		}
		if _, ok := p.take(); ok {
			t.Error("a stopped pool gives a network")
		}
	})
}

// The pool of an idle machine calls nothing while it is full.
func TestAFullPoolCallsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := &poolEngine{subnets: 100}
		p := poolOver(e, 4)
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() { p.run(ctx) })
		time.Sleep(time.Hour)
		if _, _, calls := e.state(); calls != 4 {
			t.Errorf("the pool made %d calls in an hour, want 4 creations", calls)
		}
		cancel()
		all.Wait()
	})
}

// A job that finds no free subnet gets one of the pool, and the pool takes none for a while.
func TestThePoolGivesItsSubnetsToJobs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := &poolEngine{subnets: 3}
		p := poolOver(e, 3)
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() { p.run(ctx) })
		synctest.Wait()
		if _, free, _ := e.state(); free != 0 {
			t.Fatalf("%d subnets are free", free)
		}
		if !p.yield(ctx) {
			t.Error("the pool removed nothing")
		}
		p.poke()
		time.Sleep(poolYield / 2)
		if _, free, _ := e.state(); free != 3 {
			t.Errorf("%d of 3 subnets are free for jobs", free)
		}
		if p.yield(ctx) {
			t.Error("an empty pool reports a removal")
		}
		time.Sleep(2 * poolYield)
		if n, _, _ := e.state(); n != 3 {
			t.Errorf("the pool has %d networks later, want 3", n)
		}
		cancel()
		all.Wait()
	})
}

// Without a free subnet, the pool gives up the networks that it has: another program may need the range.
func TestAPoolWithoutSubnetsHoldsNone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := &poolEngine{subnets: 2}
		p := poolOver(e, 3)
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() { p.run(ctx) })
		time.Sleep(time.Second)
		if n, free, _ := e.state(); n != 0 || free != 2 {
			t.Errorf("the pool holds %d networks, %d subnets are free", n, free)
		}
		cancel()
		all.Wait()
	})
}

// A network whose bridge somebody has removed serves no job, and neither does one of another cluster.
func TestANetworkThatIsGoneIsNotTaken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := &poolEngine{subnets: 100}
		p := poolOver(e, 2)
		var cluster atomic.Value // the goroutine of the pool reads it
		cluster.Store(p.cluster())
		p.cluster = func() string { return cluster.Load().(string) }
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() { p.run(ctx) })
		synctest.Wait()
		e.mu.Lock()
		for name := range e.has {
			e.gone["b"+name] = true
		}
		e.mu.Unlock()
		if n, ok := p.take(); ok {
			t.Errorf("network %s without a bridge was taken", n.Name)
		}
		time.Sleep(time.Second)
		cluster.Store("c2")
		if n, ok := p.take(); ok {
			t.Errorf("network %s of another cluster was taken", n.Name)
		}
		time.Sleep(time.Second)
		if n, ok := p.take(); !ok || n.Labels[berth.LabelCluster] != "c2" {
			t.Errorf("taken is %+v, %v", n, ok)
		}
		cancel()
		all.Wait()
	})
}
