package main

import (
	"context"
	"math"
	"testing"

	"berth/internal/control/scaler"
)

// The published results are exact: an order of events that differs shows in the cents.
func TestBurstRepeatsThePublishedWaits(t *testing.T) {
	t.Parallel()
	jobs := waitTrace(13)
	for name, want := range map[string]float64{
		"no-wait": 760.68, "constant-wait": 705.55, "starburst": 584.00, "plan-budget": 551.92,
	} {
		got := waitRules[name].play(jobs)
		if math.Abs(got.cost-want) > 0.005 {
			t.Errorf("%s costs $%.2f: published are $%.2f", name, got.cost, want)
		}
		if got.wait > mostWait+0.00005 {
			t.Errorf("%s waits %.4f h: allowed are %.4f h", name, got.wait, mostWait)
		}
	}
}

// The acceptance of the decision on the published trace.
func TestBurstCostsLessThanPublished(t *testing.T) {
	t.Parallel()
	jobs := waitTrace(13)
	for _, x := range []struct {
		name  string
		known bool
		most  float64
	}{{"known", true, 540}, {"unknown", false, 620}} {
		got, err := playBurst(context.Background(), jobs, x.known, burstPolicyOf(x.known), futuresOf(x.known))
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: $%.2f, %.4f h, %d launches", x.name, got.cost, got.wait, got.launches)
		if got.cost > x.most || got.wait > mostWait {
			t.Errorf("%s costs $%.2f at a mean wait of %.4f h: allowed are $%.0f at %.4f h", x.name, got.cost, got.wait, x.most, mostWait)
		}
	}
}

// Without a worth of waiting no job bursts, and with an endless one none waits. The former also shows
// that the engine keeps up with the published simulator, where jobs wait without limit.
func TestBurstFollowsTheWorthOfWaiting(t *testing.T) {
	t.Parallel()
	jobs := waitTrace(2)[:150]
	last := math.Inf(1)
	for _, worth := range []float64{0, 5, 20, 80, 1e9} {
		got, err := playBurst(context.Background(), jobs, true, scaler.BurstPolicy{HourOfWait: worth}, 1)
		if err != nil {
			t.Fatal(err)
		}
		if got.wait > last {
			t.Errorf("at $%g an hour the mean wait is %.4f h, above %.4f h at less", worth, got.wait, last)
		}
		last = got.wait
		if worth == 0 {
			want := waitRule{budget: func(waitJob) float64 { return 1e6 }}.play(jobs)
			if got.launches > 0 || math.Abs(got.wait-want.wait) > 1e-6 {
				t.Errorf("without a worth of waiting: %d launches, a mean wait of %.5f h: wanted are 0 and %.5f h", got.launches, got.wait, want.wait)
			}
		}
	}
	if last > 1e-3 {
		t.Errorf("at any price the mean wait is %.4f h", last)
	}
}
