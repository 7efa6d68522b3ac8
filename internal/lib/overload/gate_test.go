package overload_test

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"berth/internal/lib/overload"
)

const look = 500 * time.Millisecond

// pass starts as fast as the valve lets, but at most perSecond, between looks.
func pass(t *testing.T, g *overload.Gate, looks, perSecond int, unsettled func(i, passed int) int) (passed int) {
	t.Helper()
	for i := range looks {
		n := 0
		for range 50 {
			want := perSecond / 100
			for ; want > 0 && g.Starts.Room() > 0; want-- {
				g.Starts.Pass(1)
				n++
			}
			time.Sleep(look / 50)
		}
		passed += n
		g.Observe(overload.Pressure{Unsettled: unsettled(i, n)})
	}
	return passed
}

func none(int, int) int { return 0 }

func TestAValveWithoutPressureDoesNotBind(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := overload.NewGate(nil)
		if n := pass(t, g, 20, 200, func(i, _ int) int { return i % 4 }); n != 20*100 {
			t.Errorf("%d of 2000 starts passed", n)
		}
	})
}

// Ends that pile up as long as more than 40 starts per second pass: the valve must
// settle near the rate that the ends permit, and open once they are settled.
func TestStartsGetTheRoomThatEndsLeave(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := overload.NewGate(nil)
		backlog := 0.0
		follow := func(_, n int) int {
			backlog = max(0, backlog+float64(n)-20) // of 40 a second
			return int(backlog)
		}
		pass(t, g, 60, 200, follow)
		n := pass(t, g, 120, 200, follow)
		if n < 120*20*7/10 || n > 120*20*12/10 {
			t.Errorf("%d starts passed in a minute, want about 2400", n)
		}
		if backlog > 200 {
			t.Errorf("%v ended processes wait", backlog)
		}
		backlog = 0
		pass(t, g, 30, 20, none)
		if s := g.Starts.Stats(); s.Binding() {
			t.Errorf("the valve is not open 15 s after the last end was settled: %+v", s)
		}
	})
}

func TestAValveNeverStopsForGood(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := overload.NewGate(nil)
		n := pass(t, g, 600, 200, func(i, _ int) int { return 100 + 100*i })
		if s := g.Starts.Stats(); s.Rate < 0.4 || n < 100 {
			t.Errorf("%d starts in five minutes, %+v", n, s)
		}
		g.Observe(overload.Pressure{})
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if err := g.Starts.Wait(ctx); err != nil {
			t.Errorf("no start passes 3 s after the pressure has gone: %v", err)
		}
		pass(t, g, 30, 200, none)
		if s := g.Starts.Stats(); !math.IsInf(s.Rate, 1) {
			t.Errorf("not open after 15 s without pressure: %+v", s)
		}
	})
}

func TestPauseStopsStartsAndResumeLetsThemGo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := overload.NewGate(nil)
		g.Observe(overload.Pressure{Paused: true})
		if g.Starts.Room() != 0 || g.Placements.Room() != 0 {
			t.Error("there is room while admission is paused")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := g.Starts.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a start passed while admission is paused: %v", err)
		}
		went := make(chan error)
		go func() { went <- g.Starts.Wait(t.Context()) }()
		synctest.Wait()
		began := time.Now()
		g.Observe(overload.Pressure{})
		if err := <-went; err != nil || time.Since(began) != 0 {
			t.Errorf("after resume the start waited %s, %v", time.Since(began), err)
		}
	})
}

func TestTheGateReadsOftenOnlyWhenSomethingPasses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := overload.NewGate(nil)
		ctx, cancel := context.WithCancel(t.Context())
		var reads atomic.Int64
		done := make(chan error)
		go func() {
			done <- g.Run(ctx, func(context.Context) (overload.Pressure, error) { reads.Add(1); return overload.Pressure{}, nil })
		}()
		time.Sleep(time.Minute - time.Second)
		if reads := reads.Load(); reads > 31 {
			t.Errorf("%d reads in an idle minute", reads)
		}
		reads.Store(0)
		g.Look()
		synctest.Wait()
		if reads := reads.Load(); reads != 1 {
			t.Errorf("%d reads after a hint", reads)
		}
		reads.Store(0)
		for range 600 {
			g.Starts.Pass(1)
			time.Sleep(100 * time.Millisecond)
		}
		if reads := reads.Load(); reads < 100 {
			t.Errorf("%d reads in a busy minute", reads)
		}
		cancel()
		<-done
	})
}
