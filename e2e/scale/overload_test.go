package scale_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/e2e/rig"
)

// Tenants of the overload.
const (
	floodTenant berth.TenantID = "flood-tenant"
	smallTenant berth.TenantID = "small-tenant"
)

// overload is the size of a phase with more submitted jobs than the cluster can run.
type overload struct {
	rate   float64       // submits a second
	accept float64       // of them, accepted by the null listener at rest: as many as jobs can settle
	lasts  time.Duration // of the load
	quiet  time.Duration // length of each phase at rest, with the same generator and a null listener
	warm   time.Duration // time of the generator before a phase at rest
	share  float64       // most cores of the generator
	probes float64       // submits a second of the small tenant
}

// phase holds the measurements of one phase of the overload.
type phase struct {
	from, to time.Time
	small    small
	made     made
	fixed    bool // a control group fixed the generator's CPU share
	seen     rig.Seen
	waits    []time.Duration // submit to start of the small tenant's jobs
	hops     string          // delays between the states of the same jobs
	cpu      string          // cores of each group of processes, while the phase lasted
	bound    string          // means of the limits that hold starts back
}

// runPhase runs generator, small tenant and watch side by side. An empty url
// has the generator submit to a null listener. The phase begins warm after the
// generator has started: the time before is left out.
func (c *cell) runPhase(p *rig.Probe, url string, o overload, lasts, warm time.Duration, tokens []string) phase {
	c.t.Helper()
	var ph phase
	ledger := ""
	if url != "" {
		ledger = c.LedgerPath(generatorHelper)
	}
	h, err := rig.StartHelper(generatorHelper, o.share, order{
		URL: url, Accept: o.accept, Tenant: floodTenant, Tokens: tokens, Rate: o.rate, For: warm + lasts,
		Spec: jobSpec(floodName, "exit", "0"), Ledger: ledger,
	})
	if err != nil {
		c.t.Fatal(err)
	}
	ph.fixed = h.Fixed
	pause(c.t.Context(), warm)
	w := c.StartWatch(time.Second, rig.Short{Name: floodName, Runs: 0})
	before, limits := c.Read(), c.watchLimits()
	if err := h.Wait(&ph.made); err != nil {
		c.t.Error(err)
	}
	ph.cpu, ph.bound = coresText(before, c.Read()), limits()
	ph.seen = w.Stop()
	ph.from, ph.to = ph.made.Began.Add(warm), ph.made.Began.Add(ph.made.Lasted)
	ph.small = c.smallBetween(p, ph.from, ph.to)
	ph.waits = c.waits(smallName, ph.from, ph.to)
	ph.hops = c.hopsText(smallName, ph.from, ph.to)
	return ph
}

// coresText describes the CPU that each group of processes used between two readings.
func coresText(before, after rig.Reading) string {
	var parts []string
	for _, g := range rig.Groups {
		parts = append(parts, fmt.Sprintf("%s %.2f", g, after.Cores(g, before)))
	}
	return strings.Join(parts, ", ") + fmt.Sprintf(", others on the host %.2f cores", after.Others(before))
}

// peakBesideGenerator measures the peak rate while the generator submits to its own
// listener at the overload's rate. The overload then takes as much CPU from the stack
// by its generator as the measurement of the peak did.
func (c *cell) peakBesideGenerator(o overload, jobs int, limit time.Duration) (rate float64, left int) {
	c.t.Helper()
	h, err := rig.StartHelper(generatorHelper, o.share, order{Accept: o.accept, Tenant: floodTenant,
		Tokens: []string{"none"}, Rate: o.rate, For: limit, Spec: jobSpec(floodName, "exit", "0")})
	if err != nil {
		c.t.Fatal(err)
	}
	rate, left = c.peakRate(jobs, limit)
	if err := h.Stop(&made{}); err != nil {
		c.t.Error(err)
	}
	return rate, left
}

// outcome holds the measurements of an overload.
type outcome struct {
	tokens             []string // of the flood
	quiet, loud, after phase
	again              *phase  // a second phase at rest after the load; nil: none was needed
	rested             bool    // the flood had settled when the last phase at rest began
	goodput            float64 // jobs settled a second while the load lasted
	peak               float64 // without the generator
	beside             float64 // peak next to the generator, which submits to a listener of its own
}

// overloadCell submits o.rate jobs a second for o.lasts, and measures the service during this time and
// during a quiet phase before it.
func (c *cell) overloadCell(p *rig.Probe, peak float64, o overload) outcome {
	c.t.Helper()
	out := outcome{peak: peak}
	for range 4 { // a team's tools may have as many callers
		out.tokens = append(out.tokens, c.tenantToken(floodTenant))
	}
	out.quiet = c.runPhase(p, "", o, o.quiet, o.warm, out.tokens)
	c.say("quiet: the small tenant's submits take p99 %.0f ms of %d; the generator used %.2f ms of CPU a call",
		rig.MS(rig.Quantile(out.quiet.small.took, 0.99)), len(out.quiet.small.took), out.quiet.made.perCall())
	from := c.now()
	out.loud = c.runPhase(p, c.URL, o, o.lasts, 0, out.tokens)
	to := c.now()
	settled := c.settledBetween(floodName, from, to) + c.settledBetween(smallName, from, to)
	out.goodput = float64(settled) / to.Sub(from).Seconds()
	made := out.loud.made
	c.say("overload: %d submits due, %d accepted, %d refused, %d failed, %d skipped; %.1f/s settled",
		made.Due, made.Accepted, made.Refused, made.Failed, made.Skipped, out.goodput)
	return out
}

