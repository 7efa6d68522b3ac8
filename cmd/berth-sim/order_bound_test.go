package main

import (
	"cmp"
	"container/heap"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// Lower bounds on the completion times of a trace. They let a job run at any number of GPUs and
// know everything, so that no schedule can be below them.

// fluid is a job as the bounds see it.
type fluid struct {
	submitted, run, area float64 // seconds; area in seconds of the whole cluster
}

// fluids returns the jobs with one start each, by submission.
func fluids(jobs []work, machines int) []fluid {
	var list []fluid
	for _, e := range newBook(jobs, machines).arrivals {
		run := (e.length + e.startCost).Seconds()
		list = append(list, fluid{e.submitted.Seconds(), run, run * float64(e.need) / float64(machines*orderGPUs)})
	}
	return list
}

// boundHeap holds jobs by a key, the least first.
type boundHeap struct {
	key  func(i int) float64
	list []int
}

func (h *boundHeap) Len() int           { return len(h.list) }
func (h *boundHeap) Less(i, j int) bool { return h.key(h.list[i]) < h.key(h.list[j]) }
func (h *boundHeap) Swap(i, j int)      { h.list[i], h.list[j] = h.list[j], h.list[i] }
func (h *boundHeap) Push(x any)         { h.list = append(h.list, x.(int)) }
func (h *boundHeap) Pop() any {
	x := h.list[len(h.list)-1]
	h.list = h.list[:len(h.list)-1]
	return x
}

// serve runs the jobs one after the other on the whole cluster, at each time the one with the
// least key, and calls worked for each part that was done. left is the work still to do.
func serve(list []fluid, key func(i int, left []float64) float64, worked func(i int, from, to float64, over bool)) {
	left := make([]float64, len(list))
	for i, f := range list {
		left[i] = f.area
	}
	h := &boundHeap{key: func(i int) float64 { return key(i, left) }}
	at, next := 0.0, 0
	for next < len(list) || h.Len() > 0 {
		if h.Len() == 0 {
			at = max(at, list[next].submitted)
		}
		for next < len(list) && list[next].submitted <= at {
			heap.Push(h, next)
			next++
		}
		i := h.list[0]
		until := at + left[i]
		if next < len(list) && list[next].submitted < until {
			until = list[next].submitted
			worked(i, at, until, false)
			left[i] -= until - at
			heap.Fix(h, 0)
		} else {
			worked(i, at, until, true)
			heap.Pop(h)
		}
		at = until
	}
}

// meanBound returns a lower bound on the mean completion time, the largest of three:
//
//   - every job takes its own run time;
//   - jobs that could use the whole cluster, the least remaining work first (SRPT), which is optimal
//     on one machine;
//   - the mean busy time of each job, plus half of its run time: a job that ends at C has worked at
//     C - run/2 in the mean, or earlier. The sum of mean busy times is least if at each time the
//     least job works (Goemans, SODA '97).
func meanBound(list []fluid) float64 {
	runs, remaining, busy := 0.0, 0.0, 0.0
	for _, f := range list {
		runs += f.run
		busy += f.run/2 - f.submitted
	}
	serve(list, func(i int, left []float64) float64 { return left[i] }, func(i int, _, to float64, over bool) {
		if over {
			remaining += to - list[i].submitted
		}
	})
	serve(list, func(i int, _ []float64) float64 { return list[i].area }, func(i int, from, to float64, _ bool) {
		busy += (from + to) / 2 * (to - from) / list[i].area
	})
	return max(runs, remaining, busy) / float64(len(list))
}

// tailBound returns a lower bound on the 99th percentile: the least time within which at least as
// many jobs can end as must, if the others never run.
func tailBound(list []fluid) float64 {
	late := len(list) - 1 - int(0.99*float64(len(list)-1))
	low, high := 0.0, 1.0
	for fewestLate(list, high) > late {
		low, high = high, high*2
	}
	for high/low > 1.0005 {
		if mid := (low + high) / 2; fewestLate(list, mid) > late {
			low = mid
		} else {
			high = mid
		}
	}
	return low
}

// fewestLate returns the least number of jobs that end later than a time after their submission.
// Submissions and deadlines are in the same order, so the jobs run in that order; whenever one is
// late, the job is left out without which the others end first (Kise, Ibaraki and Mine, Operations
// Research 26, 1978). A job that runs for longer is late anyway.
func fewestLate(list []fluid, within float64) int {
	late := 0
	var kept []fluid
	end := 0.0
	for _, f := range list {
		if f.run > within {
			late++
			continue
		}
		kept = append(kept, f)
		end = max(end, f.submitted) + f.area
		if end <= f.submitted+within {
			continue
		}
		late++
		if late > len(list)/50 {
			return late // more than any caller allows
		}
		end = leaveOut(&kept)
	}
	return late
}

// leaveOut removes the job without which the others end first, and returns that end.
func leaveOut(kept *[]fluid) float64 {
	list := *kept
	// after[i] is the end of jobs i and later if they start at time t: max(after[i], t + areas).
	least, which := math.Inf(1), 0
	after, areas := make([]float64, len(list)+1), make([]float64, len(list)+1)
	for i := len(list) - 1; i >= 0; i-- {
		areas[i] = areas[i+1] + list[i].area
		after[i] = max(after[i+1], list[i].submitted+areas[i])
	}
	before := 0.0
	for i, f := range list {
		if end := max(after[i+1], before+areas[i+1]); end < least {
			least, which = end, i
		}
		before = max(before, f.submitted) + f.area
	}
	*kept = slices.Delete(list, which, which+1)
	return least
}

// TestBoundsAreBelowAllOrders: on random traces no reference order is below a bound, and for jobs
// that fill the cluster the bounds are reached.
func TestBoundsAreBelowAllOrders(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 6))
		var jobs []work
		whole := seed%2 == 0
		for range 150 {
			w := work{gpus: 1 << r.IntN(5), submitted: time.Duration(r.IntN(200_000)) * time.Second,
				length: time.Duration(1+r.IntN(4000)) * time.Second}
			if whole {
				w.gpus = 16
			}
			jobs = append(jobs, w)
		}
		slices.SortFunc(jobs, func(a, b work) int { return cmp.Compare(a.submitted, b.submitted) })
		list := fluids(jobs, 2)
		mean, tail := meanBound(list), tailBound(list)
		for _, rule := range []rule{plainSRSF{}, plainSJF{}, easyFIFO{}, preemptingFIFO{}, &tiresiasL{}} {
			times, _ := refer(jobs, 2, rule).times()
			if got := meanOf(times); got < mean*(1-1e-9) || percentile(times, 0.99) < tail*(1-1e-9) {
				t.Errorf("seed %d, %T: mean %.0f, p99 %.0f, bounds %.0f, %.0f", seed, rule, got,
					percentile(times, 0.99), mean, tail)
			}
			if _, ok := rule.(plainSRSF); ok && whole && math.Abs(meanOf(times)/mean-1) > 1e-9 {
				t.Errorf("seed %d: SRSF of whole clusters has mean %.0f, bound %.0f", seed, meanOf(times), mean)
			}
		}
	}
}
