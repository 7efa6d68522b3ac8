package placement_test

import (
	"fmt"
	"testing"
	"time"

	"berth"
	"berth/placement"
	"berth/spec"
)

// fleet fills a snapshot with machines of ten sorts and jobs of many classes.
func fleet(machines, jobs, classes int) *placement.Snapshot {
	s := placement.NewSnapshot()
	for i := range machines {
		m := placement.Machine{
			ID: berth.MachineID(fmt.Sprintf("m%05d", i)), Epoch: 1, State: berth.MachineReady,
			Region: fmt.Sprintf("r%d", i%5), Site: "on_prem",
			Labels: map[string]string{"host": fmt.Sprintf("h%d", i), "tier": fmt.Sprintf("t%d", i%2)},
			Total:  berth.Capacity{CPUMilli: 64000, MemoryMiB: 256 << 10, DiskMiB: 1 << 20},
		}
		if i%2 == 0 {
			m.Total.GPUMilli = 8000
			for g := range 8 {
				m.GPUs = append(m.GPUs, placement.Device{Index: g, Model: []string{"A100", "H100"}[i/2%2], MemoryMiB: 81920, Healthy: true})
			}
		}
		s.UpsertMachine(m)
	}
	for c := range classes {
		s.DefineClass(fmt.Sprintf("c%d", c), benchRequest(c))
	}
	for i := range jobs {
		s.UpsertJob(job(i, fmt.Sprintf("c%d", i%classes), 100*(i%10)))
	}
	return s
}

// benchRequest is what jobs of one of many classes ask for: a quarter whole GPUs,
// a quarter a share of one, a quarter one of the regions.
func benchRequest(class int) spec.Request {
	r := spec.Request{CPUMilli: int64(1000 * (1 + class%8)), MemoryMiB: int64(1024 * (1 + class%31)), Members: 1, Execution: spec.AtLeastOnce}
	switch class % 4 {
	case 1:
		r.GPUs, r.GPUMilli = 1+class%8, 1000
	case 2:
		r.GPUs, r.GPUMilli = 1, int64(100+class%700)
	case 3:
		r.Labels = map[string]string{"tier": fmt.Sprintf("t%d", class%2)}
		r.Regions = []string{fmt.Sprintf("r%d", class%5)}
	}
	return r
}

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func job(i int, class string, priority int) placement.Job {
	return placement.Job{
		ID:    berth.JobID(fmt.Sprintf("01900000-0000-7000-8000-%012d", i)),
		Class: class, Version: 2, Priority: priority,
		SubmittedAt: epoch.Add(time.Duration(i) * time.Millisecond), EligibleAt: epoch,
	}
}

// BenchmarkPlanBare plans without a policy: from empty, and once what fits runs.
func BenchmarkPlanBare(b *testing.B) {
	for _, size := range []struct{ machines, jobs, classes int }{{300, 20_000, 100}, {10_000, 100_000, 2_000}} {
		b.Run(fmt.Sprintf("machines=%d,jobs=%d,classes=%d", size.machines, size.jobs, size.classes), func(b *testing.B) {
			s := fleet(size.machines, size.jobs, size.classes)
			now := epoch.Add(time.Hour)
			b.Run("cold", func(b *testing.B) {
				for b.Loop() {
					p := placement.Planner{}.Plan(s, now)
					b.ReportMetric(float64(len(p.Start)), "starts")
				}
			})
			b.Run("cold,worth", func(b *testing.B) {
				for b.Loop() {
					p := placement.Planner{Pack: placement.LeastFragmentation}.Plan(s, now)
					b.ReportMetric(float64(len(p.Start)), "starts")
				}
			})
			b.Run("first1000,worth", func(b *testing.B) {
				for b.Loop() {
					placement.Planner{MaxStarts: 1000, Pack: placement.LeastFragmentation}.Plan(s, now)
				}
			})
			b.Run("first1000", func(b *testing.B) {
				for b.Loop() {
					placement.Planner{MaxStarts: 1000}.Plan(s, now)
				}
			})
			full := placement.Planner{}.Plan(s, now)
			s.Assume(full.Start)
			b.Run("full", func(b *testing.B) {
				for b.Loop() {
					if p := (placement.Planner{}).Plan(s, now); len(p.Start) > 0 {
						b.Fatalf("%d more jobs fit", len(p.Start))
					}
				}
			})
			b.Run("full,worth", func(b *testing.B) {
				for b.Loop() {
					if p := (placement.Planner{Pack: placement.LeastFragmentation}).Plan(s, now); len(p.Start) > 0 {
						b.Fatalf("%d more jobs fit", len(p.Start))
					}
				}
			})
			b.Run("delta", func(b *testing.B) {
				m, _ := s.Machine("m00007")
				for b.Loop() {
					s.UpsertMachine(m)
				}
			})
		})
	}
}

// BenchmarkPlanDecide takes jobs one at a time to a cluster that fills up and is
// then emptied: what a leader can decide in a second.
func BenchmarkPlanDecide(b *testing.B) {
	for name, pack := range map[string]placement.Pack{"bestfit": placement.BestFit, "worth": placement.LeastFragmentation} {
		b.Run(name, func(b *testing.B) {
			const machines, classes = 1213, 150
			planner := placement.Planner{MaxStarts: 1, Pack: pack}
			now := epoch.Add(time.Hour)
			var s *placement.Snapshot
			decided := 0
			for b.Loop() {
				if decided%10_000 == 0 {
					b.StopTimer()
					s = fleet(machines, 0, classes)
					b.StartTimer()
				}
				j := job(decided, fmt.Sprintf("c%d", decided*7919%classes), 0)
				s.UpsertJob(j)
				for _, start := range planner.Plan(s, now).Start {
					for _, g := range start.Ranks {
						m, _ := s.Machine(g.Machine)
						s.UpsertMachine(occupy(m, g))
					}
				}
				s.RemoveJob(j.ID)
				decided++
			}
			b.ReportMetric(float64(decided)/b.Elapsed().Seconds(), "decisions/s")
		})
	}
}

func BenchmarkLoad(b *testing.B) {
	for b.Loop() {
		fleet(10_000, 100_000, 2_000)
	}
}
