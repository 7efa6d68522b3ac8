package siege_test

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"berth"
	"berth/e2e/rig"
)

func (f finding) String() string {
	return fmt.Sprintf("%d %s from %s for %s: %d of %d good calls failed, p99 %.0f ms, oldest lease %.1f s, berthd grew by %.0f MiB, healed after %.1f s; the attacker: %d sent, %v, %d dropped, %d MiB read, %.1f s of CPU; the slowest good calls: %s",
		f.Count, f.Kind, f.From, f.For, f.bad, f.calls, rig.MS(f.p99), f.lease.Seconds(), f.growth, f.heals.Seconds(), f.damage.Sent, f.damage.Statuses, f.damage.Dropped, f.damage.Read>>20, f.damage.CPU.Seconds(), f.slowest)
}

// slowest lists the eight slowest calls: kind, duration, and time since from. It changes the order of calls.
func slowest(calls []rig.Probed, from time.Time) string {
	slices.SortFunc(calls, func(a, b rig.Probed) int { return cmp.Compare(b.Took, a.Took) })
	var list []string
	for _, c := range calls[:min(8, len(calls))] {
		list = append(list, fmt.Sprintf("%s %.0f ms at %.1f s", c.Kind, rig.MS(c.Took), c.Due.Sub(from).Seconds()))
	}
	return strings.Join(list, ", ")
}

// comparison compares the good caller's calls under the attack with its calls at rest.
func (f finding) comparison(at rest) rig.Comparison {
	return rig.Comparison{
		Load: f.took, LoadLag: rig.Quantile(f.lag, 0.99), Rest: at.took, RestLag: rig.Quantile(at.lag, 0.99),
		Bounded: f.bounded, Least: rig.LeastAtRest,
	}
}

// breaches lists the expectations that are not met. Expectations that depend on the speed of the
// machine are judged where timed is set.
func (f finding) breaches(at rest, timed bool) (list []string) {
	if f.bad > 0 {
		list = append(list, fmt.Sprintf("%d of %d good calls were refused (%s)", f.bad, f.calls, f.firstBad))
	}
	if f.stuck*stuckAtMost > f.early {
		list = append(list, fmt.Sprintf("%d of %d good calls waited for the end of the attack", f.stuck, f.early))
	}
	if f.calls == 0 {
		list = append(list, "no good call was made")
	}
	lease := berth.MachineLeaseTTL
	if timed {
		lease = rig.LongestRenewal
	}
	if f.lease > lease || f.silent > 0 {
		list = append(list, fmt.Sprintf("renewals missed: a lease was %.1f s old, %d machines silent", f.lease.Seconds(), f.silent))
	}
	if f.growth > growthAtMost {
		list = append(list, fmt.Sprintf("berthd grew by %.0f MiB", f.growth))
	}
	if len(f.errs) > 0 {
		list = append(list, fmt.Sprintf("looks failed: %v", f.errs[0]))
	}
	if !timed {
		return list
	}
	c := f.comparison(at)
	if why := c.Unfit(p99OverQuiet); why != "" {
		list = append(list, "p99 NOT MEASURED: "+why)
	} else if e := c.P99(); e.Value > p99OverQuiet {
		list = append(list, fmt.Sprintf("p99 %.0f ms is %.1f x quiet%s", rig.MS(f.p99), e.Value, certainty(e)))
	}
	if f.p99 > p99AtMost {
		list = append(list, fmt.Sprintf("p99 %.0f ms", rig.MS(f.p99)))
	}
	if f.heals > healWithin {
		list = append(list, fmt.Sprintf("healed only after %.1f s", f.heals.Seconds()))
	}
	return list
}

// certainty is added to a verdict on a p99 whose interval contains the bound.
func certainty(e rig.Estimate) string {
	if e.Low <= p99OverQuiet && e.High > p99OverQuiet {
		return ", not certain"
	}
	return ""
}

