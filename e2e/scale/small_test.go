package scale_test

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"time"

	"berth/e2e/rig"
)

// small holds the small tenant's submits of a phase.
type small struct {
	took    []time.Duration // of accepted submits, from when each was due, in that order
	refused int
	fault   string
	lag     time.Duration // of the probe, p99
}

// startProbe starts the small tenant: an open loop of few submits, in a process of its own.
func (c *cell) startProbe(rate float64) *rig.Probe {
	c.t.Helper()
	body, err := json.Marshal(jobSpec(smallName, "exit", "0"))
	if err != nil {
		c.t.Fatal(err)
	}
	p, err := c.StartProbe(rig.ProbePlan{
		URL: c.URL, Token: c.tenantToken(smallTenant), Rate: rate, Tenant: smallTenant, Ledger: c.LedgerPath(rig.ProbeHelper),
		Round: []rig.ProbeCall{{Kind: "submit", Method: http.MethodPost, Path: "/v1/jobs", Body: body, Keyed: true}},
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return p
}

// smallBetween waits for the answers to the submits that were due in a span of time, and returns them.
func (c *cell) smallBetween(p *rig.Probe, from, to time.Time) (s small) {
	c.t.Helper()
	if err := p.Await(c.t.Context(), to); err != nil {
		c.t.Fatal(err)
	}
	for _, call := range p.Between(from, to) {
		if call.Fault == "" {
			s.took = append(s.took, call.Took)
			continue
		}
		s.refused++
		if s.fault == "" {
			s.fault = call.Fault
		}
	}
	s.lag = rig.Quantile(p.Lag(from, to), 0.99)
	return s
}

// comparison compares the small tenant's submits of a phase with its submits at rest.
func (o outcome) comparison(load phase, rest ...phase) rig.Comparison {
	c := rig.Comparison{Load: load.small.took, LoadLag: load.small.lag, Bounded: load.fixed}
	for _, r := range rest {
		c.Rest = append(c.Rest, r.small.took...)
		c.RestLag = max(c.RestLag, r.small.lag)
		c.Bounded = c.Bounded && r.fixed
	}
	return c
}

// atRest returns the phases at rest: before the load, and after it if the flood had settled.
func (o outcome) atRest() []phase {
	switch {
	case !o.rested:
		return []phase{o.quiet}
	case o.again != nil:
		return []phase{o.quiet, *o.again}
	}
	return []phase{o.quiet, o.after}
}

// addOverload adds the results of an overload to the table.
func (c *cell) addOverload(o overload, out outcome) {
	p99 := func(list []time.Duration) float64 { return rig.MS(rig.Quantile(list, 0.99)) }
	name := fmt.Sprintf("overload of %.1fx for %s", o.rate/out.peak, o.lasts)
	goodput := out.goodput / out.beside
	note := ""
	if !out.loud.fixed {
		goodput, note = math.NaN(), fmt.Sprintf("no control group bounds the generator; %.2f if it were; ", goodput)
	}
	made := out.loud.made
	c.table.Add(rig.Figure{Name: name + ": goodput over peak", Value: goodput, Unit: "ratio", High: true, Must: rig.Limit(goodputMust),
		Note: note + fmt.Sprintf("%.1f of %.1f jobs/s, %.1f without the generator; submits: %d accepted, %d refused, %d failed",
			out.goodput, out.beside, out.peak, made.Accepted, made.Refused, made.Failed)})
	c.addSilence(name, out.loud.seen)
	c.table.Add(rig.Figure{Name: name + ": ended process shown as running, longest", Value: out.loud.seen.ShownRunning.Seconds(), Unit: "s", Must: rig.Limit(shownRunningMust)})
	loud := out.comparison(out.loud, out.atRest()...)
	loud.Least = rig.LeastAtRest
	c.table.Add(loud.Figure(name+": small tenant's submit", smallMust))
	c.table.Add(rig.Figure{Name: name + ": small tenant's submits refused", Value: float64(out.loud.small.refused), Must: rig.Limit(0), Note: out.loud.small.fault})
	c.table.Add(out.comparison(out.after, out.quiet).Figure("30 s later: small tenant's submit", besideOverEmpty))
	c.table.Add(rig.Figure{Name: "30 s later: small tenant's submit to start, p99", Value: p99(out.after.waits) / p99(out.quiet.waits), Unit: "x quiet", Must: rig.Limit(besideOverEmpty),
		Note: fmt.Sprintf("%.0f ms; quiet %.0f ms; under overload %.0f ms", p99(out.after.waits), p99(out.quiet.waits), p99(out.loud.waits))})
	c.addSilence("30 s later", out.after.seen)
	c.table.Add(rig.Figure{Name: "30 s later: ended process shown as running, longest", Value: out.after.seen.ShownRunning.Seconds(), Unit: "s", Must: rig.Limit(shownRunningMust)})
	c.remarkOverload(o, out)
}

// remarkOverload adds the lines below the table that explain an overload's figures.
func (c *cell) remarkOverload(o overload, out outcome) {
	phases := []struct {
		name string
		phase
	}{{"quiet", out.quiet}, {"overload", out.loud}, {"30 s later", out.after}}
	if out.again != nil {
		phases = append(phases, struct {
			name string
			phase
		}{"quiet again", *out.again})
	}
	for _, x := range phases {
		c.table.Remark("%s: small tenant's jobs: %s; %s; %s", x.name, x.hops, x.cpu, x.bound)
	}
	switch {
	case out.again != nil:
		c.table.Remark("quiet: before the load, and after the jobs of the flood had settled, which took longer than 30 s")
	case out.rested:
		c.table.Remark("quiet: before the load and 30 s after it")
	default:
		c.table.Remark("quiet: before the load only, since jobs of the flood were still live after it")
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
