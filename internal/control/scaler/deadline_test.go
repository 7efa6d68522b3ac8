package scaler_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"berth/internal/control/cloud"
	"berth/internal/control/scaler"
)

// A job is never late, whatever happens on the market, if it had time for one start on demand.
func TestNoJobIsLate(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		step := time.Duration(rapid.IntRange(1, 30).Draw(t, "step")) * time.Minute
		restart := time.Duration(rapid.IntRange(0, 40).Draw(t, "restart")) * time.Minute
		work := time.Duration(rapid.IntRange(1, 3000).Draw(t, "work")) * time.Minute
		slack := time.Duration(rapid.IntRange(0, 1000).Draw(t, "slack")) * time.Minute
		d := scaler.Deadline{Work: work, AllWork: work, Left: work + restart + slack, AllTime: work + restart + slack, Restart: restart, Step: step}
		for d.Work > 0 {
			open := rapid.Bool().Draw(t, "open")
			if d.Running == cloud.Spot && !open {
				d.Running = ""
			}
			if d.Open = open; open {
				d.OpenFor += step
			} else {
				d.OpenFor = 0
			}
			m := d.Choose()
			if m == cloud.Spot && !open {
				t.Fatalf("a spot machine while there is none: %+v", d)
			}
			if m != d.Running {
				d.Running, d.Pending = m, restart
			}
			used := step
			if m != "" {
				used = min(step, d.Pending+d.Work)
				start := min(used, d.Pending)
				d.Pending -= start
				d.Work -= used - start
			}
			if d.Left -= used; d.Left < 0 {
				t.Fatalf("late: %+v", d)
			}
		}
	})
}

func TestBreakers(t *testing.T) {
	t.Parallel()
	var b scaler.Breaker
	for _, want := range []time.Duration{3, 6, 12, 24, 48, 60, 60} {
		if b = b.Failed(now); b.Until.Sub(now) != want*time.Minute {
			t.Fatalf("closed for %v: wanted are %d minutes", b.Until.Sub(now), want)
		}
		if b.Allows(b.Until.Add(-time.Second)) || !b.Allows(b.Until) || b.Tried().Allows(b.Until) {
			t.Fatalf("%+v does not allow exactly one try once it was closed", b)
		}
	}
	if b = b.Succeeded(); !b.Allows(now) || !b.Tried().Allows(now) {
		t.Errorf("%+v is not open after a success", b)
	}
}

func TestOrderOfZones(t *testing.T) {
	t.Parallel()
	failed := scaler.Breaker{}.Failed(now.Add(-time.Hour))
	got := ""
	for _, z := range scaler.Order([]scaler.Zone{
		{Name: "e", Price: 2}, {Name: "d", Price: 1, Breaker: failed}, {Name: "b", Price: 1}, {Name: "c", Price: 1},
		{Name: "a", Price: 1, Won: now.Add(-time.Minute)}, {Name: "x", Price: 0.5, Breaker: scaler.Breaker{}.Failed(now)},
	}, now) {
		got += z.Name
	}
	if got != "abcde" {
		t.Errorf("the order is %s: wanted is abcde", got)
	}
}

// Of equal offers, the leader's scaler tries the one that has failed least, and then the one that gave a machine last.
func TestLaunchesFollowTheOrderOfZones(t *testing.T) {
	t.Parallel()
	won := func(zone string, ago time.Duration) scaler.Offer {
		o := offer(1, 2, cloud.OnDemand, zone)
		if ago > 0 {
			o.Won = now.Add(-ago)
		}
		return o
	}
	failed := won("d", time.Second)
	failed.Breaker = scaler.Breaker{}.Failed(now.Add(-time.Hour))
	dear := won("e", time.Second)
	dear.Price = 3
	in := scaler.Input{Now: now, Policy: policy(), Planner: planner(), Jobs: []scaler.Job{job("j", 1, 1)}}
	for _, c := range []struct {
		offers []scaler.Offer
		want   string
	}{
		{[]scaler.Offer{won("a", 0), won("b", time.Hour), won("c", time.Minute), failed, dear}, "c"},
		{[]scaler.Offer{won("a", 0), won("b", 0), failed, dear}, "a"},
		{[]scaler.Offer{failed, dear}, "d"},
	} {
		in.Offers = c.offers
		if d := scaler.Decide(in); len(d.Launches) != 1 || d.Launches[0].Offer.Zone != c.want {
			t.Errorf("launches %+v: want zone %s", d.Launches, c.want)
		}
	}
}
