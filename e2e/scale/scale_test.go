package scale_test

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"berth/e2e/rig"
)

// BenchmarkScale takes every figure once and prints them as a table. It fails if
// one is outside its bounds.
func BenchmarkScale(b *testing.B) {
	began := time.Now()
	chosen := func(part string) bool { return strings.Contains(","+*parts+",", ","+part+",") }
	s := start(b, *programs)
	c := newCell(b, s)
	defer func() { // also after a part that could not go on
		c.table.Remark("measured in %s on %d cores, load %s", time.Since(began).Round(time.Second), runtime.NumCPU(), rig.LoadAverage())
		c.table.Remark("%s", s.ApartText())
		c.table.Print(os.Stdout)
		if n := c.table.Missed(); n > 0 {
			b.Errorf("%d figures are outside their bounds", n)
		}
	}()
	c.measureJoin(*agents)
	of := idle{}
	if chosen("idle") || chosen("long") {
		of = c.measureIdle(*agents, *steady)
	}
	floor := 0.0
	if chosen("bare") {
		floor = c.measureBare(*bare)
	}
	var empty []time.Duration
	if chosen("singles") {
		empty = c.measureSingles("empty", *singles, nil)
	}
	l, totals := &long{}, numbers(b, *running)
	for i, total := range totals {
		if !chosen("long") {
			break
		}
		c.measureLong(l, total, *startFor, floor)
		if i == len(totals)-1 { // the more jobs, the more exact
			c.measureSteady(of, total, *steady)
		}
		if i == 0 && chosen("singles") {
			c.measureSingles(fmt.Sprintf("beside %d running", total), *singles, empty)
		}
		if i == 0 && chosen("flood") {
			c.measureFlood(*floodSize, *floodFor, *startFor)
		}
	}
	if l.running > 0 {
		c.cancelLong(l, *startFor)
	}
	if chosen("flood") && !chosen("long") {
		c.measureFlood(*floodSize, *floodFor, *startFor)
	}
	if chosen("overload") {
		c.measureOverload(overload{lasts: *loadFor, quiet: *quietFor, warm: *warmFor, share: *share}, *times, *most, *peakJobs, began.Add(*within))
	}
	c.wantKept(false) // jobs left by the overload may be live
}

func numbers(t testing.TB, list string) (all []int) {
	for word := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(word))
		if err != nil || n < 1 || len(all) > 0 && n <= all[len(all)-1] {
			t.Fatalf("-running %q: allowed are growing numbers, such as 1000,5000", list)
		}
		all = append(all, n)
	}
	return all
}

// Sizes of the small form: seconds of work on two busy cores.
const (
	fewAgents = 6
	fewLong   = 48
	fewShort  = 120
	fewPeak   = 40
	fewRate   = 40.0 // most submits a second of its overload
	fewLasts  = 6 * time.Second
	fewProbed = 2.0 // submits a second of its small tenant
)

func TestOverloadLosesNothingRepeatsNothingAndHeals(t *testing.T) {
	c := newCell(t, start(t, *programs))
	c.measureJoin(fewAgents)
	l := &long{}
	c.measureLong(l, fewLong, settleLimit, 0)
	if got := c.awaitRunning(l.parents[0], fewLong, settleLimit); got != fewLong {
		t.Fatalf("%d of %d long jobs run", got, fewLong)
	}
	w := c.StartWatch(watchEvery, noShort)
	parent := c.submitArray(shortName, fewShort, "sleep", "200ms")
	peak, left := c.peakRate(fewPeak, settleLimit)
	if left > 0 {
		t.Fatalf("%d jobs that came at once do not settle", left)
	}
	p := c.startProbe(fewProbed)
	out := c.overloadCell(p, peak, overload{rate: min(5*peak, fewRate), accept: peak, lasts: fewLasts, quiet: time.Second, share: 0.5})
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
	if out.loud.made.Failed > 0 || out.loud.made.Due == 0 {
		t.Errorf("of %d submits %d were answered neither with a job nor with a refusal; the first: %s", out.loud.made.Due, out.loud.made.Failed, out.loud.made.Fault)
	}
	if n := len(out.loud.small.took); out.loud.small.refused > 0 || n == 0 {
		t.Errorf("%d submits of a small tenant were accepted and %d refused: %s", n, out.loud.small.refused, out.loud.small.fault)
	}
	if _, err := c.API.Job(t.Context(), parent); err != nil {
		t.Errorf("show a job after the load: %v", err)
	}
	c.oneByOne(3)
	if got := c.awaitRunning(l.parents[0], fewLong, settleLimit); got != fewLong {
		t.Errorf("%d of %d long jobs run after the load", got, fewLong)
	}
	for _, name := range []string{shortName, floodName, smallName} {
		if _, left := c.settle(name, settleLimit); left > 0 {
			t.Errorf("%d jobs named %s do not settle", left, name)
		}
	}
	seen := w.Stop()
	if seen.Silent > 0 || seen.Looks == 0 || len(seen.Errors) > 0 {
		t.Errorf("%d machines were silent, their oldest lease was %s; %d looks, %v", seen.Silent, seen.OldestLease, seen.Looks, seen.Errors)
	}
	c.cancelLong(l, settleLimit)
	if _, left := c.settle("", settleLimit); left > 0 {
		t.Fatalf("%d jobs do not settle", left)
	}
	c.wantSucceeded(shortName, fewShort)
	c.wantSucceeded(peakName, fewPeak)
	c.wantSucceeded(floodName, out.loud.made.Accepted)
	c.wantForgotten()
	c.wantKept(true)
	c.wantLossSeen()
	c.table.Print(os.Stdout)
}
