package saveinterval_test

import (
	"math"
	"testing"
	"time"

	"berth"
	"berth/internal/control/saveinterval"
	"berth/wire"
)

const day = 24 * time.Hour

// The optima that Daly publishes below figures 3 to 5 of his paper, for a save of 5 minutes.
func TestBestIsTheOptimumOfDalysFigures(t *testing.T) {
	t.Parallel()
	for loss, want := range map[time.Duration]float64{24 * time.Hour: 117, 6 * time.Hour: 57, 15 * time.Minute: 9.1} {
		got := saveinterval.Best(5*time.Minute, loss).Minutes()
		if math.Abs(got-want) > 0.5 {
			t.Errorf("a loss in %s: %.1f min, published are %g", loss, got, want)
		}
	}
}

// TestBestMinimizesTheExpectedRunTime searches the minimum of Daly's complete cost function, to which Best is a series:
// M exp(R/M) (exp((T+d)/M) - 1) / T for each unit of work, with the time T between saves of length d.
func TestBestMinimizesTheExpectedRunTime(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ save, loss time.Duration }{
		{time.Second, 9 * day}, {40 * time.Second, 9 * day}, {time.Minute, time.Hour}, {10 * time.Minute, 2 * time.Hour},
	} {
		cost := func(work float64) float64 {
			m := c.loss.Seconds()
			return math.Expm1((work+c.save.Seconds())/m) * m / work
		}
		lo, hi := 1e-3, 2*c.loss.Seconds()
		for range 200 { // the function has one minimum
			if a, b := lo+(hi-lo)/3, hi-(hi-lo)/3; cost(a) < cost(b) {
				hi = b
			} else {
				lo = a
			}
		}
		got := saveinterval.Best(c.save, c.loss).Seconds()
		if math.Abs(got/lo-1) > 0.01 {
			t.Errorf("save %s, loss %s: %.1f s, the minimum is at %.1f s", c.save, c.loss, got, lo)
		}
	}
}

func TestBestIsBoundedForSlowSaves(t *testing.T) {
	t.Parallel()
	if got := saveinterval.Best(3*time.Hour, time.Hour); got != time.Hour {
		t.Errorf("a save that takes longer than machines live: %s, want the life of a machine", got)
	}
	for _, c := range [][2]time.Duration{{0, time.Hour}, {time.Minute, 0}} {
		if got := saveinterval.Best(c[0], c[1]); got != 0 {
			t.Errorf("%v: %s, want 0", c, got)
		}
	}
}

// saved returns checkpoints of one attempt, a step every gap, newest first.
func saved(n int, gap, write, store time.Duration) []berth.Checkpoint {
	var list []berth.Checkpoint
	for i := range n {
		w, s := write.Seconds(), store.Seconds()
		list = append(list, berth.Checkpoint{Step: int64(n - i), Attempt: 1, State: berth.CheckpointVerified,
			CreatedAt: time.Unix(0, 0).Add(time.Duration(n-i) * gap), Write: &w, Store: &s})
	}
	return list
}

func TestAdvice(t *testing.T) {
	t.Parallel()
	saves := saved(9, 2*time.Minute, 40*time.Second, 3*time.Second)
	// One loss on average in 300 days of service: 1 of the prior, 19 in 5,700 days.
	seen := wire.MachineLosses{Machines: 4, Lost: 19, Service: 5700 * day}
	got := saveinterval.Advise(saves, seen)
	// sqrt(2 * 40 s * 75 days) is Young's estimate, here 6.3 hours; Daly's differs by less than a percent.
	young := math.Sqrt(2 * 40 * (75 * day).Seconds())
	if math.Abs(got.AdvisedSeconds/young-1) > 0.01 || got.PresentSeconds != 120 || got.SaveSeconds != 40 ||
		got.StoreSeconds != 3 || got.LossSeconds != (75*day).Seconds() || got.MachineDays != 5700 {
		t.Errorf("advice is %+v, want about %.0f s", got, young)
	}

	seen.Machines = 16
	if wide := saveinterval.Advise(saves, seen); math.Abs(2*wide.AdvisedSeconds/got.AdvisedSeconds-1) > 0.01 {
		t.Errorf("four times the machines: %.0f s, want half of %.0f s", wide.AdvisedSeconds, got.AdvisedSeconds)
	}
	slow := saved(9, 2*time.Minute, time.Second, 10*time.Hour)
	if bound := saveinterval.Advise(slow, seen); bound.AdvisedSeconds != (10 * time.Hour).Seconds() {
		t.Errorf("interval is %.0f s, want the time to store a step", bound.AdvisedSeconds)
	}
	none := saveinterval.Advise(saves, wire.MachineLosses{Machines: 1, Service: 60 * day})
	if none.LossSeconds != (360 * day).Seconds() {
		t.Errorf("without a loss the time is %.0f s, want the prior and the time in service", none.LossSeconds)
	}
}

func TestThereIsNoAdviceFromTooLittle(t *testing.T) {
	t.Parallel()
	saves := saved(9, time.Minute, time.Second, time.Second)
	unmeasured := saved(9, time.Minute, time.Second, time.Second)
	for i := range unmeasured {
		unmeasured[i].Write = nil // an agent of the version before, or a file system without times of creation
	}
	enough := wire.MachineLosses{Machines: 1, Service: 15 * day}
	for name, c := range map[string]struct {
		saves []berth.Checkpoint
		seen  wire.MachineLosses
	}{
		"no checkpoints":  {nil, enough},
		"two checkpoints": {saves[:2], enough},
		"not measured":    {unmeasured, enough},
		"new machines":    {saves, wire.MachineLosses{Machines: 1, Lost: 5, Service: 13 * day}},
		"no machine":      {saves, wire.MachineLosses{Service: 15 * day}},
	} {
		if got := saveinterval.Advise(c.saves, c.seen); got.AdvisedSeconds != 0 {
			t.Errorf("%s: advice is %+v", name, got)
		}
	}
	if got := saveinterval.Advise(saves, enough); got.AdvisedSeconds == 0 {
		t.Error("no advice from enough")
	}
}

// A checkpoint of an earlier attempt is no part of the present interval: the job waited in between.
func TestThePresentIntervalIsOfTheLatestAttempt(t *testing.T) {
	t.Parallel()
	list := saved(4, time.Minute, time.Second, time.Second)
	for i := range list[:2] {
		list[i].Attempt, list[i].CreatedAt = 2, list[i].CreatedAt.Add(day)
	}
	list[0].State, list[2].State = berth.CheckpointPruned, berth.CheckpointBad
	if got := saveinterval.Advise(list, wire.MachineLosses{}); got.PresentSeconds != 60 {
		t.Errorf("present interval is %.0f s, want 60", got.PresentSeconds)
	}
}
