package main

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"
)

// BenchmarkOrder prints the completion times of each queue policy over those of the reference
// orders, and the lower bounds: the table of docs/design/simulation.md. Numbers of the engine are
// chosen on the half tune; the half judge is for one last run.
func BenchmarkOrder(b *testing.B) {
	p := readPublicTraces(b)
	if *half != "tune" && *half != "judge" && *half != "all" {
		b.Fatalf("-half %q: allowed are tune, judge and all", *half)
	}
	for b.Loop() {
		// Rows are printed as they come: a log of this length would be cut off.
		fmt.Println("\n" + orderHeader)
		var all [][]float64
		for i := range orderTraces {
			o := &orderTraces[i]
			if *half == "tune" && o.judged() || *half == "judge" && !o.judged() {
				continue
			}
			r := o.compare(b, p)
			all = append(all, r)
			fmt.Println(orderRow(o.name, r))
		}
		mean, most := slices.Clone(all[0]), slices.Clone(all[0])
		for _, r := range all[1:] {
			for k := range r {
				mean[k], most[k] = mean[k]+r[k], max(most[k], r[k])
			}
		}
		for k := range mean {
			mean[k] /= float64(len(all))
		}
		fmt.Println(orderRow("mean", mean))
		fmt.Println(orderRow("largest", most))
	}
}

// orderHeader names the columns; p99 stands for the 99th percentile, pre for preemptions per job.
const orderHeader = `| trace | jobs | SRSF: over bound | p99 over bound | srsf / SRSF | pre | s | sjf / SJF | s | ` +
	`fair / SRSF | p99 / SRSF's | p99 over bound | pre | s | fifo p99 / EASY's | mean | s | ` +
	"learned / Tiresias-L | pre | s |\n" +
	`| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |`

func orderRow(name string, r []float64) string {
	row := fmt.Sprintf("| %s | %.0f |", name, r[0])
	for k, x := range r[1:] {
		if slices.Contains([]int{4, 6, 11, 14, 17}, k) {
			row += fmt.Sprintf(" %.1f |", x)
		} else {
			row += fmt.Sprintf(" %.3f |", x)
		}
	}
	return row
}

// orderResult is what one policy made of a trace.
type orderResult struct {
	mean, p99, preemptions float64
	wall                   float64 // seconds
}

// compare returns the numbers of a trace in the order of orderHeader.
func (o *orderTrace) compare(tb testing.TB, p *publicTraces) []float64 {
	tb.Helper()
	jobs := o.make(tb, p)
	list := fluids(jobs, o.machines)
	low, tail := meanBound(list), tailBound(list)
	known := func(r rule) orderResult {
		times, preemptions := refer(jobs, o.machines, r).times()
		return orderResult{mean: meanOf(times), p99: percentile(times, 0.99), preemptions: preemptions}
	}
	srsf, sjf := known(plainSRSF{}), known(plainSJF{})
	fifo, tiresias := known(easyFIFO{}), known(&tiresiasL{})
	ours := map[string]orderResult{}
	for _, name := range policyNames() {
		ours[name] = o.played(tb, jobs, name)
	}
	s, j, f, q, l := ours["srsf"], ours["sjf"], ours["fair"], ours["fifo"], ours["learned"]
	return []float64{
		float64(len(jobs)), srsf.mean / low, srsf.p99 / tail,
		s.mean / srsf.mean, s.preemptions, s.wall,
		j.mean / sjf.mean, j.wall,
		f.mean / srsf.mean, f.p99 / srsf.p99, f.p99 / tail, f.preemptions, f.wall,
		q.p99 / fifo.p99, q.mean / fifo.mean, q.wall,
		l.mean / tiresias.mean, l.preemptions, l.wall,
	}
}

// played replays a trace under a policy of berth-sim queue.
func (o *orderTrace) played(tb testing.TB, jobs []work, policy string) orderResult {
	tb.Helper()
	p, err := policyNamed(policy)
	if err != nil {
		tb.Fatal(err)
	}
	start := time.Now()
	r, err := p.play(context.Background(), jobs, o.machines, orderGPUs)
	if err != nil {
		tb.Fatalf("%s, %s: %v", o.name, policy, err)
	}
	got := orderResult{wall: time.Since(start).Seconds()}
	var times []float64
	for _, t := range r.ended {
		times = append(times, t.finished.Sub(origin.Add(t.submitted)).Seconds())
		got.preemptions += float64(t.starts-1) / float64(len(r.ended))
	}
	slices.Sort(times)
	got.mean, got.p99 = meanOf(times), percentile(times, 0.99)
	return got
}
