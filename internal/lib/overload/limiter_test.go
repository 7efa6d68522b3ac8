package overload_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"berth/internal/lib/overload"
)

// call takes some time under the limit.
func call(t *testing.T, l *overload.Limiter, class overload.Class, took time.Duration, err error) {
	t.Helper()
	p, e := l.Acquire(t.Context(), class)
	if e != nil {
		t.Error(e)
		return
	}
	time.Sleep(took)
	p.Done(err)
}

// load keeps so many callers busy for a while.
func load(t *testing.T, l *overload.Limiter, callers int, during, took time.Duration, err error) (calls int) {
	t.Helper()
	var all sync.WaitGroup
	var mu sync.Mutex
	until := time.Now().Add(during)
	for range callers {
		all.Go(func() {
			for time.Now().Before(until) {
				call(t, l, overload.Start, took, err)
				mu.Lock()
				calls++
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return calls
}

func TestLimitShrinksWhileCallsAreSlowAndRecoversWithinSeconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := overload.New(overload.Options{})
		load(t, l, 64, 5*time.Second, 20*time.Millisecond, nil)
		if got := l.Stats().Limit; got != 32 {
			t.Fatalf("limit is %d after quick calls, want 32", got)
		}
		load(t, l, 64, 20*time.Second, 1800*time.Millisecond, nil)
		if got := l.Stats().Limit; got > 3 {
			t.Errorf("limit is %d after 20 s of slow calls, want at most 3", got)
		}
		load(t, l, 64, 3*time.Second, 20*time.Millisecond, nil)
		if got := l.Stats().Limit; got < 30 {
			t.Errorf("limit is %d after 3 s of quick calls, want it recovered", got)
		}
		load(t, l, 64, 20*time.Second, 1800*time.Millisecond, nil)
		time.Sleep(10 * time.Second) // without calls
		if got := l.Stats().Limit; got != 8 {
			t.Errorf("limit is %d after 10 s without calls, want 8, where it began", got)
		}
	})
}

func TestLimitDoesNotRecoverWhileCallsHang(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := overload.New(overload.Options{})
		calls := load(t, l, 500, time.Minute, 20*time.Second, context.DeadlineExceeded)
		if calls > 500+32+3*8 { // each caller makes one more after the time, under the limit of then
			t.Errorf("%d calls went to a server that does not answer", calls)
		}
		if got := l.Stats().Limit; got > 2 {
			t.Errorf("limit is %d, want the least", got)
		}
	})
}

func TestErrorsOfOverloadShrinkTheLimitAndOthersDoNot(t *testing.T) {
	t.Parallel()
	busy, no := errors.New("busy"), errors.New("not found")
	synctest.Test(t, func(t *testing.T) {
		l := overload.New(overload.Options{Overloaded: func(err error) bool { return errors.Is(err, busy) }})
		load(t, l, 64, 2*time.Second, 10*time.Millisecond, no)
		if got := l.Stats().Limit; got != 32 {
			t.Errorf("limit is %d after errors that are answers, want 32", got)
		}
		load(t, l, 64, 2*time.Second, 10*time.Millisecond, busy)
		if got := l.Stats().Limit; got != 2 {
			t.Errorf("limit is %d after errors of overload, want 2", got)
		}
	})
}

func TestLatencyThatDistanceExplainsDoesNotShrinkTheLimit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := overload.New(overload.Options{})
		load(t, l, 1, 5*time.Second, 450*time.Millisecond, nil) // alone, the distance is measured
		load(t, l, 64, 30*time.Second, 450*time.Millisecond, nil)
		if s := l.Stats(); s.Limit != 32 || s.Tolerance != 1350*time.Millisecond {
			t.Errorf("limit is %d and tolerance %s for a server 450 ms away", s.Limit, s.Tolerance)
		}
	})
}

// server serves so many calls at once; others wait. took changes with other load.
type server struct {
	slots chan struct{}
	took  atomic.Int64
}

// TestTheKneeKeepsThroughputAndLatency loads a server with more callers than it can
// serve at once: calls wait in the limiter's queue by class, not at the server.
func TestTheKneeKeepsThroughputAndLatency(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := overload.New(overload.Options{Knee: 2})
		s := &server{slots: make(chan struct{}, 4)}
		measure := func(took time.Duration) (perSecond float64, latency time.Duration) {
			s.took.Store(int64(took))
			const adapts, lasts = 35 * time.Second, 40 * time.Second
			from := time.Now().Add(adapts)
			until := from.Add(lasts)
			var all sync.WaitGroup
			var calls, sum atomic.Int64
			for range 64 {
				all.Go(func() {
					for time.Now().Before(until) {
						_ = l.Do(t.Context(), overload.Start, func(context.Context) error {
							began := time.Now()
							s.slots <- struct{}{}
							time.Sleep(time.Duration(s.took.Load()))
							<-s.slots
							if began.After(from) {
								calls.Add(1)
								sum.Add(int64(time.Since(began)))
							}
							return nil
						})
					}
				})
			}
			all.Wait()
			return float64(calls.Load()) / lasts.Seconds(), time.Duration(sum.Load() / calls.Load())
		}
		for _, took := range []time.Duration{100 * time.Millisecond, 300 * time.Millisecond, 100 * time.Millisecond} {
			perSecond, latency := measure(took)
			if most := 4 / took.Seconds(); perSecond < 0.85*most {
				t.Errorf("calls of %s: %.1f of %.1f possible calls a second", took, perSecond, most)
			}
			if latency > 5*took/2 {
				t.Errorf("calls of %s took %s at the server", took, latency)
			}
		}
	})
}

