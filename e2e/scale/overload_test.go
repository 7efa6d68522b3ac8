package scale_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"encoding/json"

	"berth"
	"berth/e2e/rig"
	"berth/internal/check"
)

// Tenants of the overload.
const (
	floodTenant berth.TenantID = "flood-tenant"
	smallTenant berth.TenantID = "small-tenant"
)

// smallShare limits the small tenant's submit rate to a tenth of the peak rate.
const smallShare = 10

// overload is the size of a phase with more submitted jobs than the cluster can run.
type overload struct {
	rate   float64 // submits a second
	lasts  time.Duration
	quiet  time.Duration // length of the earlier phase, with the same generator and a null listener
	share  float64       // most cores of the generator
	probes float64       // submits a second of the small tenant
}

// probe is the small tenant: an open loop of few submits.
type probe struct {
	mu      sync.Mutex
	took    []time.Duration // of accepted submits
	refused int
	fault   string
	from    time.Time // by the database's clock
	to      time.Time
}

// startProbe submits small jobs until the returned function is called.
func (c *cell) startProbe(caller *rig.Caller, rate float64) (stop func() *probe) {
	c.t.Helper()
	p := &probe{from: c.now()}
	ctx, cancel := context.WithCancel(c.t.Context())
	body, err := json.Marshal(jobSpec(smallName, "exit", "0"))
	if err != nil {
		c.t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		began := time.Now()
		for i := 0; sleepUntil(ctx, began.Add(time.Duration(float64(i)/rate*float64(time.Second)))); i++ {
			all.Go(func() { c.probeOnce(p, caller, body) })
		}
	})
	return func() *probe {
		cancel()
		all.Wait()
		p.to = c.now()
		return p
	}
}

