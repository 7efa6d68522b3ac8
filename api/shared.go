package api

import (
	"context"
	"sync"
	"time"
)

// shared merges the reads of callers that want the same value at the same time. A caller
// never gets a value whose read began before the call, so the value contains everything
// that was committed before the call. The zero shared is ready to use.
type shared[K comparable, V any] struct {
	mu   sync.Mutex
	open map[K]*sharedValue[V]
}

// sharedValue is one key's value. turn is a lock of one place, so that a waiting caller
// can give up with its context; it guards the fields of the current read.
type sharedValue[V any] struct {
	callers int // guarded by shared.mu
	turn    chan struct{}

	// Fields of the current read.
	begun time.Time // zero: no read so far
	value V
}

// get returns the value of key, read by this call or by another that began to read after
// this call began. An error goes to the caller whose read failed; the next caller reads
// again.
func (s *shared[K, V]) get(ctx context.Context, key K, read func(ctx context.Context) (V, error)) (V, error) {
	asked := time.Now()
	v := s.join(key)
	defer s.leave(key, v)
	select {
	case v.turn <- struct{}{}:
		defer func() { <-v.turn }()
	case <-ctx.Done():
		var none V
		return none, context.Cause(ctx)
	}
	if v.begun.After(asked) {
		return v.value, nil
	}
	begun := time.Now()
	value, err := read(ctx)
	if err == nil {
		v.begun, v.value = begun, value
	}
	return value, err
}

// join returns the value of a key and counts the caller.
func (s *shared[K, V]) join(key K) *sharedValue[V] {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.open[key]
	if v == nil {
		v = &sharedValue[V]{turn: make(chan struct{}, 1)}
		if s.open == nil {
			s.open = map[K]*sharedValue[V]{}
		}
		s.open[key] = v
	}
	v.callers++
	return v
}

// leave ends the count; the last caller removes the value.
func (s *shared[K, V]) leave(key K, v *sharedValue[V]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v.callers--; v.callers == 0 {
		delete(s.open, key)
	}
}
