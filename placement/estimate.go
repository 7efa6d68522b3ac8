package placement

import (
	"slices"
	"time"

	"berth"
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
		list = list[:1+slices.IndexFunc(list, func(e *entry) bool { return e.ID == only })]
	}
	if len(list) == 0 {
		return waiting
	}
	starts := make(map[berth.JobID]time.Time, len(r.soon)+len(r.plan.Start))
	for id := range r.soon {
		starts[id] = r.now
	}
	for _, s := range r.plan.Start {
		starts[s.Job] = r.now
	}
	f := newFlow(r.reservations, r.snapshot.queue, r.shares, starts)
	for i, e := range list {
		est := Estimate{Job: e.ID, Position: i + 1}
		if r.pruner.narrowed && e.blocked != r.number && !r.plan.More {
			x := r.shares.own[r.snapshot.queue.account(e.Tenant).index]
			if _, barred := r.shares.barred(x, e); !barred {
				r.preemption.hope(x, e)
			}
		}
		switch at, ok := r.reservations.starts[e.ID]; {
		case ok:
			est.Start, est.Reserved = at, true
		case r.soon[e.ID]:
			est.Start = r.now
		default:
			est.Start = f.start(e)
		}
		if at, ok := r.preemption.hopes[e.ID]; ok && (est.Start.IsZero() || at.Before(est.Start)) {
			est.Start = at
		}
		r.plan.Estimates = append(r.plan.Estimates, est)
	}
	return waiting
}

// waiting lists the eligible jobs in the order in which they would start, without
// the ones in leftOut.
func (r *run) waiting(leftOut map[berth.JobID]bool) []*entry {
	s := r.snapshot
	at := &moment{now: r.now, clock: r.clock, number: s.cluster.nextPlan()}
	shares := r.shares.unbarred(at)
	turn := newTurn(shares)
	turn.open()
	var list []*entry
	for x := shares.next(); x != nil; x = shares.next() {
		if e := x.first; !leftOut[e.ID] {
			list = append(list, e)
		}
		shares.charge(x, x.first)
		turn.step(x)
	}
	return list
}
