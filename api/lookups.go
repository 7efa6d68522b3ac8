package api

import (
	"context"
	"sync"
	"time"

	"berth"
	"berth/internal/lib/overload"
)

// lookups resolves keys with at most one query at a time: a query
// asks for every key that has arrived since the query before it. However many
// callers send unknown keys, they take one connection of the database
// and 1/pause queries a second, and a caller with a good key waits for two
// queries at most.
type lookups[A any] struct {
	find  func(ctx context.Context, keys []string) ([]A, error) // an answer for each key, in order
	pause time.Duration                                         // between the begins of two queries

	turn chan struct{} // held by the caller who runs the query; guards last
	last time.Time     // begin of the last query

	mu      sync.Mutex
	waiting []*lookup[A]
}

type lookup[A any] struct {
	key    string
	done   chan struct{} // closed once answer and err are set
	answer A
	err    error
}

const (
	lookupBatch = 1000             // keys of one query
	lookupRoom  = 20_000           // keys that may wait
	lookupLimit = 10 * time.Second // on one query
)

func newLookups[A any](find func(context.Context, []string) ([]A, error), pause time.Duration) *lookups[A] {
	return &lookups[A]{find: find, pause: pause, turn: make(chan struct{}, 1)}
}

// ask returns the answer for a key. One of the callers that wait runs the query
// for all of them.
func (l *lookups[A]) ask(ctx context.Context, key string) (none A, err error) {
	me := &lookup[A]{key: key, done: make(chan struct{})}
	if !l.enter(me) {
		return none, berth.Errorf(berth.CodeUnavailable, "too many unknown tokens are being looked up; try again")
	}
	for {
		select {
		case <-me.done:
			return me.answer, me.err
		case <-ctx.Done():
			return none, ctx.Err() // the next query answers a caller that has gone
		case l.turn <- struct{}{}:
			l.serve(ctx, me)
			<-l.turn
		}
	}
}

func (l *lookups[A]) enter(me *lookup[A]) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) >= lookupRoom {
		return false
	}
	l.waiting = append(l.waiting, me)
	return true
}

// serve runs one query for all waiting callers, unless the caller who holds the turn
// has its answer already.
func (l *lookups[A]) serve(ctx context.Context, me *lookup[A]) {
	select {
	case <-me.done:
		return
	case <-ctx.Done():
		return
	case <-time.After(time.Until(l.last.Add(l.pause))):
	}
	l.last = time.Now()
	l.mu.Lock()
	n := min(len(l.waiting), lookupBatch)
	batch := l.waiting[:n:n]
	l.waiting = l.waiting[n:]
	l.mu.Unlock()
	keys := make([]string, n)
	for i, w := range batch {
		keys[i] = w.key
	}
	// Others wait for the answer, although this caller may hang up.
	// Every call waits for its token first, reads as well, so the query goes before
	// all other work.
	ctx, cancel := context.WithTimeout(overload.As(context.WithoutCancel(ctx), overload.Vital), lookupLimit)
	defer cancel()
	answers, err := l.find(ctx, keys)
	for i, w := range batch {
		if w.err = err; err == nil {
			w.answer = answers[i]
		}
		close(w.done)
	}
}
