// Package background owns goroutines that outlive the calls that start them, so that a
// process can end and await them when it stops.
package background

import (
	"context"
	"sync"
)

// Group is a set of goroutines with one owner, which calls Close. Its methods may be called
// concurrently.
type Group struct {
	ctx  context.Context // canceled by Close
	stop context.CancelFunc

	mu     sync.Mutex // a start must not race with the wait of Close
	closed bool
	all    sync.WaitGroup
}

// New returns an open group without goroutines.
func New() *Group {
	g := &Group{}
	g.ctx, g.stop = context.WithCancel(context.Background())
	return g
}

// Context returns a context that Close cancels.
func (g *Group) Context() context.Context { return g.ctx }

// Go runs f in a goroutine. f must return soon after its context has ended. Go reports false,
// and f does not run, once the group is closed.
func (g *Group) Go(f func(ctx context.Context)) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return false
	}
	g.all.Go(func() { f(g.ctx) })
	return true
}

// Close ends the context of all goroutines and waits for them. It may be called again.
func (g *Group) Close() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.stop()
	g.all.Wait()
}
