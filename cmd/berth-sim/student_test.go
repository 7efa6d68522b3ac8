package main

import (
	"math"
	"testing"
)

// The quantiles are those of table 26.10 of Abramowitz and Stegun.
func TestStudent(t *testing.T) {
	t.Parallel()
	for freedom, want := range map[int]float64{
		1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 9: 2.262, 10: 2.228, 19: 2.093,
		20: 2.086, 29: 2.045, 30: 2.042,
		40: 2.021, 60: 2.000, 120: 1.980, maxSeeds - 1: 1.962,
	} {
		if got := student(freedom); math.Abs(got-want) > 0.0005 {
			t.Errorf("%d degrees of freedom: %.4f, want %.3f", freedom, got, want)
		}
	}
	if got := student(0); got != 0 {
		t.Errorf("no degree of freedom: %g", got)
	}
}

// Two seeds have one degree of freedom, so their interval is six times as wide as with the quantile of 40 seeds.
func TestFewSeedsHaveAWideInterval(t *testing.T) {
	t.Parallel()
	ratio, margin := ratioOf([]waitResult{{cost: 90}, {cost: 100}}, []waitResult{{cost: 100}, {cost: 100}})
	// The differences from the ratio are -5 and 5: the standard error of their mean is 5.
	if math.Abs(ratio-0.95) > 1e-12 || math.Abs(margin-12.706*5/100) > 1e-4 {
		t.Errorf("%.4f ± %.4f, want 0.95 ± 0.6353", ratio, margin)
	}
}
