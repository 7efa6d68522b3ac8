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
	top     branches // of the accounts at the top
	divided bool     // Divide was called
}

// Runner is an account in a Race, or the account's own jobs next to the accounts below.
type Runner struct {
	Number int     // among all runners
	parent *Runner // nil: at the top
	depth  int     // 0: at the top
	of     *Contender
	held   Holding
	past   Amounts   // at since
	hours  float64   // GPU hours from the begin of the race to since
	since  time.Time // the latest change of held, or later

	reserved Amounts // part of held that overdue jobs have reserved
	waiting  int     // own jobs
	busy     int     // runners of own jobs that hold capacity or wait: of this runner and those below
	below    branches
}

// branches are the runners below another one that hold capacity or wait, among which its part of the cluster is
// divided.
type branches struct {
	number int
	weight float64 // sum
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
			y = &Runner{parent: runner(x.Parent), of: x, held: x.Held, past: x.Past, since: r.Now}
			if y.parent != nil {
				y.depth = y.parent.depth + 1
			}
			y.Number = len(a.all)
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
	for y := x; y != nil; y = y.parent {
		a.settle(y)
		y.held.add(c, preemptible, times)
	}
	if a.divided && times < 0 && !x.counts() {
		a.drop(x)
	}
}

// Enter adds a waiting job to its runner, before Divide.
func (a *Race) Enter(x *Runner) { x.waiting++ }

// Start starts a waiting job.
func (a *Race) Start(x *Runner, e *Entry) {
	a.Charge(x, e.Class.All, e.Preemptible, 1)
	a.Penalize(x, e.Class.All, 1)
	x.waiting--
}

// counts reports whether a runner of own jobs takes part in the division of the cluster.
func (x *Runner) counts() bool { return x.waiting > 0 || x.held.Jobs > 0 }

// Divide divides the cluster among the runners that hold capacity or wait, as Shares.divide does. A runner drops out
// when the last of its jobs has ended.
func (a *Race) Divide() {
	a.divided = true
	for _, x := range a.runners {
		if !x.counts() {
			continue
		}
		for ; x != nil; x = x.parent {
			if x.busy++; x.busy == 1 {
				b := a.above(x)
				b.number, b.weight = b.number+1, b.weight+x.of.weight()
			}
		}
	}
}

// drop takes a runner out of the division, and the runners above that have no other one left.
func (a *Race) drop(x *Runner) {
	for ; x != nil; x = x.parent {
		if x.busy--; x.busy == 0 {
			b := a.above(x)
			b.number, b.weight = b.number-1, b.weight-x.of.weight()
		}
	}
}

// above returns the branches that a runner is one of.
func (a *Race) above(x *Runner) *branches {
	if x.parent == nil {
		return &a.top
	}
	return &x.parent.below
}

// part returns the runner's part of the cluster at the time of the race, see Contender.Part.
func (a *Race) part(x *Runner) float64 {
	part := 1.0
	for ; x != nil; x = x.parent {
		if b := a.above(x); x.busy > 0 && b.number > 1 { // a single one has all of it, whatever the rounding
			part *= x.of.weight() / b.weight
		}
	}
	return part
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
		if x.reserved == (Amounts{}) {
			continue
		}
		if part := a.part(x); part < 1 && AmountsOf(x.held.Capacity).Plus(x.reserved, -1).
			Plus(AmountsOf(e.Class.All), 1).Dominant(a.shares.Owned) >= part {
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

// Advance moves the race to a time.
func (a *Race) Advance(to time.Time) { a.at = to }

// settle brings a runner to the time of the race: past use approaches the capacity that it holds, and GPU hours add up.
// Runners that no job reads or changes stay behind, since there may be thousands.
func (a *Race) settle(x *Runner) {
	if !a.at.After(x.since) {
		return
	}
	if half := a.shares.policy.HalfLife; half > 0 {
		left := math.Exp2(-a.at.Sub(x.since).Seconds() / half.Seconds())
		x.past = Amounts{}.Plus(x.past, left).Plus(AmountsOf(x.held.Capacity), 1-left)
	}
	x.hours += float64(x.held.GPUMilli) / 1000 * a.at.Sub(x.since).Hours()
	x.since = a.at
}

// Penalize charges the entry penalty of a start, or takes it back with times -1.
func (a *Race) Penalize(x *Runner, c berth.Capacity, times float64) {
	penalty := a.shares.policy.entry(c)
	for ; x != nil; x = x.parent {
		a.settle(x)
		x.past = x.past.Plus(penalty, times)
	}
}

// Barred returns the first quota of a job's account, or of an account above it, that the job would exceed; ok is false
// if no quota bars the job.
func (a *Race) Barred(x *Runner, e *Entry) (found Bar, ok bool) {
	if !a.shares.quotas {
		return found, false
	}
	for ; x != nil; x = x.parent {
		c := x.of
		if !c.Account.Known || c.own {
			continue
		}
		a.settle(x)
		spent := c.Account.Budget.SpentAt(a.shares.Now, c.Account.held.GPUMilli) + x.hours
		c.Account.bars(x.held, e.Class.All, e.Preemptible, spent, func(b Bar) bool {
			found, ok = b, true
			return false
		})
		if ok {
			return found, true
		}
	}
	return found, false
}

// Before reports whether the job e of runner x comes before the job f of runner y, in the order of
// Shares.compareContenders.
func (a *Race) Before(x *Runner, e *Entry, y *Runner, f *Entry) bool {
	if x == y || a.shares.policy.Order != Fair {
		if c := a.shares.compareAged(e, f); c != 0 {
			return c < 0
		}
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
	a.settle(x)
	return AmountsOf(x.held.Capacity).Plus(x.past, 1).Plus(AmountsOf(e.Class.All), 0.5).Dominant(a.shares.Owned) /
		x.of.weight()
}

// within reports whether the account stays within its guarantee with the job.
func (a *Race) within(x *Runner, e *Entry) bool {
	return a.shares.Guarantees && !x.of.own && x.of.Account.Guarantees(x.held.Capacity, e.Class.All)
}

// presses reports whether the job is overdue by then, and its account holds less than its part.
func (a *Race) presses(x *Runner, e *Entry) bool {
	return a.overdue(e) && AmountsOf(x.held.Capacity).Dominant(a.shares.Owned) < a.part(x)
}

// overdue reports whether a job that still waits is overdue at the time of the race.
func (a *Race) overdue(e *Entry) bool {
	p := a.shares.policy
	return p.Overdue > 0 && cluster.SinceOrigin(a.at)-e.worn >= p.Overdue
}
