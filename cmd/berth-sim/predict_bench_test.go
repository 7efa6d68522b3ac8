package main

import (
	"context"
	"flag"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/placement"
)

var (
	lists      = flag.String("lists", "", "lists of BenchmarkPredict, as a regular expression of their names; all if empty")
	onlyLimits = flag.Bool("only-limits", false, "BenchmarkPredict: leave out the jobs without limits, which take longer")
)

// BenchmarkPredict prints how well starts are predicted when jobs are submitted: the table of
// docs/design/simulation.md. Numbers of the predictor are chosen on the half tune; the half judge
// is for one last run.
func BenchmarkPredict(b *testing.B) {
	p := readPublicTraces(b)
	if *half != "tune" && *half != "judge" && *half != "all" {
		b.Fatalf("-half %q: allowed are tune, judge and all", *half)
	}
	wanted, err := regexp.Compile(*lists)
	if err != nil {
		b.Fatalf("-lists: %v", err)
	}
	for b.Loop() {
		fmt.Println("\n" + predictHeader)
		var sums [3][2]predictions // of Muri's trace 3, of Philly, and of all
		for i := range orderTraces {
			o := &orderTraces[i]
			if *half == "tune" && o.judged() || *half == "judge" && !o.judged() || !wanted.MatchString(o.name) {
				continue
			}
			of := 0
			if strings.HasPrefix(o.name, "Philly") {
				of = 1
			}
			row := fmt.Sprintf("| %s |", o.name)
			for k, limits := range []bool{false, true} {
				if *onlyLimits && !limits {
					row += " - | - | - | - |"
					continue
				}
				got := o.predicted(b, p, limits)
				sums[of][k].list = append(sums[of][k].list, got.list...)
				sums[2][k].list = append(sums[2][k].list, got.list...)
				row += got.cells()
			}
			fmt.Println(row)
		}
		for i, name := range []string{"trace 3", "Philly", "all"} {
			fmt.Println("| " + name + " |" + sums[i][0].cells() + sums[i][1].cells())
		}
	}
}

// predictHeader names the columns, without limits and with limits: jobs that waited after the plan
// that first saw them, without a prediction, within a factor of two, and quartiles of the predicted
// over the actual wait.
const predictHeader = `| trace | waited | no prediction | within 2 | predicted / actual | waited | no prediction | ` +
	`within 2 | predicted / actual |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |`

// A prediction is the first estimate of a job's start that its user sees, with the outcome.
type prediction struct {
	predicted, actual time.Duration // waits from the submission on; predicted is -1 without a prediction
}

// predictions are those of one trace, in the order of the submissions.
type predictions struct{ list []*prediction }

// shortWait is the wait below which waits do not differ: the users do not care.
const shortWait = time.Minute

// ratio is the predicted wait over the actual one.
func ratio(predicted, actual time.Duration) float64 {
	return float64(max(predicted, shortWait)) / float64(max(actual, shortWait))
}

// cells returns the cells of a row.
func (p predictions) cells() string {
	var ratios []float64
	within := 0
	for _, x := range p.list {
		if x.predicted < 0 {
			continue
		}
		r := ratio(x.predicted, x.actual)
		ratios = append(ratios, r)
		if r >= 0.5 && r <= 2 {
			within++
		}
	}
	slices.Sort(ratios)
	n := float64(max(1, len(ratios)))
	return fmt.Sprintf(" %d | %d | %.0f %% | %.2f, %.2f, %.2f |", len(p.list), len(p.list)-len(ratios),
		100*float64(within)/n, percentile(ratios, 0.25), percentile(ratios, 0.5), percentile(ratios, 0.75))
}

// productionPolicy is the default of berthd.
var productionPolicy = placement.Policy{
	Order: placement.Fair, BandWidth: 100, Aging: time.Hour, Overdue: 24 * time.Hour, HalfLife: 7 * 24 * time.Hour,
	Backfill: 32, Preempt: true, PreemptAfter: 5 * time.Minute, MinRuntime: 10 * time.Minute,
	NominationFor: 10 * time.Minute, Exponent: placement.UsualExponent, Outrank: 2,
}

// predictor follows a replay, predicts the start of each job that waits after the first plan, and
// learns from ends and starts as they happen.
type predictor struct {
	quiet
	*replay
	history *placement.RunTimes
	open    map[berth.JobID]*prediction
	done    predictions
}

// ended reports an ended job to the history.
func (p *predictor) ended(t *task) {
	p.history.Add(placement.Like{Tenant: t.tenant, Class: t.class, GPUs: float64(t.gpus),
		SubmittedAt: origin.Add(t.submitted)}, t.done)
}

// predicted replays a trace under the production policy, without time limits or with limits of the
// exact run time.
func (o *orderTrace) predicted(tb testing.TB, traces *publicTraces, limits bool) predictions {
	tb.Helper()
	jobs := o.make(tb, traces)
	var tenants []placement.Tenant
	for i := range jobs {
		w := &jobs[i]
		w.saves = true
		if limits {
			w.timeLimit = w.length + w.startCost
		}
		if w.tenant == "" {
			w.tenant = "all"
		}
		if !slices.ContainsFunc(tenants, func(t placement.Tenant) bool { return t.ID == w.tenant }) {
			tenants = append(tenants, placement.Tenant{ID: w.tenant, Weight: 1, Limit: berth.Capacity{}})
		}
	}
	p := &predictor{history: placement.NewRunTimes(), open: map[berth.JobID]*prediction{}}
	planner := placement.Planner{Pack: placement.LeastFragmentation, Policy: productionPolicy}
	p.replay = newReplay(equalMachines(o.machines, orderGPUs), jobs, planner, p)
	p.replay.open(tenants)
	if err := p.run(context.Background()); err != nil {
		tb.Fatalf("%s: %v", o.name, err)
	}
	return p.done
}

// run is replay.run with predictions.
func (p *predictor) run(ctx context.Context) error {
	r := p.replay
	predictor := r.planner
	predictor.RunTimes = p.history
	for len(r.arrivals) > 0 || len(r.running) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		r.now = r.nextEvent()
		r.finish()
		before := len(r.arrivals)
		fresh := r.arrivals
		r.arrive()
		if err := r.settle(); err != nil {
			return err
		}
		p.starts()
		var forecast *placement.Forecast
		for _, t := range fresh[:before-len(r.arrivals)] {
			if t.attempt > 0 {
				continue // it has started at once
			}
			if forecast == nil {
				forecast = predictor.Forecast(r.snapshot, r.now)
			}
			x := &prediction{predicted: -1}
			if at := forecast.Estimate(t.job).Start; !at.IsZero() {
				x.predicted = at.Sub(r.now)
			}
			p.open[t.job] = x
			p.done.list = append(p.done.list, x)
		}
	}
	return nil
}

// starts records the outcomes of jobs that have started.
func (p *predictor) starts() {
	for id, x := range p.open {
		t := p.tasks[id]
		if t.attempt == 0 {
			continue
		}
		delete(p.open, id)
		x.actual = t.first.Sub(origin.Add(t.submitted))
	}
}
