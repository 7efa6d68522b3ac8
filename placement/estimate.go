package placement

import (
	"math"
	"slices"
	"time"

	"berth"
	"berth/placement/backfill"
	"berth/placement/cluster"
	"berth/placement/explain"
	"berth/placement/queue"
)

// estimate fills Plan.Estimates with the expected start of each waiting job, in queue
// order: the start in a simulation of the queue, see backfill.Flow.Simulate. If the simulation
// is cut short, or does not run, backfill.Flow estimates the missing starts. A start that the plan
// reserves counts as reserved if the simulation agrees with it, or does not reach the job. A job
// that a complete simulation never starts has no estimate.
//
// With only set, the list ends with that job, and the estimates of the jobs before it may be
// missing; the list is empty if that job does not wait. estimate returns the number of all
// waiting jobs.
func (r *run) estimate(only berth.JobID) (waiting int) {
	started := make(map[berth.JobID]bool, len(r.plan.Start))
	for _, s := range r.plan.Start {
		started[s.Job] = true
	}
	list := r.waiting(started)
	all := list
	waiting = len(list)
	if only != "" {
		list = list[:1+slices.IndexFunc(list, func(e *queue.Entry) bool { return e.ID == only })]
	}
	if len(list) == 0 {
		return waiting
	}
	x := r.newEstimates(all, list, only)
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
			if other, ok := x.simulated.Starts[e.ID]; (ok || x.simulated.Complete) && !other.Equal(at) {
				est.Start, est.Reserved = other, false
			}
		case r.soon[e.ID]:
			est.Start = r.Now // its victims have been ordered to stop
		default:
			est.Start, est.Guess = x.of(e)
		}
		if at, ok := r.preemption.Hopes[e.ID]; ok && (est.Start.IsZero() || at.Before(est.Start)) {
			est.Start, est.Guess = at, false
		}
		if bar, ok := x.simulated.Barred[e.ID]; ok && est.Start.IsZero() {
			est.Bar = explain.LaterBar(bar)
		}
		r.plan.Estimates = append(r.plan.Estimates, est)
	}
	return waiting
}

// estimates holds the simulated starts of waiting jobs and, if some are missing, the flows for these jobs.
type estimates struct {
	now           time.Time
	simulated     backfill.Simulated
	ordered, gaps *backfill.Flow // in strict order, and with all gaps filled; nil: nothing is missing
}

// newEstimates simulates the queue of all waiting jobs. list and only are as in estimate.
func (r *run) newEstimates(all, list []*queue.Entry, only berth.JobID) *estimates {
	starts := make(map[berth.JobID]backfill.Start, len(r.soon)+len(r.plan.Start))
	for id := range r.soon {
		starts[id] = backfill.Start{At: r.Now, Entry: r.snapshot.queue.Jobs[id]}
	}
	for _, s := range r.plan.Start {
		got := chosen(r.snapshot.queue.Jobs[s.Job], s.Alternative)
		starts[s.Job] = backfill.Start{At: r.Now, Entry: got}
		if r.policy.Backfill <= 0 { // the plan has not read the end of the job
			r.reservations.Started(got, s.Ranks)
		}
	}
	flow := func() *backfill.Flow {
		return backfill.NewFlow(r.reservations, r.snapshot.queue, r.shares, starts, r.planner.RunTimes, len(all))
	}
	x := &estimates{now: r.Now}
	others := slices.DeleteFunc(slices.Clone(all), func(e *queue.Entry) bool { return r.soon[e.ID] })
	x.simulated = flow().Simulate(others, only)
	if !x.simulated.Complete && slices.ContainsFunc(list, func(e *queue.Entry) bool {
		return x.simulated.Starts[e.ID].IsZero() && !r.soon[e.ID] && (only == "" || e.ID == only)
	}) {
		x.ordered, x.gaps = flow(), flow()
		x.gaps.FillGaps()
	}
	return x
}

// of returns the estimated start of a job without a reserved start, zero if it is unknown. guess is Estimate.Guess.
// The caller passes the jobs in queue order.
func (x *estimates) of(e *queue.Entry) (start time.Time, guess bool) {
	if x.ordered == nil {
		return x.simulated.Starts[e.ID], false
	}
	guess = x.ordered.Guesses()
	start = between(x.now, x.ordered.Start(e), x.gaps.Start(e))
	if at, ok := x.simulated.Starts[e.ID]; ok {
		return at, guess
	}
	if !start.IsZero() && start.Before(x.simulated.Until) {
		start = x.simulated.Until
	}
	return start, guess
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
