package placement_test

import (
	"cmp"
	"fmt"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"berth/placement"
)

var busyPolicy = placement.Policy{
	BandWidth: 100, Aging: time.Hour, Overdue: 24 * time.Hour, HalfLife: 24 * time.Hour, EntryPenalty: time.Minute,
	Backfill: 32, AssumeRun: 24 * time.Hour, Preempt: true, PreemptAfter: time.Minute, MinRuntime: 10 * time.Minute,
}

// oneCore limits the runtime, including the garbage collector, to one core.
func oneCore(b *testing.B) {
	was := runtime.GOMAXPROCS(1)
	b.Cleanup(func() { runtime.GOMAXPROCS(was) })
}

// spent returns the CPU time of the process, including the garbage collector. Other processes on the
// machine hardly affect it.
func spent() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// cold times the first plan of a snapshot that was just built from the rows.
func (c *cluster) cold() (time.Duration, placement.Plan) {
	c.load()
	runtime.GC()
	began := spent()
	p := c.planner.Plan(c.s, c.now)
	return spent() - began, p
}

// incremental times the update of the rows that changed since the last plan, and the next plan. It
// then applies the plan to the rows, which is not timed.
func (c *cluster) incremental() (time.Duration, placement.Plan) {
	began := spent()
	c.pass()
	p := c.planner.Plan(c.s, c.now)
	took := spent() - began
	c.enact(p)
	return took, p
}

// BenchmarkPlan plans for 10,000 machines, 100,000 waiting jobs, 2,000 classes and 200 tenants with
// every feature of the policy, on one core. The cluster is full, and many waiting jobs may preempt
// running jobs. The quotas case also finds the tenants that wait for quota, and the data cases the
// machines that already hold a job's data.
func BenchmarkPlan(b *testing.B) {
	plain, quotas, data := saturated(benchSize(10_000, 100_000), benchRequest), saturated(benchSize(10_000, 100_000), benchRequest), saturated(benchSize(10_000, 100_000), benchRequest)
	quotas.bind()
	data.needData()
	for _, bench := range []struct {
		name string
		c    *cluster
		plan func(*cluster) (time.Duration, placement.Plan)
	}{
		{"cold", plain, (*cluster).cold}, {"incremental", plain, (*cluster).incremental},
		{"quotas", quotas, (*cluster).incremental},
		{"data/cold", data, (*cluster).cold}, {"data/incremental", data, (*cluster).incremental},
	} {
		b.Run(bench.name, func(b *testing.B) {
			oneCore(b)
			c := bench.c
			if c.s == nil {
				c.enact(second(c.cold()))
			}
			var took []time.Duration
			starts, preempted := 0, 0
			for b.Loop() {
				d, p := bench.plan(c)
				took = append(took, d)
				starts, preempted = starts+len(p.Start), preempted+len(p.Preempt)
			}
			n := float64(len(took))
			b.ReportMetric(ms(median(took)), "ms/plan")
			b.ReportMetric(ms(slices.Min(took)), "ms/best")
			b.ReportMetric(ms(slices.Max(took)), "ms/worst")
			b.ReportMetric(float64(starts)/n, "starts")
			b.ReportMetric(float64(preempted)/n, "preempted")
			b.ReportMetric(float64(c.s.Jobs()), "waiting")
			b.ReportMetric(0, "ns/op") // includes work other than planning
		})
	}
}

// BenchmarkPlanGrowth prints the time of a plan as the cluster and the queue grow, and its ratio to
// linear growth: 1 means ten times the time for ten times the size. The sizes are measured in turns.
func BenchmarkPlanGrowth(b *testing.B) {
	sizes := []struct{ machines, waiting int }{{1_000, 10_000}, {1_000, 100_000}, {10_000, 10_000}, {10_000, 100_000}}
	clusters := make([]*cluster, len(sizes))
	for i, size := range sizes {
		clusters[i] = saturated(benchSize(size.machines, size.waiting), benchRequest)
	}
	cold, next := make([][]time.Duration, len(sizes)), make([][]time.Duration, len(sizes))
	oneCore(b)
	for b.Loop() {
		for range 5 {
			for i, c := range clusters {
				d, p := c.cold()
				cold[i] = append(cold[i], d)
				c.enact(p)
				for range 5 {
					d, _ := c.incremental()
					next[i] = append(next[i], d)
				}
			}
		}
	}
	table := fmt.Sprintf("%9s %8s %10s %10s %14s %10s\n", "machines", "waiting", "cold, ms", "of linear", "after a change", "of linear")
	for i, size := range sizes {
		grown := float64(max(size.machines/sizes[0].machines, size.waiting/sizes[0].waiting))
		of := func(took [][]time.Duration) float64 { return ms(median(took[i])) / ms(median(took[0])) / grown }
		table += fmt.Sprintf("%9d %8d %10.1f %10.2f %14.1f %10.2f\n",
			size.machines, size.waiting, ms(median(cold[i])), of(cold), ms(median(next[i])), of(next))
	}
	b.Log("\n" + table)
}

func second[A, B any](_ A, x B) B { return x }

func ms(d time.Duration) float64 { return d.Seconds() * 1000 }

func median[T cmp.Ordered](list []T) T {
	list = slices.Sorted(slices.Values(list))
	return list[len(list)/2]
}
