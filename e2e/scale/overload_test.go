package scale_test

import (
	"context"
	"fmt"
	"net/http"
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

// overload is the size of a phase in which more is submitted than can run.
type overload struct {
	rate   float64 // submits a second
	lasts  time.Duration
	quiet  time.Duration // length of the phase before it, with the same generator and a null listener
	share  float64       // most cores of the generator
	probes float64       // submits a second of the small tenant
}

// probe is the small tenant: an open loop of few submits.
type probe struct {
	mu      sync.Mutex
	took    []time.Duration // of those accepted
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

// phase is what one phase of the overload showed.
type phase struct {
	probe *probe
	made  made
	fixed bool // the generator's share was
	seen  rig.Seen
	waits []time.Duration // submit to start of the small tenant's jobs
}

// runPhase runs generator, small tenant and watch side by side. An empty url
// has the generator submit to a listener of its own.
func (c *cell) runPhase(url string, o overload, lasts time.Duration, tokens []string, small *rig.Caller) phase {
	c.t.Helper()
	var ph phase
	w := c.StartWatch(time.Second, rig.Short{Name: floodName, Runs: 0})
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
	ph.seen = w.Stop()
	ph.waits = c.waits(smallName, ph.probe.from, ph.probe.to)
	return ph
}

// outcome is what an overload showed.
type outcome struct {
	quiet, loud, after phase
	goodput            float64 // jobs settled a second while the load lasted
	peak               float64
}

// overloadCell submits o.rate jobs a second for a while, and looks at what is
// left of the service meanwhile and afterwards.
func (c *cell) overloadCell(peak float64, o overload) outcome {
	c.t.Helper()
	flood := []string{}
	for range 4 { // as many callers as a team's tools may be
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

// measureOverload adds what an overload showed, and what was left 30 s after
// its end.
func (c *cell) measureOverload(o overload, multiple, most float64, peakJobs int) {
	c.t.Helper()
	peak, left := c.peakRate(peakJobs, 3*time.Minute)
	if left > 0 {
		c.t.Fatalf("%d of %d jobs of the peak did not settle", left, peakJobs)
	}
	o.rate = min(multiple*peak, most)
	c.say("peak: %.1f jobs/s; the overload submits %.0f/s", peak, o.rate)
	out := c.overloadCell(peak, o)
	pause(c.t.Context(), recoverWithin)
	w := c.StartWatch(time.Second, rig.Short{Name: floodName})
	small := rig.NewCaller(c.URL, c.tenantToken(smallTenant), "")
	defer small.Close()
	stop := c.startProbe(small, o.probes)
	pause(c.t.Context(), o.quiet)
	after := phase{probe: stop(), seen: w.Stop()}
	until(c.t, "the small tenant's jobs have started", time.Minute, func(context.Context) error {
		after.waits = c.waits(smallName, after.probe.from, after.probe.to)
		if missing := len(after.probe.took) - len(after.waits); missing > 0 {
			return fmt.Errorf("%d have not", missing)
		}
		return nil
	})
	out.after = after
	c.addOverload(o, out)
}

func (c *cell) addOverload(o overload, out outcome) {
	p99 := func(list []time.Duration) float64 { return rig.MS(rig.Quantile(list, 0.99)) }
	quiet := p99(out.quiet.probe.took)
	name := fmt.Sprintf("overload of %.1fx for %s", o.rate/out.peak, o.lasts)
	c.table.Add(rig.Figure{Name: name + ": goodput over peak", Value: out.goodput / out.peak, Unit: "ratio", High: true, Must: rig.Limit(goodputMust),
		Note: fmt.Sprintf("%.1f of %.1f jobs/s; submits: %d accepted, %d refused, %d failed", out.goodput, out.peak, out.loud.made.Accepted, out.loud.made.Refused, out.loud.made.Failed)})
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
