package rig

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// Interval is a confidence interval of 95 %.
type Interval struct{ Low, High float64 }

// Estimate is a value computed from samples, with its interval.
type Estimate struct {
	Value float64
	Interval
}

// Bootstrap: how often samples are drawn again, and the probability that each end of an interval leaves out.
const (
	resamples = 1000
	tail      = 0.025
)

// QuantileRatio estimates a quantile under load, divided by the same quantile at rest. Both sets are in the order in
// which the calls were due. The interval comes from a bootstrap of blocks: neighbors in time are slow together, and
// drawing single calls would make the interval too narrow. The same sets always have the same interval. Without calls
// the estimate is NaN.
func QuantileRatio(load, rest []time.Duration, part float64) Estimate {
	if len(load) == 0 || len(rest) == 0 {
		return Estimate{math.NaN(), Interval{math.NaN(), math.NaN()}}
	}
	random := rand.New(rand.NewPCG(1, 2))
	ratios := make([]float64, resamples)
	above, below := resample(random, load, part), resample(random, rest, part)
	for i := range ratios {
		ratios[i] = float64(above[i]) / float64(below[i])
	}
	slices.Sort(ratios)
	return Estimate{
		Value:    float64(Quantile(load, part)) / float64(Quantile(rest, part)),
		Interval: Interval{Low: quantile(ratios, tail), High: quantile(ratios, 1-tail)},
	}
}

// resample returns a quantile of each of many sets that are drawn from the values in blocks. The length of a block is
// the cube root of the number of values. The values count as a circle, so that each is in equally many blocks.
func resample(random *rand.Rand, values []time.Duration, part float64) []time.Duration {
	length := max(1, int(math.Round(math.Cbrt(float64(len(values))))))
	all, set := make([]time.Duration, resamples), make([]time.Duration, len(values))
	for i := range all {
		for at := 0; at < len(set); {
			first := random.IntN(len(values))
			for k := 0; k < length && at < len(set); k++ {
				set[at] = values[(first+k)%len(values)]
				at++
			}
		}
		slices.Sort(set)
		all[i] = quantile(set, part)
	}
	return all
}

// Quantile returns the smallest value that this part of the values does not
// exceed; 0 of none.
func Quantile(values []time.Duration, part float64) time.Duration {
	if len(values) == 0 {
		return 0
	}
	return quantile(slices.Sorted(slices.Values(values)), part)
}

// quantile is Quantile of sorted values, of which there is at least one.
func quantile[T cmp.Ordered](sorted []T, part float64) T {
	return sorted[max(0, int(math.Ceil(part*float64(len(sorted))))-1)]
}

// Mean returns the mean of the values; 0 of none.
func Mean(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / float64(max(len(values), 1))
}

// MS returns a duration in milliseconds.
func MS(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
