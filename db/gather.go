package db

import (
	"context"
	"sync"
	"time"
)

// gather coalesces calls about single keys into statements about many. The first
// call opens a batch, later calls join it, and the batch is sent after pause, or
// as soon as one of its callers is in a hurry and a lane is free. All methods may
// be called concurrently.
//
// A batch is closed before it is sent, so its statement starts after every one of
// its calls: an answer is never older than the call that it answers.
type gather[K comparable, V any] struct {
	ask     func(ctx context.Context, keys []K) (map[K]V, error)
	pause   time.Duration // that a call without hurry waits for others, at most
	timeout time.Duration // of one statement
	lanes   chan struct{} // has room for one element per statement under way

	senders sync.WaitGroup
	mu      sync.Mutex
	next    *gathered[K, V] // open to more calls; nil: none is
}

// gathered is one batch. done is closed after the last write to got and err.
type gathered[K comparable, V any] struct {
	keys    map[K]struct{}
	hurried bool
	now     chan struct{} // closed when a caller is in a hurry
	done    chan struct{}
	got     map[K]V
	err     error
}

func newGather[K comparable, V any](lanes int, pause, timeout time.Duration,
	ask func(context.Context, []K) (map[K]V, error)) *gather[K, V] {
	return &gather[K, V]{ask: ask, pause: pause, timeout: timeout, lanes: make(chan struct{}, lanes)}
}

// ticket is one call's place in a batch.
type ticket[K comparable, V any] struct {
	g     *gather[K, V]
	key   K
	batch *gathered[K, V]
}

// join adds a call about key to the open batch.
func (g *gather[K, V]) join(key K) ticket[K, V] {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.next == nil {
		b := &gathered[K, V]{keys: map[K]struct{}{}, now: make(chan struct{}), done: make(chan struct{})}
		g.next = b
		g.senders.Go(func() { g.send(b) })
	}
	g.next.keys[key] = struct{}{}
	return ticket[K, V]{g, key, g.next}
}

// send has no caller's context: the others' answers must not end with one call.
func (g *gather[K, V]) send(b *gathered[K, V]) {
	pause := time.NewTimer(g.pause)
	defer pause.Stop()
	select {
	case <-b.now:
	case <-pause.C:
	}
	g.lanes <- struct{}{}
	g.mu.Lock()
	g.next = nil
	g.mu.Unlock()
	keys := make([]K, 0, len(b.keys))
	for k := range b.keys {
		keys = append(keys, k)
	}
	ctx, cancel := context.WithTimeout(context.Background(), g.timeout)
	b.got, b.err = g.ask(ctx, keys)
	cancel()
	<-g.lanes
	close(b.done)
}

// close waits for running statements. The caller must have stopped all new calls.
func (g *gather[K, V]) close() { g.senders.Wait() }

// hurry sends the batch now.
func (t ticket[K, V]) hurry() {
	t.g.mu.Lock()
	defer t.g.mu.Unlock()
	if !t.batch.hurried {
		t.batch.hurried = true
		close(t.batch.now)
	}
}

// answer waits for the answer without waiting for other calls. ok is false if
// the statement has found nothing of the key.
func (t ticket[K, V]) answer(ctx context.Context) (v V, ok bool, err error) {
	t.hurry()
	select {
	case <-t.batch.done:
		v, ok = t.batch.got[t.key]
		return v, ok, t.batch.err
	case <-ctx.Done():
		return v, false, ctx.Err()
	}
}
