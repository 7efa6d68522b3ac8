package main

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"berth"
)

// Traces for the orders of the queue, made from the two public ones: other loads, all jobs at once,
// parts of the time, single virtual clusters, and blocks of neighbours drawn again.

// orderTrace is one trace on a cluster of machines of eight GPUs.
type orderTrace struct {
	name     string
	machines int
	load     float64 // GPU time over capacity, from the first to the last submission; 0: all at once
	jobs     func(p *publicTraces) []work
}

// publicTraces are the traces that all others are made from.
type publicTraces struct{ muri, philly []work }

// orderGPUs is the number of GPUs of each machine.
const orderGPUs = 8

// judged reports whether a trace belongs to the half on which results are judged. The other half
// is for the choice of numbers. The half follows from the name alone.
func (o *orderTrace) judged() bool {
	h := fnv.New32a()
	h.Write([]byte(o.name))
	return h.Sum32()>>8&1 == 1
}

// orderTraces are all traces.
var orderTraces = func() []orderTrace {
	var list []orderTrace
	add := func(name string, machines int, jobs func(*publicTraces) []work, loads ...float64) {
		for _, l := range loads {
			o := orderTrace{fmt.Sprintf("%s, load %g", name, l), machines, l, jobs}
			if l == 0 {
				o.name = name + ", at once"
			}
			list = append(list, o)
		}
	}
	whole := func(p *publicTraces) []work { return p.muri }
	add("trace 3", 8, whole, 0.5, 0.8, 1.2, 1.6, 3, 6, 0)
	add("trace 3, first half", 8, func(p *publicTraces) []work { return slice(p.muri, 0, 0.5) }, 0.7, 2, 0)
	add("trace 3, second half", 8, func(p *publicTraces) []work { return slice(p.muri, 0.5, 1) }, 0.9, 4, 0)
	add("trace 3, blocks drawn again", 8, blocks(1, 2600), 1, 2, 5, 0)
	add("trace 3, fewer blocks", 8, blocks(2, 1500), 0.6, 1.4, 3, 0)
	add("trace 3, sizes shuffled", 8, shuffledSizes, 0.8, 2.5, 0)
	add("Philly 6214e9", 4, clusters("6214e9"), 0.7, 1.1, 3, 0)
	add("Philly 11cb48", 1, clusters("11cb48"), 0.9, 2, 0)
	add("Philly's wide clusters", 16, clusters("b436b2", "ee9e8c", "6c71a0", "103959"), 0.6, 1, 2, 5, 0)
	month := func(p *publicTraces) []work { return slice(p.philly, 0, 0.5) }
	add("Philly, first half of the month", 24, month, 0.8, 1.8, 0)
	return list
}()

// slice returns the jobs between two fractions of the list.
func slice(jobs []work, from, to float64) []work {
	n := float64(len(jobs))
	return slices.Clone(jobs[int(from*n):int(to*n)])
}

// clusters returns the jobs of the virtual clusters.
func clusters(names ...berth.TenantID) func(*publicTraces) []work {
	return func(p *publicTraces) []work {
		var list []work
		for _, w := range p.philly {
			if slices.Contains(names, w.tenant) {
				list = append(list, w)
			}
		}
		return list
	}
}

// blockSize is the number of neighbors that are drawn together.
const blockSize = 60

// blocks returns about count jobs of trace 3 in drawn blocks of neighbors. Neighbors resemble each
// other, so that single jobs drawn again would have nothing to learn from.
func blocks(seed uint64, count int) func(*publicTraces) []work {
	return func(p *publicTraces) []work {
		r := rand.New(rand.NewPCG(seed, 14))
		var list []work
		at := time.Duration(0)
		for len(list) < count {
			first := r.IntN(len(p.muri) - blockSize)
			start := p.muri[first].submitted
			for _, w := range p.muri[first : first+blockSize] {
				w.submitted += at - start
				list = append(list, w)
			}
			at += p.muri[first+blockSize].submitted - start
		}
		return list
	}
}

// shuffledSizes returns trace 3 with the numbers of GPUs dealt again, so that sizes and run times
// are independent.
func shuffledSizes(p *publicTraces) []work {
	list := slices.Clone(p.muri)
	r := rand.New(rand.NewPCG(3, 14))
	for i, j := range r.Perm(len(list)) {
		list[i].gpus = p.muri[j].gpus
	}
	return list
}

// make returns the jobs of a trace, ready for a replay, by submission.
func (o *orderTrace) make(tb testing.TB, p *publicTraces) []work {
	tb.Helper()
	list := slices.Clone(o.jobs(p))
	total, start := 0.0, list[0].submitted
	for _, w := range list {
		total += w.length.Seconds() * float64(w.gpus)
	}
	// All submissions are stretched by one factor, which keeps bursts and pauses.
	factor := 0.0
	if span := (list[len(list)-1].submitted - start).Seconds(); o.load > 0 {
		factor = total / (o.load * span * float64(o.machines*orderGPUs))
	}
	for i := range list {
		w := &list[i]
		w.id = strconv.Itoa(i)
		w.submitted = seconds((w.submitted - start).Seconds() * factor)
	}
	slices.SortStableFunc(list, func(a, b work) int { return cmp.Compare(a.submitted, b.submitted) })
	if err := spread(list, o.machines, orderGPUs); err != nil {
		tb.Fatal(err)
	}
	return list
}

// readPublicTraces reads the traces of the folder of the flag -traces.
func readPublicTraces(tb testing.TB) *publicTraces {
	tb.Helper()
	if *traces == "" {
		tb.Skip("say where the traces are: -args -traces FOLDER")
	}
	muri, err := readTrace(filepath.Join(*traces, "muri/trace3.csv"))
	if err != nil {
		tb.Fatal(err)
	}
	philly, err := readTrace(filepath.Join(*traces, "philly/philly_2017-09.csv"))
	if err != nil {
		tb.Fatal(err)
	}
	return &publicTraces{muri, philly}
}

// TestOrderTracesAreDivided: both halves have traces at low and at high load, and with all jobs at
// once, from both sources.
func TestOrderTracesAreDivided(t *testing.T) {
	t.Parallel()
	for _, judged := range []bool{false, true} {
		var low, high, once, all int
		for _, o := range orderTraces {
			switch {
			case o.judged() != judged:
				continue
			case o.load == 0:
				once++
			case o.load <= 1:
				low++
			default:
				high++
			}
			all++
		}
		if all < 8 || low < 3 || high < 3 || once < 3 {
			t.Errorf("half judged=%v: %d traces, %d at low load, %d at high load, %d at once", judged, all, low, high, once)
		}
	}
}