// printFindings prints the table, and returns how many attacks have breached an
// expectation.
func printFindings(out io.Writer, findings []finding, at rest) (failed int) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "\nexpected of each: no good call refused, p99 at most %.0f x quiet (%.1f ms of %d calls) and %s, no renewal missed, at most %.0f MiB more in berthd, healed within %s\n",
		p99OverQuiet, rig.MS(at.p99()), len(at.took), p99AtMost, growthAtMost, healWithin)
	fmt.Fprintln(w, "attack\tfrom\trefused\tp99\tx quiet\tlag\toldest lease\tgrowth\thealed\tbounded\tanswers to the attacker\tverdict\t")
	for _, f := range findings {
		from := "the good caller's address"
		if f.From == agentsAddress {
			from = "the agents' address"
		}
		e := f.comparison(at).P99()
		verdict := "ok" + certainty(e)
		if list := f.breaches(at, true); len(list) > 0 {
			failed++
			verdict = "MISSED: " + strings.Join(list, "; ")
		}
		bounded := "yes"
		if !f.bounded {
			bounded = "NO"
		}
		fmt.Fprintf(w, "%d %s, %s\t%s\t%d of %d\t%.0f ms\t%.1f [%.1f, %.1f]\t%.1f ms\t%.1f s\t%.0f MiB\t%.1f s\t%s\t%v\t%s\n",
			f.Count, f.Kind, f.For, from, f.bad, f.calls, rig.MS(f.p99), e.Value, e.Low, e.High, rig.MS(rig.Quantile(f.lag, 0.99)),
			f.lease.Seconds(), f.growth, f.heals.Seconds(), bounded, f.damage.Statuses, verdict)
	}
	_ = w.Flush()
	fmt.Fprintf(out, "\np50, p99 and number of the good calls of each kind:\n  quiet: %s\n", byKind(at.calls))
	for _, f := range findings {
		fmt.Fprintf(out, "  %d %s from %s: %s\n", f.Count, f.Kind, f.From, f.kinds)
	}
	return failed
}

func TestAnAttackWithoutABoundIsNotMeasured(t *testing.T) {
	t.Parallel()
	quiet := make([]time.Duration, rig.LeastAtRest)
	for i := range quiet {
		quiet[i] = 5 * time.Millisecond
	}
	at := rest{took: quiet}
	f := finding{calls: len(quiet), took: quiet, p99: 5 * time.Millisecond, bounded: true}
	if list := f.breaches(at, true); len(list) > 0 {
		t.Errorf("a harmless attack: %q", list)
	}
	f.bounded = false
	if list := f.breaches(at, true); len(list) != 1 || !strings.Contains(list[0], "NOT MEASURED") {
		t.Errorf("an attacker without a bound: %q", list)
	}
	if list := f.breaches(at, false); len(list) > 0 {
		t.Errorf("the small form judges the bound of the attacker: %q", list)
	}
	f.bounded, at.took = true, quiet[1:]
	if list := f.breaches(at, true); len(list) != 1 || !strings.Contains(list[0], "NOT MEASURED") {
		t.Errorf("a quiet phase of %d calls: %q", len(at.took), list)
	}
}

func TestASlowAttackIsMissedWithItsCertainty(t *testing.T) {
	t.Parallel()
	quiet, slow, mixed := make([]time.Duration, 600), make([]time.Duration, 400), make([]time.Duration, 400)
	for i := range quiet {
		quiet[i] = 5 * time.Millisecond
	}
	for i := range slow {
		slow[i], mixed[i] = 15*time.Millisecond, 5*time.Millisecond
		if i%80 == 0 {
			mixed[i] = 15 * time.Millisecond // five calls: the p99 is among them in some of the drawn sets only
		}
	}
	at := rest{took: quiet}
	f := finding{calls: 400, took: slow, p99: 15 * time.Millisecond, bounded: true}
	if list := f.breaches(at, true); len(list) != 1 || list[0] != "p99 15 ms is 3.0 x quiet" {
		t.Errorf("an attack that slows every call: %q", list)
	}
	f.took = mixed
	if list := f.breaches(at, true); len(list) != 1 || list[0] != "p99 15 ms is 3.0 x quiet, not certain" {
		t.Errorf("an attack that slows five calls: %q", list)
	}
}
