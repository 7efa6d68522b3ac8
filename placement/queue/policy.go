package queue

import (
	"time"

	"berth/placement/cluster"
)

// Policy is the operator's choice of order, reserved starts and preemption. The zero
// value is fair order without aging, backfill or preemption, where each priority is a
// band of its own.
type Policy struct {
	Order Order

	// BandWidth is how many points of priority make a band; 0 or 1: one. A job of
	// a higher band always comes before one of a lower.
	BandWidth int
	// Aging is how long a job waits for one more point of priority; 0: it never
	// gets one. Points take it to the top of its band and no further.
	Aging time.Duration
	// Cross lets aging take jobs into higher bands.
	Cross bool

	// Overdue is how long a job waits until it comes before all others of its band
	// that are not overdue, who came first first; 0: it never does. In fair order
	// it comes before those of other tenants while its own holds less than its
	// part; while that has its part, no younger one of the tenant passes it unless
	// its start is reserved, and then only those with which the tenant stays below
	// its part.
	Overdue time.Duration

	// HalfLife is after what time past usage counts half; 0: it does not count.
	HalfLife time.Duration
	// EntryPenalty is what a start is charged on top, as if its capacity had been
	// used for that long, so that a burst of short jobs is not free.
	EntryPenalty time.Duration

	// Backfill is how many blocked jobs at the head of the queue get a reserved
	// start that later jobs may not delay; 0: none.
	Backfill int

	// Preempt lets blocked jobs displace running ones.
	Preempt bool
	// PreemptAfter is how long a job waits before it does.
	PreemptAfter time.Duration
	// MinRuntime is how long a job runs before it can be displaced.
	MinRuntime time.Duration
	// Outrank lets a job of order srsf displace those of its band that have at
	// least so many times its own service to go; 0: not for that reason.
	Outrank float64
	// NominationFor bounds the time for which capacity is nominated for a job that
	// preempted others; 0: as long as the job waits. Without a bound, two jobs that each
	// keep a part of the capacity that both need, after a loss of machines, wait for each
	// other without end.
	NominationFor time.Duration

	// AssumeRun is how long a job is taken to run of which no limit is known; 0:
	// for ever, so that no start can be reserved behind it.
	AssumeRun time.Duration

	// Exponent is a in the service to go, remaining time x GPUs^a, of order srsf.
	Exponent float64
	// Durations says what is known of how long jobs run.
	Durations Durations
	// Ranker, if set, ranks the jobs of order srsf in the place of Exponent and
	// Durations.
	Ranker Ranker
}

// Ranker computes the ranks of jobs. Every plan calls it for every job. It must be
// comparable, as pointers are.
type Ranker interface {
	// Begin starts a plan.
	Begin(view RankView, now time.Time)
	// Waiting ranks a job that waits for so many GPUs; the least comes first.
	Waiting(j Job, gpus float64) float64
	// Running ranks a job that runs, on the same scale.
	Running(r cluster.Running, gpus float64) float64
}

// RankView is the part of a snapshot that a Ranker reads.
type RankView interface {
	EachJob(func(Job))                 // that waits
	EachRunning(func(cluster.Running)) // on some machine
}

// Order is the rule by which one waiting job follows another.
type Order int

const (
	// Fair takes tenants by band of their first job, then by the least dominant
	// share over weight; within a tenant as Priority.
	Fair Order = iota
	// Priority takes the highest band first, then priority with aging, then who
	// was submitted first.
	Priority
	// FIFO takes who was submitted first.
	FIFO
	// SRSF takes the highest band first, then the least service to go.
	SRSF
)

// orderNames names the orders, as configuration does.
var orderNames = [...]string{Fair: "fair", Priority: "priority", FIFO: "fifo", SRSF: "srsf"}

// String names the order as configuration does.
func (o Order) String() string {
	if int(o) < len(orderNames) {
		return orderNames[o]
	}
	panic("placement: no such order")
}

// ParseOrder reads the name of an order; ok is false for any other text.
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
	// Estimated goes by what a job declares as Remaining; without that by the
	// history of its tenant, bounded by its time limit.
	Estimated Durations = iota
	// Known goes by Remaining alone.
	Known
	// Unknown goes by what a job has had already.
	Unknown
)
