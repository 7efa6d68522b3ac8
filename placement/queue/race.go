package queue

import (
	"math"
	"time"

	"berth"
	"berth/placement/cluster"
)

// Race is the competition of the accounts at later times, for estimates. It orders jobs as Shares does, by the
// capacity that the accounts hold at the time of the race, which Advance moves forward.
type Race struct {
	shares  *Shares
	at      time.Time
	runners []*Runner // of the own jobs of each account, by Account.Index
	all     []*Runner
}

// Runner is an account in a Race, or the account's own jobs next to the accounts below.
type Runner struct {
	parent *Runner // nil: at the top
	depth  int     // 0: at the top
	of     *Contender
	held   Holding
	past   Amounts

	reserved Amounts // part of held that overdue jobs have reserved
}

// Race starts a race with the capacity that the accounts hold at the end of the plan: jobs that the plan
// starts, and jobs with a reserved start, count as running. The plan stays as it is.
func (r *Shares) Race() *Race {
	a := &Race{shares: r, at: r.Now, runners: make([]*Runner, len(r.Own))}
	made := make(map[*Contender]*Runner, len(r.Own))
	var runner func(x *Contender) *Runner
	runner = func(x *Contender) *Runner {
		if x == &r.Root {
			return nil
		}
		y := made[x]
		if y == nil {
			y = &Runner{parent: runner(x.Parent), of: x, held: x.Held, past: x.Past}
			if y.parent != nil {
				y.depth = y.parent.depth + 1
			}
			made[x], a.all = y, append(a.all, y)
		}
		return y
	}
	for i, x := range r.Own {
		a.runners[i] = runner(x)
	}
	return a
}

// Of returns the runner of a tenant's own jobs.
func (a *Race) Of(tenant berth.TenantID) *Runner {
	return a.runners[a.shares.queue.Account(tenant).Index]
}

// Nested reports whether the runner is below another account, so that a charge changes the order of other
// runners as well.
func (x *Runner) Nested() bool { return x.depth > 0 }

// Charge adds the capacity of a job to its runner and all runners above, or removes it with times -1.
func (a *Race) Charge(x *Runner, c berth.Capacity, preemptible bool, times int) {
	if times < 0 {
		c = berth.Capacity{}.Sub(c)
	}
	for ; x != nil; x = x.parent {
		x.held.add(c, preemptible, times)
	}
}

// Reserve adds the capacity of a job with a reserved start to its runner and all runners above, or removes it with
// times -1. The race stays at its time meanwhile.
func (a *Race) Reserve(x *Runner, e *Entry, times int) {
	a.Charge(x, e.Class.All, e.Preemptible, times)
	if a.overdue(e) && a.shares.policy.Order == Fair {
		for ; x != nil; x = x.parent {
			x.reserved = x.reserved.Plus(AmountsOf(e.Class.All), float64(times))
		}
	}
}

// MustYield reports whether the job would delay an overdue job of the same tenant subtree with a reserved start, as
// Shares.MustYieldTo.
func (a *Race) MustYield(x *Runner, e *Entry) bool {
	for ; x != nil; x = x.parent {
		if x.reserved != (Amounts{}) && x.of.Part < 1 && AmountsOf(x.held.Capacity).Plus(x.reserved, -1).
			Plus(AmountsOf(e.Class.All), 1).Dominant(a.shares.Owned) >= x.of.Part {
			return true
		}
	}
	return false
}

// HoldsUp reports whether younger jobs of the account wait behind a job that has neither room nor a reserved start:
// it is overdue, and the account has its part of the cluster.
func (a *Race) HoldsUp(x *Runner, e *Entry) bool {
	return a.shares.policy.Order == Fair && a.shares.policy.Backfill > 0 && a.overdue(e) && !a.presses(x, e)
}

// Advance moves the race to a time. Past use approaches the capacity that each account holds meanwhile.
func (a *Race) Advance(to time.Time) {
	half := a.shares.policy.HalfLife
	if half > 0 && to.After(a.at) {
		left := math.Exp2(-to.Sub(a.at).Seconds() / half.Seconds())
		for _, x := range a.all {
			x.past = Amounts{}.Plus(x.past, left).Plus(AmountsOf(x.held.Capacity), 1-left)
		}
	}
	a.at = to
}

// Penalize charges the entry penalty of a start.
func (a *Race) Penalize(x *Runner, c berth.Capacity) {
	penalty := a.shares.policy.entry(c)
	for ; x != nil; x = x.parent {
		x.past = x.past.Plus(penalty, 1)
	}
}

// Allows reports whether the quotas of a job's account and of all accounts above it admit the job.
func (a *Race) Allows(x *Runner, e *Entry) bool {
	if !a.shares.quotas {
		return true
	}
	for ; x != nil; x = x.parent {
		if c := x.of; c.Account.Known && !c.own &&
			!c.Account.bars(x.held, e.Class.All, e.Preemptible, a.at, func(Bar) bool { return false }) {
			return false
		}
	}
	return true
}

// Before reports whether the job e of runner x comes before the job f of runner y, in the order of
// Shares.compareContenders.
func (a *Race) Before(x *Runner, e *Entry, y *Runner, f *Entry) bool {
	if x == y || a.shares.policy.Order != Fair {
		return CompareEntries(e, f) < 0
	}
	if e.Band != f.Band {
		return e.Band > f.Band
	}
	for x.depth > y.depth {
		x = x.parent
	}
	for y.depth > x.depth {
		y = y.parent
	}
	for x.parent != y.parent {
		x, y = x.parent, y.parent
	}
	if x == y { // one account is above the other
		return CompareEntries(e, f) < 0
	}
	if p, q := a.within(x, e), a.within(y, f); p != q {
		return p
	}
	p, q := a.presses(x, e), a.presses(y, f)
	switch {
	case p != q:
		return p
	case p:
		return CompareEntries(e, f) < 0
	}
	if s, t := a.share(x, e), a.share(y, f); s != t {
		return s < t
	}
	return CompareEntries(e, f) < 0
}

// share returns the dominant share over weight, with half of the next job.
func (a *Race) share(x *Runner, e *Entry) float64 {
	return AmountsOf(x.held.Capacity).Plus(x.past, 1).Plus(AmountsOf(e.Class.All), 0.5).Dominant(a.shares.Owned) /
		x.of.weight()
}

// within reports whether the account stays within its guarantee with the job.
func (a *Race) within(x *Runner, e *Entry) bool {
	return a.shares.Guarantees && !x.of.own && x.of.Account.Guarantees(x.held.Capacity, e.Class.All)
}

// presses reports whether the job is overdue by then, and its account holds less than its part.
func (a *Race) presses(x *Runner, e *Entry) bool {
	return a.overdue(e) && AmountsOf(x.held.Capacity).Dominant(a.shares.Owned) < x.of.Part
}

// overdue reports whether a job that still waits is overdue at the time of the race.
func (a *Race) overdue(e *Entry) bool {
	p := a.shares.policy
	return p.Overdue > 0 && cluster.SinceOrigin(a.at)-e.worn >= p.Overdue
}