func (m made) perCall() float64 { return rig.MS(m.CPU) / float64(max(m.Due-m.Skipped, 1)) }

// Rates of the small tenant's submits: a tenth of the peak rate, but enough for LeastAtRest in two phases at rest.
const (
	smallShare = 10
	fewProbes  = 5.0
	manyProbes = 10.0
)

// floodSettles is how long the second phase at rest waits for the jobs of the flood.
const floodSettles = time.Minute

// measureOverload measures the peak rate, an overload, and the service 30 s after the overload's end,
// and adds the results to the table. The load is shortened where the run would end after until.
func (c *cell) measureOverload(o overload, multiple, most float64, peakJobs int, until time.Time) {
	c.t.Helper()
	peak, left := c.peakRate(peakJobs, 3*time.Minute)
	if left > 0 {
		c.t.Fatalf("%d of %d jobs of the peak did not settle", left, peakJobs)
	}
	o.rate, o.accept = min(multiple*peak, most), peak
	if o.rate < multiple*peak {
		c.table.Remark("the overload is %.1f and not %.1f times the peak: -most %.0f caps it", o.rate/peak, multiple, most)
	}
	o.probes = min(max(peak/smallShare, fewProbes), manyProbes)
	beside, left := c.peakBesideGenerator(o, peakJobs, 3*time.Minute)
	if left > 0 {
		c.t.Fatalf("%d of %d jobs of the peak next to the generator did not settle", left, peakJobs)
	}
	asked := o.lasts
	if o.lasts = o.fit(time.Until(until)); o.lasts < asked {
		c.table.Remark("the overload lasts %s and not %s, so that the whole run keeps -within", o.lasts, asked)
	}
	c.say("peak: %.1f jobs/s, %.1f next to the generator; the overload submits %.0f/s for %s", peak, beside, o.rate, o.lasts)
	p := c.startProbe(o.probes)
	out := c.overloadCell(p, peak, o)
	out.beside = beside
	c.measureAfter(p, o, &out)
	if err := p.Stop(); err != nil {
		c.t.Error(err)
	}
	c.addOverload(o, out)
}

// measureAfter measures the service 30 s after the overload, with the generator on a null listener as before it. If
// jobs of the flood are live by then, another phase at rest follows once they have settled.
func (c *cell) measureAfter(p *rig.Probe, o overload, out *outcome) {
	c.t.Helper()
	rest := func() phase {
		ph := c.runPhase(p, "", o, o.quiet, o.warm, out.tokens)
		until(c.t, "the small tenant's jobs have started", time.Minute, func(ctx context.Context) error {
			n, err := c.unstarted(ctx, smallName, ph.from, ph.to)
			if err == nil && n > 0 {
				err = fmt.Errorf("%d have not", n)
			}
			return err
		})
		ph.waits = c.waits(smallName, ph.from, ph.to)
		ph.hops = c.hopsText(smallName, ph.from, ph.to)
		return ph
	}
	pause(c.t.Context(), recoverWithin-o.warm)
	n, err := c.live(c.t.Context(), floodName)
	if err != nil {
		c.t.Fatal(err)
	}
	out.rested = n == 0
	out.after = rest()
	if out.rested {
		return
	}
	if _, left := c.settle(floodName, floodSettles); left > 0 {
		return
	}
	again := rest()
	out.rested, out.again = true, &again
}

// Bounds of the length of an overload that is shortened.
const (
	shortestLoad = 2 * time.Minute
	loadMargin   = 15 * time.Second // for starts and ends of processes
)

// fit returns the length of the load if so much time is left for the load and the phases at rest.
func (o overload) fit(left time.Duration) time.Duration {
	left -= o.warm + 2*o.quiet + recoverWithin + loadMargin
	return min(o.lasts, max(left.Truncate(time.Second), shortestLoad))
}

func TestOverloadIsShortenedToTheTimeThatIsLeft(t *testing.T) {
	t.Parallel()
	o := overload{lasts: 5 * time.Minute, quiet: time.Minute, warm: 10 * time.Second}
	others := o.warm + 2*o.quiet + recoverWithin + loadMargin
	for _, c := range []struct{ left, want time.Duration }{
		{time.Hour, 5 * time.Minute},
		{others + 5*time.Minute, 5 * time.Minute},
		{others + 4*time.Minute, 4 * time.Minute},
		{others, shortestLoad},
		{-time.Minute, shortestLoad},
	} {
		if got := o.fit(c.left); got != c.want {
			t.Errorf("with %s left the overload lasts %s, want %s", c.left, got, c.want)
		}
	}
	o.lasts = 15 * time.Second
	if got := o.fit(0); got != o.lasts {
		t.Errorf("an overload of 15 s is made %s long", got)
	}
}

func pause(ctx context.Context, d time.Duration) { rig.SleepUntil(ctx, time.Now().Add(d)) }
