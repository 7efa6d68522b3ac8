package berth_test

import (
	"fmt"
	"testing"
	"time"

	"berth"
)

// Ten thousand jobs that fail at once do not come back at once: their retries
// are spread over the whole of the jitter, so that no second of it has much more
// than its share, and later rounds are spread wider.
func TestF47RetriesOfManyJobsAreSpread(t *testing.T) {
	t.Parallel()
	const jobs = 10_000
	policy := berth.JobSpec{}.WithDefaults().Retry
	for round := 1; round <= 3; round++ {
		perSecond := map[int]int{}
		var first, last time.Duration
		for i := range jobs {
			d := policy.Backoff.Delay(berth.JobID(fmt.Sprintf("01900000-0000-7000-8000-%012x", i)), round)
			if i == 0 || d < first {
				first = d
			}
			last = max(last, d)
			perSecond[int(d/time.Second)]++
		}
		window := 10 << (round - 1) // seconds: 10 s x 2^(n-1), +-50 %
		most := 0
		for _, n := range perSecond {
			most = max(most, n)
		}
		if got := (last - first).Seconds(); got < 0.95*float64(window) || got > float64(window) {
			t.Errorf("round %d: spread over %.1f s, want %d", round, got, window)
		}
		if most > 2*jobs/window {
			t.Errorf("round %d: %d of %d jobs come back in the same second", round, most, jobs)
		}
	}
}
