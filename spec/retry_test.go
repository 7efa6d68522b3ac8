package spec_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"berth"
	"berth/spec"
)

func TestBackoffIsBoundedAndTheSameEverywhere(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		b := spec.Backoff{Initial: spec.Duration(10 * time.Second), Factor: 2, Max: spec.Duration(10 * time.Minute)}
		id := berth.JobID(rapid.String().Draw(t, "id"))
		n := rapid.IntRange(1, 100).Draw(t, "n")
		d := b.Delay(id, n)
		if d != b.Delay(id, n) {
			t.Fatal("two processes compute different delays")
		}
		if d < 5*time.Second || d > 10*time.Minute {
			t.Fatalf("delay %s is out of bounds", d)
		}
	})
}

// Ten thousand jobs that fail at once do not come back at once: their retries
// are spread over the whole of the jitter, so that no second of it has much more
// than its share, and later rounds are spread wider.
func TestF47RetriesOfManyJobsAreSpread(t *testing.T) {
	t.Parallel()
	const jobs = 10_000
	policy := spec.Job{}.WithDefaults().Retry
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
