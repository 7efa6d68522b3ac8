package placement

import (
	"math"
	"slices"
	"time"
)

// headroom is the unused quota of an account over time, per resource and in jobs.
type headroom struct {
	room pool
	jobs pool
}

var oneJob = amounts{1}

// headroomOf returns the headroom of an account; nil if the end of jobs lifts none
// of its limits.
func (f *flow) headroomOf(x *contender) *headroom {
	a := x.account
	if p, ok := f.headrooms[a]; ok {
		return p
	}
	f.headrooms[a] = nil
	room, bound := a.bounds()
	if !bound {
		return nil
	}
	p := &headroom{room: pool{at: f.now, free: room.plus(amountsOf(x.held.Capacity), -1)},
		jobs: pool{at: f.now, free: amounts{math.Inf(1)}}}
	if a.MaxRunning > 0 {
		p.jobs.free = amounts{float64(a.MaxRunning - x.held.jobs)}
	}
	back := func(at time.Time, room amounts) {
		p.room.next = append(p.room.next, refund{at, room})
		p.jobs.next = append(p.jobs.next, refund{at, oneJob})
	}
	for _, h := range f.cluster.running {
		if at, ok := h.ends(f.policy.AssumeRun); ok && h.stopped != f.number && f.queue.account(h.Tenant).below(a) {
			back(f.from(at), amountsOf(h.capacity))
		}
	}
	for id, at := range f.starts {
		e := f.queue.jobs[id]
		if run := f.reservations.length(e); run > 0 && f.queue.account(e.Tenant).below(a) {
			back(at.Add(run), amountsOf(e.class.all))
		}
	}
	for _, q := range []*pool{&p.room, &p.jobs} {
		slices.SortStableFunc(q.next, func(a, b refund) int { return a.at.Compare(b.at) })
	}
	f.headrooms[a] = p
	return p
}

// affords is when the job's accounts may hold it too; ok is false if the end of
// jobs does not bring that about.
func (f *flow) affords(x *contender, e *entry) (at time.Time, ok bool) {
	at = f.now
	need := amountsOf(e.class.all)
	for ; x != &f.shares.root; x = x.parent {
		a := x.account
		if !a.known {
			continue
		}
		if a.Borrow == BorrowPreemptible && a.overBorrows(x.held, e.class.all, e.Preemptible) ||
			a.Budget.GPUHours > 0 && e.class.all.GPUMilli > 0 &&
				a.Budget.at(f.now, x.held.GPUMilli) >= a.Budget.GPUHours {
			return at, false
		}
		p := f.headroomOf(x)
		if p == nil {
			continue
		}
		for _, q := range []struct {
			pool *pool
			need amounts
		}{{&p.room, need}, {&p.jobs, oneJob}} {
			if at, ok = q.pool.enough(q.need, at); !ok {
				return at, false
			}
		}
	}
	return at, true
}

// pay charges a job's accounts with it while it runs.
func (f *flow) pay(x *contender, e *entry, at time.Time, run time.Duration) {
	for ; x != &f.shares.root; x = x.parent {
		if p := f.headrooms[x.account]; p != nil {
			p.room.lend(at, amountsOf(e.class.all), run)
			p.jobs.lend(at, oneJob, run)
		}
	}
}
