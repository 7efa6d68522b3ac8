package proof_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"
)

// stalls measures how long the machine that runs the tests stands still: Berth's limits apply
// strictly only while the machine itself is on time. It observes parts that are not under test:
// the clock, the disk, and the engine if there is one.
type stalls struct {
	mu      sync.Mutex
	held    []time.Duration // by observed part
	longest time.Duration   // at a stretch
}

const (
	stallLook = 50 * time.Millisecond
	stallFree = 200 * time.Millisecond // a look that takes no longer is none
	stallLong = 500 * time.Millisecond // a renewal passes several processes, and each may be held for as long
)

// watchStalls measures until the test ends.
func (s *stack) watchStalls() *stalls {
	w := &stalls{}
	ctx, cancel := context.WithCancel(context.Background())
	var looking sync.WaitGroup
	look := func(what func() error) {
		at := len(w.held)
		w.held = append(w.held, 0)
		looking.Go(func() {
			tick := time.NewTicker(stallLook)
			defer tick.Stop()
			for last := time.Now(); ; last = time.Now() {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				if err := what(); err != nil && ctx.Err() == nil {
					s.t.Errorf("see whether the machine stands still: %v", err)
					return
				}
				w.add(at, time.Since(last)-stallLook-stallFree)
			}
		})
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	look(func() error { return writeThrough(filepath.Join(s.dir, "stalls")) })
	if s.engine != nil {
		look(func() error { _, err := s.engine.api.Ping(ctx); return err })
	}
	s.t.Cleanup(func() { cancel(); looking.Wait() })
	return w
}

func (w *stalls) add(at int, d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held[at] += max(d, 0)
	w.longest = max(w.longest, d)
}

// total is how long it has stood still up to now.
func (w *stalls) total() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Max(w.held)
}

// worst is the longest time at a stretch that it has stood still.
func (w *stalls) worst() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.longest
}

// writeThrough writes a file to the disk itself.
func writeThrough(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.WriteString("x"); err != nil {
		return err
	}
	return f.Sync()
}

// wantWithin checks a limit that is promised, to which the time is added that the
// machine itself stood still meanwhile.
func wantWithin(t testing.TB, what string, took, limit, stalled time.Duration) {
	t.Helper()
	t.Logf("%s after %s; meanwhile the machine stood still for %s", what, took.Round(time.Millisecond), stalled.Round(time.Millisecond))
	if took > limit+stalled {
		t.Errorf("%s after %s, want %s at most, and %s that the machine stood still", what, took, limit, stalled)
	}
}
