package poll_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"berth/internal/lib/poll"
)

func TestUntilReturnsOnceTheConditionHolds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		checks, began := 0, time.Now()
		if !poll.Until(time.Minute, 50*time.Millisecond, func() bool { checks++; return checks == 5 }) {
			t.Error("the condition held, and Until returned false")
		}
		// Pauses of 2, 3, 4.5 and 6.75 ms.
		if took := time.Since(began); checks != 5 || took != 16250*time.Microsecond {
			t.Errorf("%d checks in %s, want 5 in 16.25ms", checks, took)
		}
	})
}

func TestPausesStopGrowingAtTheLongest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var last, gap time.Duration
		began := time.Now()
		if poll.Until(time.Minute, 50*time.Millisecond, func() bool {
			gap, last = time.Since(began)-last, time.Since(began)
			return false
		}) {
			t.Error("the condition never held, and Until returned true")
		}
		if took := time.Since(began); took != time.Minute || gap != 50*time.Millisecond {
			t.Errorf("ended after %s with pauses of %s, want 1m0s and 50ms", took, gap)
		}
	})
}

func TestASlowCheckIsFollowedByAPauseOfThreeTimesItsLength(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		checks, began := 0, time.Now()
		poll.Until(time.Hour, 50*time.Millisecond, func() bool {
			time.Sleep(time.Second)
			checks++
			return checks == 2
		})
		if took := time.Since(began); took != 5*time.Second {
			t.Errorf("two checks of a second ended after %s, want 5s", took)
		}
	})
}

func TestForReturnsTheLastErrorOfTheCheck(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		missing := errors.New("not yet")
		err := poll.For(ctx, time.Minute, func(context.Context) error { return missing })
		if !errors.Is(err, missing) {
			t.Errorf("For returned %v, want %v", err, missing)
		}
	})
}
