package api

import (
	"context"
	"sync"
	"time"

	"berth"
	"berth/internal/lib/overload"
)

// lookups resolves keys with at most one query at a time: each query asks for all keys
// that have arrived since the query before. However many callers send unknown keys, the
// look-ups take one connection of the database and 1/pause queries a second, and a caller
// with a good key waits for at most two queries.
type lookups[A any] struct {
	find  func(ctx context.Context, keys []string) ([]A, error) // one answer per key, in order
	pause time.Duration                                         // between the starts of two queries

	turn chan struct{} // a lock, held by the caller that runs the query; guards last
	last time.Time     // start of the last query

	mu      sync.Mutex
	waiting []*lookup[A]
}

// lookup is the question of one caller. Only the caller that runs the query writes answer
// and err, before it closes done.
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

// ask returns the answer for a key. One of the waiting callers runs the query for all.
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
			return none, ctx.Err() // its key stays in the next query, which is harmless
		case l.turn <- struct{}{}:
			l.serve(ctx, me)
			<-l.turn
		}
	}
}

// enter queues a question and returns true, or false while lookupRoom questions wait.
func (l *lookups[A]) enter(me *lookup[A]) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting) >= lookupRoom {
		return false
	}
	l.waiting = append(l.waiting, me)
	return true
}

// serve runs one query for all waiting callers. The holder of the turn that has received
// its answer meanwhile returns at once.
func (l *lookups[A]) serve(ctx context.Context, me *lookup[A]) {
	select {
	case <-me.done:
		return
	case <-ctx.Done():
		return
	case <-time.After(time.Until(l.last.Add(l.pause))):
	}
	select { // of several ready cases, the ones above pick any
	case <-me.done:
		return
	default:
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
	// Other callers wait for the answer, even if this caller hangs up. Every call waits for
	// its token first, so the queries have connections of their own.
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
