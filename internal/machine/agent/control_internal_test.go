package agent

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestACallThatWasHeldIsRepeatedSoon: the pause between two tries counts from the start of the first, so an agent
// whose calls the server holds and fails is back soon after the fault.
func TestACallThatWasHeldIsRepeatedSoon(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		timing := Timing{RetryMin: 100 * time.Millisecond, RetryMax: 5 * time.Second}
		held, reports, quick := timing.backoff(), timing.reportBackoff(), timing.backoff()
		var paused time.Duration
		for range 10 {
			began := time.Now()
			time.Sleep(timing.RetryMax) // the call
			failed := time.Now()
			if err := held.waitSince(t.Context(), began); err != nil {
				t.Fatal(err)
			}
			if paused = time.Since(failed); paused > timing.RetryMin || paused < timing.RetryMin/2 {
				t.Errorf("after a call of %s the agent paused %s", timing.RetryMax, paused)
			}
		}
		for range 10 {
			began := time.Now()
			time.Sleep(2 * timing.RetryMax) // a report that the server could not store
			failed := time.Now()
			if err := reports.waitSince(t.Context(), began); err != nil {
				t.Fatal(err)
			}
			paused = time.Since(failed)
		}
		if paused < heldReportPause/2 || paused > heldReportPause {
			t.Errorf("after ten reports that were held the agent paused %s", paused)
		}
		for range 10 {
			began := time.Now()
			if err := quick.waitSince(t.Context(), began); err != nil {
				t.Fatal(err)
			}
			paused = time.Since(began)
		}
		if paused < timing.RetryMax/2 {
			t.Errorf("after ten calls that failed at once the agent paused %s", paused)
		}
	})
}
