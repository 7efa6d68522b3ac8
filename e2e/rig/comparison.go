package rig

import (
	"fmt"
	"math"
	"time"
)

// LeastAtRest is the number of calls at rest from which a quantile of 99 % is compared: the five slowest of them
// are above it.
const LeastAtRest = 500

// MostLag is the lag of a caller, as its canary measures it (p99), from which the delays of the caller itself count in
// the latencies that it measures.
const MostLag = 10 * time.Millisecond

// Comparison compares the latencies of one caller under load with its latencies at rest.
type Comparison struct {
	Load, Rest       []time.Duration // from when each call was due to its answer, in the order in which they were due
	LoadLag, RestLag time.Duration   // of the caller, p99
	Bounded          bool            // a control group bounds the CPU share of the process that makes the load
	Least            int             // calls at rest that are needed
}

// P99 estimates the p99 under load in multiples of the p99 at rest.
func (c Comparison) P99() Estimate { return QuantileRatio(c.Load, c.Rest, 0.99) }

// Unfit returns why the comparison is no measurement of a p99 that may be most times the p99 at rest; "" if it is one.
// A caller that lagged under load made its latencies longer, so a bound that is kept stands all the same.
func (c Comparison) Unfit(most float64) string {
	switch {
	case !c.Bounded:
		return "no control group bounds the load's CPU share"
	case len(c.Rest) < c.Least:
		return fmt.Sprintf("%d calls at rest, %d are needed", len(c.Rest), c.Least)
	case c.RestLag > MostLag:
		return fmt.Sprintf("the caller itself lagged at rest: p99 %.1f ms", MS(c.RestLag))
	case c.LoadLag > MostLag && c.P99().Value > most:
		return fmt.Sprintf("the caller itself lagged under load: p99 %.1f ms", MS(c.LoadLag))
	}
	return ""
}

// Figure returns the p99 under load in multiples of the p99 at rest, bounded by most. A comparison that is no
// measurement has no value; its note still has the numbers.
func (c Comparison) Figure(name string, most float64) Figure {
	e := c.P99()
	f := Figure{
		Name: name + ", p99", Value: e.Value, Unit: "x quiet", Must: Limit(most), Between: &e.Interval, Note: c.Text(),
	}
	if why := c.Unfit(most); why != "" {
		f.Note = fmt.Sprintf("%s; %.2f x quiet [%.2f, %.2f] if it were; %s", why, e.Value, e.Low, e.High, f.Note)
		f.Value, f.Between = math.NaN(), nil
	}
	return f
}

// Text describes both sets of calls.
func (c Comparison) Text() string {
	set := func(calls []time.Duration, lag time.Duration) string {
		return fmt.Sprintf("p50 %.1f, p99 %.1f ms of %d calls, lag %.1f ms",
			MS(Quantile(calls, 0.5)), MS(Quantile(calls, 0.99)), len(calls), MS(lag))
	}
	return set(c.Load, c.LoadLag) + "; quiet: " + set(c.Rest, c.RestLag)
}
