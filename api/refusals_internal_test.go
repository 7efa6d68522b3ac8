package api

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"berth"
)

func TestATenantThatIsRefusedOftenWaitsForItsAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, never := newRefusals(), make(chan struct{})
		// Each caller calls again as soon as it is refused.
		refuse := func(tenant berth.TenantID, callers int, lasts time.Duration) (answers int64) {
			var all sync.WaitGroup
			var n atomic.Int64
			end := time.Now().Add(lasts)
			for range callers {
				all.Go(func() {
					for time.Now().Before(end) {
						r.hold(t.Context(), tenant, never)
						n.Add(1)
					}
				})
			}
			all.Wait()
			return n.Load()
		}
		if n := refuse("a", 64, 10*time.Second); n < refusedBurst+9*refusedRate || n > refusedBurst+11*refusedRate {
			t.Errorf("64 callers had %d answers in 10 s, want about %d", n, refusedBurst+10*refusedRate)
		}
		// However many callers there are, none waits for longer than it may, even where
		// that makes the answers more.
		began := time.Now()
		if n := refuse("a", heldRefusals, time.Nanosecond); n != heldRefusals || time.Since(began) > longestRefusal {
			t.Errorf("%d of %d callers had an answer after %s", n, heldRefusals, time.Since(began))
		}
		began = time.Now()
		for range refusedBurst {
			r.hold(t.Context(), "b", never)
		}
		if took := time.Since(began); took > 0 {
			t.Errorf("another tenant's first %d refusals took %s", refusedBurst, took)
		}
	})
}

func TestARefusedCallThatEndsIsNotHeld(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRefusals()
		for range refusedBurst + refusedRate {
			go r.hold(t.Context(), "a", nil)
		}
		synctest.Wait()
		gone, leave := context.WithCancel(t.Context())
		leave()
		closing := make(chan struct{})
		close(closing)
		began := time.Now()
		r.hold(gone, "a", nil)
		r.hold(t.Context(), "a", closing)
		if took := time.Since(began); took > 0 {
			t.Errorf("a caller that had gone and a server that had closed waited for %s", took)
		}
		for range heldRefusals {
			go r.hold(t.Context(), "a", nil)
		}
		synctest.Wait()
		r.hold(t.Context(), "a", nil)
		if took := time.Since(began); took > 0 {
			t.Errorf("beside %d held calls, one more waited for %s", heldRefusals, took)
		}
	})
}
