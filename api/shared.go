package api

import (
	"context"
	"sync"
	"time"
)

// shared reads a value once for all callers who want it at the same time. A
// caller never gets a value whose read began before the call, so what was
// committed before the call is in the value. The zero shared is ready to use.
type shared[K comparable, V any] struct {
	mu   sync.Mutex
	open map[K]*sharedValue[V]
}

type sharedValue[V any] struct {
	callers int // guarded by shared.mu
	turn    chan struct{}

	// Fields of the current read.
	begun time.Time // zero: nothing was read
	value V
}

// get returns the value of key, read by this call or by another that began to
// read after this call began.
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

func (s *shared[K, V]) leave(key K, v *sharedValue[V]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if v.callers--; v.callers == 0 {
		delete(s.open, key)
	}
}
