package rig

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// exponential draws latencies with a mean.
func exponential(random *rand.Rand, n int, mean time.Duration) []time.Duration {
	list := make([]time.Duration, n)
	for i := range list {
		list[i] = time.Duration(random.ExpFloat64() * float64(mean))
	}
	return list
}

func same(n int, d time.Duration) []time.Duration {
	list := make([]time.Duration, n)
	for i := range list {
		list[i] = d
	}
	return list
}

func TestRatioOfConstantLatenciesIsCertain(t *testing.T) {
	t.Parallel()
	e := QuantileRatio(same(400, 30*time.Millisecond), same(600, 10*time.Millisecond), 0.99)
	if e.Value != 3 || e.Low != 3 || e.High != 3 {
		t.Errorf("got %v, want 3 with an interval of 3 to 3", e)
	}
}

func TestRatioWithoutCallsIsNaN(t *testing.T) {
	t.Parallel()
	for _, e := range []Estimate{
		QuantileRatio(nil, same(5, time.Second), 0.99), QuantileRatio(same(5, time.Second), nil, 0.99),
	} {
		if !math.IsNaN(e.Value) || !math.IsNaN(e.Low) || !math.IsNaN(e.High) {
			t.Errorf("got %v, want NaN", e)
		}
	}
}

func TestOneSetOfCallsHasOneInterval(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(7, 7))
	load, rest := exponential(random, 400, time.Second), exponential(random, 600, time.Second)
	if a, b := QuantileRatio(load, rest, 0.99), QuantileRatio(load, rest, 0.99); a != b {
		t.Errorf("got %v, then %v", a, b)
	}
}

// The true ratio is 2. An interval of 95 % may miss it in two of forty runs; a bootstrap of a tail is a little
// narrower than it should be.
func TestIntervalsContainTheTrueRatio(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(3, 9))
	const runs, least = 40, 34
	inside, width := 0, 0.0
	for range runs {
		e := QuantileRatio(exponential(random, 200, 2*time.Second), exponential(random, 300, time.Second), 0.9)
		if e.Low > e.Value || e.High < e.Value {
			t.Fatalf("the interval of %v leaves out its value", e)
		}
		if e.Low <= 2 && e.High >= 2 {
			inside++
		}
		width += (e.High - e.Low) / runs
	}
	if inside < least {
		t.Errorf("%d of %d intervals contain the true ratio, want at least %d", inside, runs, least)
	}
	if width > 1.5 {
		t.Errorf("the intervals are %.2f wide on average, too wide for any verdict", width)
	}
}

// A slow second slows all calls of that second. If single calls were drawn, the interval would be as narrow as that of
// independent calls.
func TestIntervalsAreWiderWhereSlowCallsComeTogether(t *testing.T) {
	t.Parallel()
	scattered, together := same(600, 10*time.Millisecond), same(600, 10*time.Millisecond)
	for i := range 30 {
		scattered[i*20] = time.Duration(20+i) * time.Millisecond
		together[300+i] = time.Duration(20+i) * time.Millisecond
	}
	rest := same(600, 10*time.Millisecond)
	a, b := QuantileRatio(scattered, rest, 0.96), QuantileRatio(together, rest, 0.96)
	if a.Value != b.Value {
		t.Fatalf("the same latencies in another order: %v and %v", a, b)
	}
	if b.High-b.Low <= a.High-a.Low {
		t.Errorf("interval of scattered slow calls %v, of neighbors %v", a, b)
	}
}

func TestQuantileIsTheSmallestValueThatThePartKeeps(t *testing.T) {
	t.Parallel()
	list := make([]time.Duration, 100)
	for i := range list {
		list[i] = time.Duration(100 - i)
	}
	for part, want := range map[float64]time.Duration{0: 1, 0.5: 50, 0.99: 99, 1: 100} {
		if got := Quantile(list, part); got != want {
			t.Errorf("quantile %v: %d, want %d", part, got, want)
		}
	}
	if Quantile(nil, 0.5) != 0 {
		t.Error("a quantile of nothing is not 0")
	}
}

func TestVerdictComesFromTheValueAndNamesItsCertainty(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		value     float64
		low, high float64
		high3     bool // at least 3 is wanted, not at most 3
		want      string
	}{
		{2, 1.5, 2.5, false, "ok"},
		{2.8, 2.1, 3.9, false, "ok, not certain"},
		{3.4, 2.1, 3.9, false, "MISSED, not certain"},
		{5, 4, 6, false, "MISSED"},
		{3.4, 2.1, 3.9, true, "ok, not certain"},
		{5, 4, 6, true, "ok"},
		{1, 0.5, 2, true, "MISSED"},
		{math.NaN(), 1, 2, false, "NOT MEASURED"},
	} {
		f := Figure{Value: c.value, Must: Limit(3), High: c.high3, Between: &Interval{c.low, c.high}}
		if got := f.Verdict(); got != c.want {
			t.Errorf("%v in [%v, %v], more is better %v: %q, want %q", c.value, c.low, c.high, c.high3, got, c.want)
		}
		table := Table{Figures: []Figure{f}}
		if got, want := table.Missed() == 1, !strings.HasPrefix(c.want, "ok"); got != want {
			t.Errorf("%q counts as missed: %v", c.want, got)
		}
	}
	f := Figure{Value: 1, Must: Limit(3), Aim: Limit(2), Between: &Interval{0.5, 4}}
	if got := f.Verdict(); got != "aim reached, not certain" {
		t.Errorf("a value within its aim: %q", got)
	}
	var out strings.Builder
	table := Table{Figures: []Figure{{Name: "p99", Value: 2.5, Unit: "x quiet", Must: Limit(3), Between: &Interval{2, 3.25}}}}
	table.Print(&out)
	if !strings.Contains(out.String(), "2.50 x quiet [2.00, 3.25]") {
		t.Errorf("the table does not show the interval:\n%s", out.String())
	}
}

func TestComparisonsThatMeasureNothingHaveNoValue(t *testing.T) {
	t.Parallel()
	good := Comparison{
		Load: same(400, 20*time.Millisecond), Rest: same(LeastAtRest, 10*time.Millisecond), Bounded: true,
		Least: LeastAtRest, LoadLag: time.Millisecond, RestLag: time.Millisecond,
	}
	unbounded, few, late, slow, kept := good, good, good, good, good
	unbounded.Bounded = false
	few.Rest = few.Rest[1:]
	late.RestLag = MostLag + 1
	slow.LoadLag, slow.Load = MostLag+1, same(400, time.Second)
	kept.LoadLag = MostLag + 1
	for name, c := range map[string]struct {
		Comparison
		measured bool
	}{
		"a sound comparison":                   {good, true},
		"a load without a bound":               {unbounded, false},
		"too few calls at rest":                {few, false},
		"a caller that lags at rest":           {late, false},
		"a caller that lags, and a bound lost": {slow, false},
		"a caller that lags, and a bound kept": {kept, true},
	} {
		f := c.Figure("submit", 3)
		if measured := f.Verdict() != "NOT MEASURED"; measured != c.measured {
			t.Errorf("%s: verdict %q (%s)", name, f.Verdict(), f.Note)
		}
		if !strings.Contains(f.Note, "of 400 calls") {
			t.Errorf("%s: the note does not have the numbers: %s", name, f.Note)
		}
	}
}
