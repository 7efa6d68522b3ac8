package agent

import (
	"testing"
	"testing/synctest"
	"time"

	"berth/spec"
)

// Tasks with the same interval wake at the same instants, whenever each of them started; tasks
// with a multiple of the interval wake at some of these instants.
func TestPeriodicWorkSharesItsInstants(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBeat()
		var woken []time.Duration
		wakes := make(chan time.Duration)
		for i, every := range []time.Duration{time.Second, time.Second, 2 * time.Second, 4 * time.Second} {
			go func() {
				_ = sleep(t.Context(), time.Duration(i)*130*time.Millisecond)
				for range 8 / int(every/time.Second) {
					_ = b.sleep(t.Context(), every)
					wakes <- time.Since(b.origin)
				}
			}()
		}
		for range 8 + 8 + 4 + 2 {
			woken = append(woken, <-wakes)
		}
		for _, at := range woken {
			if at%time.Second != 0 || at > 8*time.Second {
				t.Errorf("woke %s after the grid's origin, want a whole second up to 8 s", at)
			}
		}
	})
}

func TestAProgressFileThatStaysTheSameIsReadLessOften(t *testing.T) {
	t.Parallel()
	const poll = time.Second
	look := func(same int, stall time.Duration) time.Duration {
		c := &core{timing: Timing{ProgressPoll: poll}, claim: &claim{}}
		c.claim.Spec.StallTimeout = spec.Duration(stall)
		return (&progressWatcher{core: c, same: same}).pause()
	}
	for _, c := range []struct {
		same        int
		stall, want time.Duration
	}{
		{0, 0, poll}, {briskLooks - 1, 0, poll}, {briskLooks, 0, 2 * poll}, {2 * briskLooks, 0, 4 * poll}, {1000, 0, 4 * poll},
		{1000, 10 * time.Second, poll}, {1000, 20 * time.Second, 2 * poll}, {1000, time.Hour, 4 * poll},
	} {
		if got := look(c.same, c.stall); got != c.want {
			t.Errorf("after %d looks without a change, stall_timeout %s: next look after %s, want %s", c.same, c.stall, got, c.want)
		}
	}
}
