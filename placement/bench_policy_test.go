package placement_test

import (
	"fmt"
	"testing"
	"time"

	"berth"
	"berth/placement"
)

// policied is a cluster with tenants and limits on jobs, of machines with 8 GPUs
// and machines with none.
func policied(machines, jobs, classes, tenants int) *placement.Snapshot {
	s := fleet(machines, 0, classes)
	for t := range tenants {
		s.UpsertTenant(placement.Tenant{ID: berth.TenantID(fmt.Sprintf("t%d", t)), Weight: float64(1 + t%3)})
	}
	for i := range jobs {
		j := job(i, fmt.Sprintf("c%d", i*7919%classes), 100*(i*31%10))
		j.Tenant, j.Preemptible = berth.TenantID(fmt.Sprintf("t%d", i*13%tenants)), i%3 > 0
		if i%2 == 0 {
			j.TimeLimit = time.Duration(1+i%48) * time.Hour
		}
		s.UpsertJob(j)
	}
	return s
}

var busyPolicy = placement.Policy{
	BandWidth: 100, Aging: time.Hour, HalfLife: 24 * time.Hour, EntryPenalty: time.Minute,
	Backfill: 32, AssumeRun: 24 * time.Hour, Preempt: true, PreemptAfter: time.Minute, MinRuntime: 10 * time.Minute,
}

// fill makes what a plan starts true.
func fill(s *placement.Snapshot, p placement.Plan, now time.Time) {
	for _, start := range p.Start {
		j, _ := s.Job(start.Job)
		s.RemoveJob(start.Job)
		s.UpsertRunning(placement.Running{
			Job: j.ID, Tenant: j.Tenant, Class: j.Class, Priority: j.Priority, Preemptible: j.Preemptible, SubmittedAt: j.SubmittedAt,
			Ranks: start.Ranks, StartedAt: now, TimeLimit: j.TimeLimit,
		})
		for _, g := range start.Ranks {
			m, _ := s.Machine(g.Machine)
			s.UpsertMachine(occupy(m, g))
		}
	}
}

// BenchmarkPolicy plans with all the policy has: cold is the first plan of a
// cluster that runs what it can and has a full queue; incremental follows the
// end of a job and the arrival of another.
func BenchmarkPolicy(b *testing.B) {
	for _, size := range []struct{ machines, jobs int }{{1_000, 10_000}, {1_000, 100_000}, {10_000, 10_000}, {10_000, 100_000}} {
		b.Run(fmt.Sprintf("machines=%d,jobs=%d", size.machines, size.jobs), func(b *testing.B) {
			planner := placement.Planner{MaxStarts: 1000, Pack: placement.Worth, Policy: busyPolicy}
			b.Run("empty", func(b *testing.B) {
				s := policied(size.machines, size.jobs, 2_000, 200)
				for b.Loop() {
					p := placement.Planner{Pack: placement.Worth, Policy: busyPolicy}.Plan(s, epoch.Add(time.Hour))
					b.ReportMetric(float64(len(p.Start)), "starts")
				}
			})
			s := policied(size.machines, size.jobs+8*size.machines, 2_000, 200)
			now := epoch.Add(time.Hour)
			fill(s, placement.Planner{Policy: placement.Policy{BandWidth: 1000}}.Plan(s, now), now)
			now = now.Add(time.Hour)
			b.Run("full", func(b *testing.B) {
				for b.Loop() {
					p := planner.Plan(s, now)
					b.ReportMetric(float64(len(p.Start)), "starts")
					b.ReportMetric(float64(len(p.Preempt)), "preempted")
					b.ReportMetric(float64(s.Jobs()), "waiting")
				}
			})
			b.Run("incremental", func(b *testing.B) {
				i := 0
				for b.Loop() {
					i++
					m, _ := s.Machine(berth.MachineID(fmt.Sprintf("m%05d", i%size.machines)))
					s.UpsertMachine(m)
					j := job(900_000+i, fmt.Sprintf("c%d", i%2000), 500)
					j.Tenant = "t1"
					s.UpsertJob(j)
					planner.Plan(s, now)
					s.RemoveJob(j.ID)
				}
			})
		})
	}
}
