package placement

import (
	"slices"
	"time"

	"berth"
	"berth/placement/backfill"
	"berth/placement/cluster"
	"berth/placement/queue"
)

// estimate lists when each waiting job should start, in queue order. A job with
// a reserved start has that. The others are let through the machines they may
// use as if room could be cut as one likes: those that hold room give it back at
// their end, and each job in turn takes what it needs from the first moment at
// which there is enough, but no earlier than any machine has room for it.
//
// With only set, the list ends with that job, and is empty if that job does not
// wait: jobs after it change nothing about it. estimate returns the number of all
// waiting jobs.
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
	f := backfill.NewFlow(r.reservations, r.snapshot.queue, r.shares, starts)
	for i, e := range list {
		est := Estimate{Job: e.ID, Position: i + 1}
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
			est.Start = r.Now
		default:
			est.Start = f.Start(e)
		}
		if at, ok := r.preemption.Hopes[e.ID]; ok && (est.Start.IsZero() || at.Before(est.Start)) {
			est.Start = at
		}
		r.plan.Estimates = append(r.plan.Estimates, est)
	}
	return waiting
}

// waiting lists the eligible jobs in the order in which they would start, without
// the ones in leftOut.
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
