package main

import (
	"context"
	"math"
	"testing"
	"time"
)

// The published figures of experiment C depend on ties between machines, which change each by a few percent. The rows
// of the same rules come near them; production's rows cost no more at no longer wait.
func TestBurstShapes(t *testing.T) {
	t.Parallel()
	jobs, err := readTrace("testdata/philly.csv.gz")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range shapePolicies {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			r, err := playShapes(context.Background(), jobs, p)
			if err != nil {
				t.Fatal(err)
			}
			if r.jobs != len(jobs) {
				t.Errorf("%d of %d jobs ran", r.jobs, len(jobs))
			}
			published := map[string]float64{"eights": 1.157, "shapes": 1.034}[p.name]
			if published > 0 && math.Abs(r.paidOverUsed()/published-1) > 0.025 {
				t.Errorf("paid over used is %.3f: published is %.3f", r.paidOverUsed(), published)
			}
			bound := map[string]struct {
				paid float64
				wait time.Duration
			}{"berth": {1.034, 49500 * time.Millisecond}, "berth-eager": {1.157, 31 * time.Second}}[p.name]
			if bound.wait > 0 && (r.paidOverUsed() > bound.paid || r.wait() > bound.wait) {
				t.Errorf("paid over used is %.3f at a wait of %v: allowed are %.3f at %v", r.paidOverUsed(), r.wait(), bound.paid, bound.wait)
			}
		})
	}
}
