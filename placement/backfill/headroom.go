package backfill

import (
	"math"
	"slices"
	"time"

	"berth/placement/queue"
)

// headroom is the unused quota of an account over time, per resource and in jobs.
type headroom struct {
	room pool
	jobs pool
}

var oneJob = queue.Amounts{1}

// headroomOf returns the headroom of an account; nil if the end of jobs lifts none
// of its limits.
func (f *Flow) headroomOf(x *queue.Contender) *headroom {
	a := x.Account
	if p, ok := f.headrooms[a]; ok {
		return p
	}
	f.headrooms[a] = nil
	room, bound := a.Bounds()
	if !bound {
		return nil
	}
	p := &headroom{room: pool{at: f.Now, free: room.Plus(queue.AmountsOf(x.Held.Capacity), -1)},
		jobs: pool{at: f.Now, free: queue.Amounts{math.Inf(1)}}}
	if a.MaxRunning > 0 {
		p.jobs.free = queue.Amounts{float64(a.MaxRunning - x.Held.Jobs)}
	}
	back := func(at time.Time, room queue.Amounts) {
		p.room.next = append(p.room.next, refund{at, room})
		p.jobs.next = append(p.jobs.next, refund{at, oneJob})
	}
	for _, h := range f.cluster.Running {
		if at, ok := h.Ends(f.policy.AssumeRun); ok && h.Stopped != f.Number && f.queue.Account(h.Tenant).Below(a) {
			back(f.From(at), queue.AmountsOf(h.Capacity))
		}
	}
	for id, at := range f.starts {
		e := f.queue.Jobs[id]
		if run := f.reservations.length(e); run > 0 && f.queue.Account(e.Tenant).Below(a) {
			back(at.Add(run), queue.AmountsOf(e.Class.All))
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
func (f *Flow) affords(x *queue.Contender, e *queue.Entry) (at time.Time, ok bool) {
	at = f.Now
	need := queue.AmountsOf(e.Class.All)
	for ; x != &f.shares.Root; x = x.Parent {
		a := x.Account
		if !a.Known {
			continue
		}
		if a.Borrow == queue.BorrowPreemptible && a.OverBorrows(x.Held, e.Class.All, e.Preemptible) ||
			a.Budget.GPUHours > 0 && e.Class.All.GPUMilli > 0 &&
				a.Budget.SpentAt(f.Now, x.Held.GPUMilli) >= a.Budget.GPUHours {
			return at, false
		}
		p := f.headroomOf(x)
		if p == nil {
			continue
		}
		for _, q := range []struct {
			pool *pool
			need queue.Amounts
		}{{&p.room, need}, {&p.jobs, oneJob}} {
			if at, ok = q.pool.enough(q.need, at); !ok {
				return at, false
			}
		}
	}
	return at, true
}

// pay charges a job's accounts with it while it runs.
func (f *Flow) pay(x *queue.Contender, e *queue.Entry, at time.Time, run time.Duration) {
	for ; x != &f.shares.Root; x = x.Parent {
		if p := f.headrooms[x.Account]; p != nil {
			p.room.lend(at, queue.AmountsOf(e.Class.All), run)
			p.jobs.lend(at, oneJob, run)
		}
	}
}
