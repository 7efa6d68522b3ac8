package docker

import (
	"context"
	"errors"
	"sync"
)

// pulls lets callers with the same key share one attempt. The attempt belongs to all of the
// callers: it is abandoned when the last one has left, not when the first one's context ends.
type pulls struct {
	running sync.WaitGroup

	mu     sync.Mutex
	closed bool
	byKey  map[string]*pull
}

// pull is one attempt and the callers that wait for its end.
type pull struct {
	cancel  context.CancelFunc
	waiters int
	done    chan struct{}
	err     error // set before done is closed
}

var errClosed = errors.New("engine client is closed")

// do runs work under key, or joins the attempt under way.
func (p *pulls) do(ctx context.Context, key string, work func(context.Context) error) error {
	one, err := p.join(ctx, key, work)
	if err != nil {
		return err
	}
	select {
	case <-one.done:
		return one.err
	case <-ctx.Done():
		p.leave(key, one)
		return ctx.Err()
	}
}

// join returns the running attempt for a key, or starts one. The attempt keeps the values of ctx,
// but not its end. Each join must be followed by a leave.
func (p *pulls) join(ctx context.Context, key string, work func(context.Context) error) (*pull, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errClosed
	}
	if one := p.byKey[key]; one != nil {
		one.waiters++
		return one, nil
	}
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	one := &pull{cancel: cancel, waiters: 1, done: make(chan struct{})}
	if p.byKey == nil {
		p.byKey = make(map[string]*pull)
	}
	p.byKey[key] = one
	p.running.Go(func() {
		defer cancel()
		one.err = work(own)
		p.mu.Lock()
		if p.byKey[key] == one {
			delete(p.byKey, key)
		}
		p.mu.Unlock()
		close(one.done)
	})
	return one, nil
}

// leave gives up waiting. An abandoned attempt is removed from the table at once, so
// that the next caller does not join a dying one.
func (p *pulls) leave(key string, one *pull) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if one.waiters--; one.waiters == 0 {
		one.cancel()
		if p.byKey[key] == one {
			delete(p.byKey, key)
		}
	}
}

// close cancels all attempts and waits for their end. Later joins fail.
func (p *pulls) close() {
	p.mu.Lock()
	p.closed = true
	for _, one := range p.byKey {
		one.cancel()
	}
	p.mu.Unlock()
	p.running.Wait()
}
