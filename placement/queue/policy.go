package queue

import (
	"time"

	"berth/placement/cluster"
)

// Policy is the operator's choice of order, reserved starts and preemption. The zero value
// is fair order without aging, backfill or preemption, where each priority is a band of its
// own.
type Policy struct {
	Order Order

	// BandWidth is the number of priority points per band; 0 counts as 1. A job of a higher
	// band always comes before a job of a lower band.
	BandWidth int
	// Aging is the waiting time per additional point of priority; 0: no aging. Points raise
	// a job at most to the top of its band.
	Aging time.Duration
	// Cross lets aging raise jobs into higher bands.
	Cross bool

	// Overdue is the waiting time after which a job comes before all other jobs of its
	// band; 0: never. Among overdue jobs the earliest submission comes first.
	//
	// In fair order, an overdue job comes before the jobs of other tenants while its tenant
	// holds less than the tenant's part of the cluster. While the tenant has its part, no
	// younger job of the tenant passes the overdue one, unless the overdue job has a
	// reserved start; then younger jobs pass as long as the tenant stays below its part
	// with them.
	Overdue time.Duration

	// HalfLife is the age at which past use counts half; 0: past use does not count.
	HalfLife time.Duration
	// EntryPenalty is the additional charge of a start, as the time for which its capacity
	// counts as used at once, so that a burst of short jobs is not free.
	EntryPenalty time.Duration

	// Backfill is the number of blocked jobs at the head of the queue that get a reserved
	// start, which later jobs may not delay; 0: none.
	Backfill int

	// Preempt lets blocked jobs preempt running ones.
	Preempt bool
	// PreemptAfter is the waiting time after which a blocked job may preempt.
	PreemptAfter time.Duration
	// MinRuntime is the run time before which a job cannot be preempted.
	MinRuntime time.Duration
	// Outrank lets a job of order srsf preempt jobs of its band that have more than this
	// many times its own remaining service; 0: no preemption for service.
	Outrank float64
	// MaxOutranked is the number of preemptions, for any reason, after which a job is no
	// longer preempted for service; 0: no bound.
	MaxOutranked int
	// NominationFor bounds the time for which capacity is nominated for a job that
	// preempted others; 0: as long as the job waits. Without a bound, two jobs can deadlock
	// after a loss of machines: each keeps a part of the capacity that both need.
	NominationFor time.Duration

	// AssumeRun is the assumed run time of a job without a known limit; 0: unlimited, so
	// that no start can be reserved behind the job.
	AssumeRun time.Duration

	// KeepTenantsApart gives shares of one GPU to one tenant at a time. Snapshots read it when they
	// are created.
	KeepTenantsApart bool

	// Exponent is the exponent a of the remaining service in order srsf: remaining time x
	// GPUs^a.
	Exponent float64
	// Durations is the source of run times in order srsf.
	Durations Durations
	// Ranker, if set, ranks the jobs of order srsf instead of Exponent and Durations.
	Ranker Ranker
}

// Ranker computes the ranks of jobs. Every plan calls it for every job. An implementation
// must be comparable, as pointers are, since the queue compares policies.
type Ranker interface {
	// Begin starts a plan at time now.
	Begin(view RankView, now time.Time)
	// Waiting ranks a waiting job that requests this many GPUs; the least rank comes first.
	Waiting(j Job, gpus float64) float64
	// Running ranks a running job, on the same scale.
	Running(r cluster.Running, gpus float64) float64
}

// RankView is the part of a snapshot that a Ranker reads.
type RankView interface {
	EachJob(func(Job))                 // all waiting jobs
	EachRunning(func(cluster.Running)) // all jobs that occupy machines
}

// Order is the rule that orders waiting jobs.
type Order int

const (
	// Fair orders tenants by the band of their first job, then by the least dominant share
	// over weight; within a tenant, jobs as in Priority.
	Fair Order = iota
	// Priority orders by band (highest first), then by priority with aging, then by
	// submission.
	Priority
	// FIFO orders by submission alone.
	FIFO
	// SRSF orders by band (highest first), then by the least remaining service.
	SRSF
)

// orderNames holds the names of the orders in configuration.
var orderNames = [...]string{Fair: "fair", Priority: "priority", FIFO: "fifo", SRSF: "srsf"}

// String returns the name of the order in configuration.
func (o Order) String() string {
	if int(o) < len(orderNames) {
		return orderNames[o]
	}
	panic("placement: no such order")
}

// ParseOrder returns the order with this name; ok is false for any other text.
func ParseOrder(s string) (o Order, ok bool) {
	for i, name := range orderNames {
		if s == name {
			return Order(i), true
		}
	}
	return 0, false
}

// Durations is the source of run times for the order srsf.
type Durations int

const (
	// Estimated uses the declared Remaining time of a job; without one, the run times of
	// similar ended jobs (Job.Expected), bounded by the time limit.
	Estimated Durations = iota
	// Known uses Remaining, bounded by the time limit, and no estimates.
	Known
	// Unknown uses the run time so far: jobs that have run least come first.
	Unknown
)