func (c *cell) probeOnce(p *probe, caller *rig.Caller, body []byte) {
	key := berth.NewSecret()
	a := caller.Call(context.Background(), http.MethodPost, "/v1/jobs", http.Header{"Idempotency-Key": {key}}, body)
	var job struct {
		ID berth.JobID `json:"id"`
	}
	err := a.Err
	if a.Good() {
		if err = json.Unmarshal(a.Body, &job); err == nil {
			err = c.ledger.Add(check.Accepted{Tenant: smallTenant, Key: key, Job: job.ID})
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if a.Good() && err == nil {
		p.took = append(p.took, a.Took)
		return
	}
	p.refused++
	if p.fault == "" {
		p.fault = fmt.Sprintf("status %d: %v %.200s", a.Status, err, a.Body)
	}
}

// phase holds the measurements of one phase of the overload.
type phase struct {
	probe *probe
	made  made
	fixed bool // a control group fixed the generator's CPU share
	seen  rig.Seen
	waits []time.Duration // submit to start of the small tenant's jobs
	hops  string          // delays between the states of the same jobs
	cpu   string          // cores of each group of processes, while the phase lasted
	bound string          // means of the limits that hold starts back
}

// runPhase runs generator, small tenant and watch side by side. An empty url
// has the generator submit to a listener of its own.
func (c *cell) runPhase(url string, o overload, lasts time.Duration, tokens []string, small *rig.Caller) phase {
	c.t.Helper()
	var ph phase
	w := c.StartWatch(time.Second, rig.Short{Name: floodName, Runs: 0})
	before, limits := c.Read(), c.watchLimits()
	ledger := ""
	if url != "" {
		ledger = c.LedgerPath(generatorHelper)
	}
	h, err := rig.StartHelper(generatorHelper, o.share, order{URL: url, Tenant: floodTenant, Tokens: tokens, Rate: o.rate, For: lasts, Spec: jobSpec(floodName, "exit", "0"), Ledger: ledger})
	if err != nil {
		c.t.Fatal(err)
	}
	ph.fixed = h.Fixed
	stop := c.startProbe(small, o.probes)
	if err := h.Wait(&ph.made); err != nil {
		c.t.Error(err)
	}
	ph.probe = stop()
	ph.cpu, ph.bound = coresText(before, c.Read()), limits()
	ph.seen = w.Stop()
	ph.waits = c.waits(smallName, ph.probe.from, ph.probe.to)
	ph.hops = c.hopsText(smallName, ph.probe.from, ph.probe.to)
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
	h, err := rig.StartHelper(generatorHelper, o.share, order{Tenant: floodTenant, Tokens: []string{"none"},
		Rate: o.rate, For: limit, Spec: jobSpec(floodName, "exit", "0")})
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
	quiet, loud, after phase
	goodput            float64 // jobs settled a second while the load lasted
	peak               float64 // without the generator
	beside             float64 // peak next to the generator, which submits to a listener of its own
}

// overloadCell submits o.rate jobs a second for o.lasts, and measures the service during this time and
// during a quiet phase before it.
func (c *cell) overloadCell(peak float64, o overload) outcome {
	c.t.Helper()
	flood := []string{}
	for range 4 { // a team's tools may have as many callers
		flood = append(flood, c.tenantToken(floodTenant))
	}
	small := rig.NewCaller(c.URL, c.tenantToken(smallTenant), "")
	defer small.Close()
	out := outcome{peak: peak}
	out.quiet = c.runPhase("", o, o.quiet, flood, small)
	c.say("quiet: the small tenant's submits take p99 %.0f ms; the generator used %.2f ms of CPU a call", rig.MS(rig.Quantile(out.quiet.probe.took, 0.99)), out.quiet.made.perCall())
	from := c.now()
	out.loud = c.runPhase(c.URL, o, o.lasts, flood, small)
	to := c.now()
	settled := c.settledBetween(floodName, from, to) + c.settledBetween(smallName, from, to)
	out.goodput = float64(settled) / to.Sub(from).Seconds()
	c.say("overload: %d submits due, %d accepted, %d refused, %d failed, %d skipped; %.1f/s settled", out.loud.made.Due, out.loud.made.Accepted, out.loud.made.Refused, out.loud.made.Failed, out.loud.made.Skipped, out.goodput)
	return out
}

func (m made) perCall() float64 { return rig.MS(m.CPU) / float64(max(m.Due-m.Skipped, 1)) }

// measureOverload measures the peak rate, an overload, and the service 30 s after the overload's end,
// and adds the results to the table.
func (c *cell) measureOverload(o overload, multiple, most float64, peakJobs int) {
	c.t.Helper()
	peak, left := c.peakRate(peakJobs, 3*time.Minute)
	if left > 0 {
		c.t.Fatalf("%d of %d jobs of the peak did not settle", left, peakJobs)
	}
	o.rate = min(multiple*peak, most)
	o.probes = min(o.probes, peak/smallShare) // keeps the tenant small on a slow host
	beside, left := c.peakBesideGenerator(o, peakJobs, 3*time.Minute)
	if left > 0 {
		c.t.Fatalf("%d of %d jobs of the peak next to the generator did not settle", left, peakJobs)
	}
	c.say("peak: %.1f jobs/s, %.1f next to the generator; the overload submits %.0f/s", peak, beside, o.rate)
	out := c.overloadCell(peak, o)
	out.beside = beside
	pause(c.t.Context(), recoverWithin)
	before, limits := c.Read(), c.watchLimits()
	w := c.StartWatch(time.Second, rig.Short{Name: floodName})
	small := rig.NewCaller(c.URL, c.tenantToken(smallTenant), "")
	defer small.Close()
	stop := c.startProbe(small, o.probes)
	pause(c.t.Context(), o.quiet)
	after := phase{probe: stop(), seen: w.Stop(), cpu: coresText(before, c.Read()), bound: limits()}
	until(c.t, "the small tenant's jobs have started", time.Minute, func(context.Context) error {
		after.waits = c.waits(smallName, after.probe.from, after.probe.to)
		if missing := len(after.probe.took) - len(after.waits); missing > 0 {
			return fmt.Errorf("%d have not", missing)
		}
		return nil
	})
	after.hops = c.hopsText(smallName, after.probe.from, after.probe.to)
	out.after = after
	c.addOverload(o, out)
}

func (c *cell) addOverload(o overload, out outcome) {
	p99 := func(list []time.Duration) float64 { return rig.MS(rig.Quantile(list, 0.99)) }
	quiet := p99(out.quiet.probe.took)
	name := fmt.Sprintf("overload of %.1fx for %s", o.rate/out.peak, o.lasts)
	c.table.Add(rig.Figure{Name: name + ": goodput over peak", Value: out.goodput / out.beside, Unit: "ratio", High: true, Must: rig.Limit(goodputMust),
		Note: fmt.Sprintf("%.1f of %.1f jobs/s, %.1f without the generator; submits: %d accepted, %d refused, %d failed",
			out.goodput, out.beside, out.peak, out.loud.made.Accepted, out.loud.made.Refused, out.loud.made.Failed)})
	c.addSilence(name, out.loud.seen)
	c.table.Add(rig.Figure{Name: name + ": ended process shown as running, longest", Value: out.loud.seen.ShownRunning.Seconds(), Unit: "s", Must: rig.Limit(shownRunningMust)})
	c.table.Add(rig.Figure{Name: name + ": small tenant's submit, p99", Value: p99(out.loud.probe.took) / quiet, Unit: "x quiet", Must: rig.Limit(smallMust),
		Note: fmt.Sprintf("%.0f ms; quiet %.0f ms, with the generator on a null listener", p99(out.loud.probe.took), quiet)})
	c.table.Add(rig.Figure{Name: name + ": small tenant's submits refused", Value: float64(out.loud.probe.refused), Must: rig.Limit(0), Note: out.loud.probe.fault})
	c.table.Add(rig.Figure{Name: "30 s later: small tenant's submit, p99", Value: p99(out.after.probe.took) / quiet, Unit: "x quiet", Must: rig.Limit(besideOverEmpty), Note: fmt.Sprintf("%.0f ms", p99(out.after.probe.took))})
	c.table.Add(rig.Figure{Name: "30 s later: small tenant's submit to start, p99", Value: p99(out.after.waits) / p99(out.quiet.waits), Unit: "x quiet", Must: rig.Limit(besideOverEmpty),
		Note: fmt.Sprintf("%.0f ms; quiet %.0f ms; under overload %.0f ms", p99(out.after.waits), p99(out.quiet.waits), p99(out.loud.waits))})
	c.addSilence("30 s later", out.after.seen)
	c.table.Add(rig.Figure{Name: "30 s later: ended process shown as running, longest", Value: out.after.seen.ShownRunning.Seconds(), Unit: "s", Must: rig.Limit(shownRunningMust)})
	for _, x := range []struct {
		name string
		phase
	}{{"quiet", out.quiet}, {"overload", out.loud}, {"30 s later", out.after}} {
		c.table.Remark("%s: small tenant's jobs: %s; %s; %s", x.name, x.hops, x.cpu, x.bound)
	}
	fixed := "a control group bounds it"
	if !out.loud.fixed {
		fixed = "NO control group bounds it on this host"
	}
	c.table.Remark("generator: %.2f ms of CPU a call on the server, %.2f on a null listener; at most %.2f cores, %s; %d of %d submits were skipped",
		out.loud.made.perCall(), out.quiet.made.perCall(), o.share, fixed, out.loud.made.Skipped, out.loud.made.Due)
	if out.loud.made.Fault != "" {
		c.table.Remark("first submit of the overload that failed: %s", out.loud.made.Fault)
	}
}

func pause(ctx context.Context, d time.Duration) { sleepUntil(ctx, time.Now().Add(d)) }
