package placement

import (
	"math"
	"slices"
	"time"

	"berth"
	"berth/placement/backfill"
	"berth/placement/cluster"
	"berth/placement/queue"
)

// estimate fills Plan.Estimates with the expected start of each waiting job, in queue
// order. A reserved start is used as it is. For the other jobs, backfill.Flow treats the
// capacity of the machines that a job may use as one divisible pool: occupants return
// their capacity when they end, and each job in turn takes its capacity at the first
// time at which the pool has enough, but no earlier than some machine has room for it.
//
// With only set, the list ends with that job, since later jobs do not change its
// estimate; the list is empty if that job does not wait. estimate returns the number of
// all waiting jobs.
func (r *run) estimate(only berth.JobID) (waiting int) {
	started := make(map[berth.JobID]bool, len(r.plan.Start))
	for _, s := range r.plan.Start {
		started[s.Job] = true
	}
	list := r.waiting(started)
	waiting = len(list)
	if only != "" {
		list = list[:1+slices.IndexFunc(list, func(e *queue.Entry) bool { return e.ID == only })]
	}
	if len(list) == 0 {
		return waiting
	}
	starts := make(map[berth.JobID]time.Time, len(r.soon)+len(r.plan.Start))
	for id := range r.soon {
		starts[id] = r.Now
	}
	for _, s := range r.plan.Start {
		starts[s.Job] = r.Now
	}
	f := backfill.NewFlow(r.reservations, r.snapshot.queue, r.shares, starts, r.planner.RunTimes, waiting)
	g := backfill.NewFlow(r.reservations, r.snapshot.queue, r.shares, starts, r.planner.RunTimes, waiting)
	g.FillGaps()
	for i, e := range list {
		est := Estimate{Job: e.ID, Position: i + 1}
		// The pruner may have passed over this job, so block has not asked Hope about it.
		if r.pruner.narrowed && e.Blocked != r.Number && !r.plan.More {
			x := r.shares.Own[r.snapshot.queue.Account(e.Tenant).Index]
			if _, barred := r.shares.Barred(x, e); !barred {
				r.preemption.Hope(x, e)
			}
		}
		switch at, ok := r.reservations.Starts[e.ID]; {
		case ok:
			est.Start, est.Reserved = at, true
		case r.soon[e.ID]:
			est.Start = r.Now // its victims have been ordered to stop
		default:
			est.Guess = f.Guesses()
			est.Start = between(r.Now, f.Start(e), g.Start(e))
		}
		if at, ok := r.preemption.Hopes[e.ID]; ok && (est.Start.IsZero() || at.Before(est.Start)) {
			est.Start, est.Guess = at, false
		}
		r.plan.Estimates = append(r.plan.Estimates, est)
	}
	return waiting
}

// between estimates a start between two bounds: strict order, which lets no job overtake, and all
// gaps filled. It returns the time whose distance from now is the geometric mean of the distances of two
// times; zero if one of them is.
func between(now, a, b time.Time) time.Time {
	if a.IsZero() || b.IsZero() {
		return time.Time{}
	}
	return now.Add(time.Duration(math.Sqrt(max(0, float64(a.Sub(now))) * max(0, float64(b.Sub(now))))))
}

// waiting lists the eligible jobs in the order in which they would start, without the
// jobs in leftOut. It walks the queue again, with quotas and pruning off and with every
// job charged as if it started, so that the shares alternate as they would in time.
func (r *run) waiting(leftOut map[berth.JobID]bool) []*queue.Entry {
	s := r.snapshot
	at := &cluster.Moment{Now: r.Now, Clock: r.Clock, Number: s.cluster.NextPlan()}
	shares := r.shares.Unbarred(at)
	turn := queue.NewTurn(shares)
	turn.Open()
	var list []*queue.Entry
	for x := shares.Next(); x != nil; x = shares.Next() {
		if e := x.First; !leftOut[e.ID] {
			list = append(list, e)
		}
		shares.Charge(x, x.First)
		turn.Step(x)
	}
	return list
}
