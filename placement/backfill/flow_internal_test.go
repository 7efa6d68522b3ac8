package backfill

import (
	"testing"
	"time"

	"berth"
	"berth/placement/queue"
)

// A gap must last as long as the job runs; without a run time any moment with room is enough.
func TestAGapLastsAsLongAsTheJob(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	cores := func(n int64) queue.Amounts { return queue.AmountsOf(berth.Capacity{CPUMilli: 1000 * n}) }
	at := func(hours float64) time.Time { return now.Add(time.Duration(hours * float64(time.Hour))) }
	// One core is free. In 4 h three more return, and a job takes all four for 5 h.
	p := &pool{at: now, free: cores(1), next: []refund{{at: at(4), room: cores(3)}}}
	p.lend(at(4), cores(4), []time.Duration{5 * time.Hour})
	for _, c := range []struct {
		cores     int64
		run, from float64
		want      float64 // -1: never
	}{
		{1, 4, 0, 0}, {1, 4.5, 0, 9}, {1, 1, 2, 2}, {1, 3, 2, 9}, {2, 1, 0, 9}, {4, 1, 20, 20}, {5, 1, 0, -1},
	} {
		got, ok := p.gap(time.Duration(c.run*float64(time.Hour)))(cores(c.cores), at(c.from))
		if ok != (c.want >= 0) || ok && !got.Equal(at(c.want)) {
			t.Errorf("%d cores for %g h from hour %g: %s, %t; want hour %g", c.cores, c.run, c.from, got.Sub(now), ok, c.want)
		}
	}
	if got, ok := p.enough(cores(1), now); !ok || !got.Equal(now) {
		t.Errorf("without a run time: %s, %t", got.Sub(now), ok)
	}
}
