package backfill

import (
	"cmp"
	"math"
	"slices"
	"time"

	"berth/placement/cluster"
	"berth/placement/queue"
)

// headroom is an account's unused quota over time, per resource and in jobs. It uses
// pools as machines do: running jobs return their part of the quota when they end.
type headroom struct {
	room pool
	jobs pool // its first amount counts jobs; the other amounts are zero
}

// oneJob is the need of one job in headroom.jobs.
var oneJob = queue.Amounts{1}

// headroomOf returns the headroom of an account, computed once per plan. It is nil for an
// account without limits that the ends of jobs lift.
func (f *Flow) headroomOf(x *queue.Contender) *headroom {
	a := x.Account
	if p, ok := f.headrooms[a]; ok {
		return p
	}
	f.headrooms[a] = nil // caches the answer for an account without such limits
	room, bound := a.Bounds()
	if !bound {
		return nil
	}
	p := &headroom{room: pool{at: f.Now, free: room.Plus(queue.AmountsOf(x.Held.Capacity), -1)},
		jobs: pool{at: f.Now, free: queue.Amounts{math.Inf(1)}}}
	if a.MaxRunning > 0 {
		p.jobs.free = queue.Amounts{float64(a.MaxRunning - x.Held.Jobs)}
	}
	// Jobs without a known or assumed end never return their part. Jobs that this plan
	// orders to stop, and jobs that give way, are left out, since Held does not include them.
	back := func(at time.Time, room queue.Amounts, part float64) {
		p.room.next = append(p.room.next, refund{at: at, room: queue.Amounts{}.Plus(room, part)})
		p.jobs.next = append(p.jobs.next, refund{at: at, room: queue.Amounts{}.Plus(oneJob, part)})
	}
	for _, h := range f.cluster.Running {
		if h.Stopped == f.Number || cluster.GivesWay(h.Priority) || !f.queue.Account(h.Tenant).Below(a) {
			continue
		}
		var ends []time.Time
		if f.history != nil && f.endless(h) {
			ends = f.ends(h)
		}
		for _, at := range ends {
			back(at, queue.AmountsOf(h.Capacity), 1/float64(len(ends)))
		}
		if at, ok := h.Ends(f.policy.AssumeRun); ok && len(ends) == 0 {
			back(f.From(at), queue.AmountsOf(h.Capacity), 1)
		}
	}
	for _, s := range f.starts {
		e := s.Entry
		if !f.queue.Account(e.Tenant).Below(a) {
			continue
		}
		runs := f.runs(e)
		for _, run := range runs {
			back(s.At.Add(run), queue.AmountsOf(e.Class.All), 1/float64(len(runs)))
		}
	}
	for _, q := range []*pool{&p.room, &p.jobs} {
		slices.SortFunc(q.next, compareRefunds)
	}
	f.headrooms[a] = p
	return p
}

// compareRefunds orders refunds by time and amounts. The maps of running and started jobs have no order, and sums of
// parts in another order are rounded otherwise.
func compareRefunds(a, b refund) int {
	return cmp.Or(a.at.Compare(b.at), slices.Compare(a.room[:], b.room[:]))
}

// affords returns the first time at which the quotas of the job's tenant and of all tenants
// above it allow the job. ok is false if the ends of jobs do not bring this about: the
// job may not borrow, a GPU budget is spent, or a limit is too low.
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
			// Each limit starts from the time that the limits before it allow.
			if at, ok = q.pool.enough(q.need, at); !ok {
				return at, false
			}
		}
	}
	return at, true
}

// pay charges a job to the headrooms of its accounts, from its start until its end.
func (f *Flow) pay(x *queue.Contender, e *queue.Entry, at time.Time, runs []time.Duration) {
	for ; x != &f.shares.Root; x = x.Parent {
		if p := f.headrooms[x.Account]; p != nil {
			p.room.lend(at, queue.AmountsOf(e.Class.All), runs)
			p.jobs.lend(at, oneJob, runs)
		}
	}
}