func TestUrgentClassesOvertake(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := overload.New(overload.Options{Max: 1, Min: 1})
		held, err := l.Acquire(t.Context(), overload.Start)
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		var order []overload.Class
		for _, class := range []overload.Class{overload.Sweep, overload.Start, overload.Reattach, overload.End, overload.Vital, overload.End} {
			all.Go(func() {
				p, err := l.Acquire(t.Context(), class)
				if err != nil {
					t.Error(err)
					return
				}
				order = append(order, class) // one at a time
				p.Done(nil)
			})
			synctest.Wait()
		}
		held.Done(nil)
		all.Wait()
		if !slices.IsSorted(order) {
			t.Errorf("served in the order %v", order)
		}
	})
}

func TestSweepsAreServedNowAndThenUnderALastingOverload(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := overload.New(overload.Options{Max: 1, Min: 1})
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for ctx.Err() == nil {
					call(t, l, overload.End, 10*time.Millisecond, nil)
				}
			})
		}
		synctest.Wait()
		began := time.Now()
		call(t, l, overload.Sweep, 10*time.Millisecond, nil)
		if d := time.Since(began); d > time.Second {
			t.Errorf("a sweep waited %s", d)
		}
		cancel()
		all.Wait()
	})
}

func TestShedCallsCostNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := overload.New(overload.Options{Max: 1, Min: 1, Queue: 1, QueueFor: time.Second})
		held, err := l.Acquire(t.Context(), overload.Start)
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		made := 0
		try := func() {
			err := l.Do(t.Context(), overload.Start, func(context.Context) error { made++; return nil })
			if !errors.Is(err, overload.ErrShed) {
				t.Errorf("got %v", err)
			}
		}
		all.Go(try) // waits a second
		synctest.Wait()
		try() // finds the queue full
		all.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := l.Acquire(ctx, overload.Start); !errors.Is(err, context.Canceled) {
			t.Errorf("a caller that has gone got %v", err)
		}
		held.Done(nil)
		if s := l.Stats(); made != 0 || s.Rejected[overload.Start] != 2 || s.InFlight != 0 || s.Queued[overload.Start] != 0 {
			t.Errorf("%d calls were made; stats %+v", made, s)
		}
	})
}

func TestCallersThatGiveUpLeaveNoPermitBehind(t *testing.T) {
	t.Parallel()
	l := overload.New(overload.Options{Max: 4, Min: 4})
	var all sync.WaitGroup
	for i := range 200 {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i%7)*time.Millisecond)
			defer cancel()
			_ = l.Do(ctx, overload.Class(i%6), func(ctx context.Context) error {
				<-ctx.Done()
				return ctx.Err()
			})
		})
	}
	all.Wait()
	if s := l.Stats(); s.InFlight != 0 || s.Binding() {
		t.Errorf("left behind: %+v", s)
	}
}

func TestACallThatPanicsLeavesNoPermitBehind(t *testing.T) {
	t.Parallel()
	l := overload.New(overload.Options{Name: "store", Min: 1, First: 1, Max: 1})
	func() {
		defer func() { _ = recover() }()
		_ = l.Do(t.Context(), overload.Start, func(context.Context) error { panic("broken call") })
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	p, err := l.Acquire(ctx, overload.Start)
	if err != nil {
		t.Fatalf("acquire after a panic: %v", err)
	}
	p.Drop()
}

func TestDeadlinesGrowAsTheDependencySlowsDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := overload.New(overload.Options{})
		load(t, l, 8, time.Second, 10*time.Millisecond, nil)
		if d := l.Deadline(); d != 5*time.Second {
			t.Errorf("deadline is %s for calls of 10 ms", d)
		}
		load(t, l, 8, time.Minute, 1500*time.Millisecond, nil)
		if d := l.Deadline(); d < 14*time.Second || d > 20*time.Second {
			t.Errorf("deadline is %s for calls of 1.5 s", d)
		}
	})
}

func TestRepeatsAreAShareOfSuccesses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := overload.NewBudget(0.1, 10, time.Second)
		took := 0
		for range 600 { // ten minutes in which nothing succeeds
			for b.Repeat() {
				took++
			}
			time.Sleep(time.Second)
		}
		if took < 600 || took > 620 {
			t.Errorf("%d repeats in ten minutes without success, want 10 and one a second", took)
		}
		for range 200 {
			b.Succeeded()
		}
		took = 0
		for range 1000 { // repeats that succeed
			if b.Repeat() {
				took++
				b.Refund()
			}
		}
		if took != 1000 {
			t.Errorf("%d of 1000 repeats were made although all succeed", took)
		}
	})
}
