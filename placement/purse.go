package placement

import (
	"math"
	"slices"
	"time"
)

// purse is what an account may hold beside what it holds, as time goes on: of
// each resource, and of jobs.
type purse struct {
	room pool
	jobs pool
}

var oneJob = amounts{1}

// purse of an account; nil if it has no limits that the end of jobs lifts.
func (f *flow) purse(x *seat) *purse {
	a := x.account
	if p, ok := f.purses[a]; ok {
		return p
	}
	f.purses[a] = nil
	room, bound := a.bounds()
	if !bound {
		return nil
	}
	r := f.run
	p := &purse{room: pool{at: r.now, free: room.plus(amountsOf(x.held.Capacity), -1)}, jobs: pool{at: r.now, free: amounts{math.Inf(1)}}}
	if a.MaxRunning > 0 {
		p.jobs.free = amounts{float64(a.MaxRunning - x.held.jobs)}
	}
	back := func(at time.Time, room amounts) {
		p.room.next = append(p.room.next, refund{at, room})
		p.jobs.next = append(p.jobs.next, refund{at, oneJob})
	}
	for _, h := range r.snapshot.running {
		if at, ok := h.ends(r.policy.AssumeRun); ok && h.told != r.number && r.snapshot.account(h.Tenant).below(a) {
			back(r.from(at), amountsOf(h.capacity))
		}
	}
	for id, at := range f.startsAt() {
		e := r.snapshot.jobs[id]
		if run := r.length(e); run > 0 && r.snapshot.account(e.Tenant).below(a) {
			back(at.Add(run), amountsOf(e.class.all))
		}
	}
	for _, q := range []*pool{&p.room, &p.jobs} {
		slices.SortStableFunc(q.next, func(a, b refund) int { return a.at.Compare(b.at) })
	}
	f.purses[a] = p
	return p
}

// bounds is how much the account may hold at most; bound is false if it may hold
// anything.
func (a *account) bounds() (room amounts, bound bool) {
	limit, guarantee := amountsOf(a.Limit), amountsOf(a.Guarantee)
	for i := range room {
		room[i] = math.Inf(1)
		if limit[i] != 0 {
			room[i] = max(0, limit[i])
		}
		if a.Borrow == BorrowNothing && guarantee[i] > 0 {
			room[i] = min(room[i], guarantee[i])
		}
		bound = bound || !math.IsInf(room[i], 1)
	}
	return room, bound || a.MaxRunning > 0
}

// affords is when the job's accounts may hold it too; ok is false if the end of
// jobs does not bring that about.
func (f *flow) affords(x *seat, e *entry) (at time.Time, ok bool) {
	at = f.run.now
	need := amountsOf(e.class.all)
	for ; x != &f.run.root; x = x.parent {
		a := x.account
		if !a.known {
			continue
		}
		if a.Borrow == BorrowPreemptible && a.overBorrows(x.held, e.class.all, e.Preemptible) ||
			a.Budget.GPUHours > 0 && e.class.all.GPUMilli > 0 && a.Budget.at(f.run.now, x.held.GPUMilli) >= a.Budget.GPUHours {
			return at, false
		}
		p := f.purse(x)
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
func (f *flow) pay(x *seat, e *entry, at time.Time, run time.Duration) {
	for ; x != &f.run.root; x = x.parent {
		if p := f.purses[x.account]; p != nil {
			p.room.lend(at, amountsOf(e.class.all), run)
			p.jobs.lend(at, oneJob, run)
		}
	}
}
