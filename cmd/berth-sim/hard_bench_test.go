package main

import (
	"flag"
	"fmt"
	"path/filepath"
	"sync"
	"testing"

	"berth/placement"
)

var (
	half  = flag.String("half", "tune", "lists of BenchmarkHard: tune, judge or all")
	draws = flag.Int("draws", 5, "draws of each list of BenchmarkHard")
)

// BenchmarkHard prints the share of the GPUs that each policy places of the hard lists, and an
// upper bound: the table of docs/design/placement.md. Numbers of the engine are chosen on the half
// tune; the half judge is for one last run.
func BenchmarkHard(b *testing.B) {
	nodes, pods := publicLists(b)
	for b.Loop() {
		// Rows are printed as they come: a log of this length would be cut off.
		fmt.Println("\n| list | first fit | best fit | FGD | Berth, mix given | Berth, mix learned | bound |")
		fmt.Println("| --- | --- | --- | --- | --- | --- | --- |")
		for i := range hardLists {
			l := &hardLists[i]
			switch {
			case *half == "tune" && l.judged(), *half == "judge" && !l.judged():
				continue
			case *half != "tune" && *half != "judge" && *half != "all":
				b.Fatalf("-half %q: allowed are tune, judge and all", *half)
			}
			row := "| " + l.name + " |"
			for _, r := range l.compare(b, nodes, pods) {
				row += fmt.Sprintf(" %.2f, %.2f |", r[0], r[1])
			}
			fmt.Println(row)
		}
	}
}

// publicLists reads Alibaba's machines and pods from the folder of the flag -traces.
func publicLists(tb testing.TB) (nodes []placement.Machine, pods []pod) {
	tb.Helper()
	if *traces == "" {
		tb.Skip("say where the lists are: -args -traces FOLDER")
	}
	nodes, err := readNodes(filepath.Join(*traces, "openb/openb_node_list_gpu_node.csv"))
	if err != nil {
		tb.Fatal(err)
	}
	pods, err = readMix(filepath.Join(*traces, "openb/openb_pod_list_default.csv"))
	if err != nil {
		tb.Fatal(err)
	}
	return nodes, pods
}

// compare returns the shares that each policy places when 100 and 130 % of the GPUs were asked
// for, in percent, each the mean over the draws. The columns are in the order of BenchmarkHard.
func (l *hardList) compare(tb testing.TB, nodes []placement.Machine, pods []pod) (means [6][2]float64) {
	tb.Helper()
	var mu sync.Mutex
	var all sync.WaitGroup
	for seed := range uint64(*draws) {
		all.Go(func() {
			d := l.draw(seed, nodes, pods)
			_, capacity := emptied(d.nodes)
			results := []*marks{
				firstFit(d.nodes, d.arrivals),
				packed(d.nodes, d.arrivals, placement.BestFit, nil),
				descended(d.nodes, d.arrivals, d.mix),
				l.packedWithMix(tb, d),
				packed(d.nodes, d.arrivals, placement.LeastFragmentation, nil),
			}
			mu.Lock()
			defer mu.Unlock()
			for k, mark := range []float64{1, 1.3} {
				for i, m := range results {
					means[i][k] += m.mean(k) / float64(*draws)
				}
				means[5][k] += most(d.nodes, cut(d.arrivals, capacity, mark)) / float64(*draws)
			}
		})
	}
	all.Wait()
	return means
}

// Under drift the given mix is that of the next ahead arrivals, renewed every aheadEvery.
const (
	ahead      = 1000
	aheadEvery = 200
)

// packedWithMix lets the engine place the arrivals of a draw, with the mix given.
func (l *hardList) packedWithMix(tb testing.TB, d hardDraw) *marks {
	tb.Helper()
	mix, err := mixOf(d.mix)
	if err != nil {
		tb.Error(err)
	}
	c := newCluster(d.nodes, mix)
	m := &marks{}
	for i, p := range d.arrivals {
		if l.drift != steady && i%aheadEvery == 0 {
			if mix, err = mixOf(d.arrivals[i:min(i+ahead, len(d.arrivals))]); err != nil {
				tb.Error(err)
			}
			c.snapshot.UseMix(mix)
		}
		c.arrive(p)
		m.note(c.asked, c.placed, c.capacity)
	}
	return m
}
