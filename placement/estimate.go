package placement

import (
	"maps"
	"slices"
	"time"

	"berth"
)

// estimate lists when each waiting job should start, in queue order. A job with
// a reserved start has that. The others are let through the machines they may
// use as if room could be cut as one likes: those that hold room give it back at
// their end, and each job in turn takes what it needs from the first moment at
// which there is enough, but no earlier than any machine has room for it.
func (r *run) estimate() {
	started := make(map[berth.JobID]bool, len(r.plan.Start))
	for _, s := range r.plan.Start {
		started[s.Job] = true
	}
	f := r.flow()
	for i, e := range r.waiting(started) {
		est := Estimate{Job: e.ID, Position: i + 1}
		if r.narrowed && e.blocked != r.number && !r.plan.More {
			x := r.sits[r.snapshot.account(e.Tenant).index]
			if _, barred := r.barred(x, e); !barred {
				r.hope(x, e)
			}
		}
		switch at, ok := r.reservedAt[e.ID]; {
		case ok:
			est.Start, est.Reserved = at, true
		case r.soon[e.ID]:
			est.Start = r.now
		default:
			est.Start = f.start(e)
		}
		if at, ok := r.hopes[e.ID]; ok && (est.Start.IsZero() || at.Before(est.Start)) {
			est.Start = at
		}
		r.plan.Estimates = append(r.plan.Estimates, est)
	}
}

// waiting lists the jobs that may start in the order in which they would, but
// for those left out.
func (r *run) waiting(leftOut map[berth.JobID]bool) []*entry {
	s := r.snapshot
	s.plans++
	q := &run{policy: r.policy, snapshot: s, now: r.now, clock: r.clock, number: s.plans, owned: r.owned, seats: make([]*seat, len(r.seats)), sits: make([]*seat, len(r.seats)), bygone: newClassSet(s)}
	q.seat(&q.root, s.top)
	q.divide()
	var list []*entry
	for x := q.next(); x != nil; x = q.next() {
		if e := x.first; !leftOut[e.ID] {
			list = append(list, e)
		}
		q.charge(x, x.first)
		q.step(x)
	}
	return list
}

// flow is the machines as a fluid, kind by kind.
type flow struct {
	run    *run
	pools  map[*kind]*pool
	floors map[*class]floor
	purses map[*account]*purse
	starts map[berth.JobID]time.Time // see startsAt
}

// floor is when machines first have room for all members of a job of a class.
type floor struct {
	at    time.Time // zero: not looked for
	never bool      // not even empty ones do
}

// maxFloors bounds for how many classes a plan looks for that.
const maxFloors = 64

// pool is the free room of one kind of machine at a time that only moves on.
type pool struct {
	at   time.Time
	free amounts
	next []refund // by time
}

// refund is room that is given back.
type refund struct {
	at   time.Time
	room amounts
}

// flow reads what is free and who gives back what, after the plan's starts and
// reservations.
func (r *run) flow() *flow {
	f := &flow{r, map[*kind]*pool{}, map[*class]floor{}, map[*account]*purse{}, nil}
	for _, k := range r.snapshot.kinds {
		p := &pool{at: r.now}
		for _, n := range k.all(r.number) {
			p.free = p.free.plus(amountsOf(n.free), 1)
			if n.kept != nil {
				p.free = p.free.plus(amountsOf(n.kept.held.Capacity), 1)
				for _, o := range n.kept.reserved {
					room := amountsOf(o.grant.Capacity)
					p.free = p.free.plus(room, -1)
					if !o.until.IsZero() {
						p.next = append(p.next, refund{o.until, room})
					}
				}
			}
			for _, x := range r.agenda(n) {
				p.next = append(p.next, refund{r.from(x.at), amountsOf(x.grant.Capacity)})
			}
		}
		slices.SortStableFunc(p.next, func(a, b refund) int { return a.at.Compare(b.at) })
		f.pools[k] = p
	}
	return f
}

// start lets the job take its room where there is enough of it first; zero if
// there never is.
func (f *flow) start(e *entry) time.Time {
	x := f.run.seats[f.run.snapshot.account(e.Tenant).index]
	from, ok := f.affords(x, e)
	if !ok {
		return time.Time{}
	}
	f.run.snapshot.settle(e.class) // nobody may have looked for a place for it
	need := amountsOf(e.class.all)
	var best *pool
	var at time.Time
	for _, m := range e.class.matches {
		if t, ok := f.pools[m.kind].enough(need, from); ok && (best == nil || t.Before(at)) {
			best, at = f.pools[m.kind], t
		}
	}
	if best == nil {
		return time.Time{}
	}
	low := f.floor(e.class)
	if low.never {
		return time.Time{}
	}
	run := f.run.length(e)
	if from.After(f.run.now) {
		best.lend(at, need, run) // others need not wait until its tenant may hold it
	} else {
		best.forward(at)
		best.free = best.free.plus(need, -1)
		if run > 0 {
			best.give(refund{at.Add(run), need})
		}
	}
	if low.at.After(at) {
		at = low.at
	}
	f.pay(x, e, at, run)
	return at
}

// startsAt are the jobs that start now or have a start that is kept for them.
func (f *flow) startsAt() map[berth.JobID]time.Time {
	if f.starts == nil {
		f.starts = maps.Clone(f.run.reservedAt)
		for id := range f.run.soon {
			f.starts[id] = f.run.now
		}
		for _, s := range f.run.plan.Start {
			f.starts[s.Job] = f.run.now
		}
	}
	return f.starts
}

// floor is the first time at which machines have room for the class, as far as
// it was looked for.
func (f *flow) floor(c *class) floor {
	if c.closed != f.run.number {
		return floor{}
	}
	low, ok := f.floors[c]
	if !ok && len(f.floors) < maxFloors {
		if best := f.run.places(c); best != nil {
			low.at = best[len(best)-1].at
		} else {
			low.never = !f.run.possible(c)
		}
		f.floors[c] = low
	}
	return low
}

// possible reports whether the machines could hold all members of a job of the
// class if they were empty.
func (r *run) possible(c *class) bool {
	switch r.snapshot.shape {
	case c.never:
		return false
	case c.ever:
		return true
	}
	r.snapshot.settle(c)
	members := map[string]int{} // by group
	for _, m := range c.matches {
		for _, n := range m.kind.all(r.number) {
			group := c.groupOf(&n.Machine)
			if members[group] += c.membersOn(n); members[group] >= c.members() {
				c.ever = r.snapshot.shape
				return true
			}
		}
	}
	c.never = r.snapshot.shape
	return false
}

// length is how long a job is taken to run; 0: for ever.
func (r *run) length(e *entry) time.Duration {
	if t := remaining(e.Remaining, e.TimeLimit); t > 0 {
		return t + e.RestartCost
	}
	return r.policy.AssumeRun
}

// enough is when there is so much, but not before from.
func (p *pool) enough(need amounts, from time.Time) (time.Time, bool) {
	free, at := p.free, p.at
	for i := 0; ; i++ {
		if free.covers(need) && (i == len(p.next) || p.next[i].at.After(at) && p.next[i].at.After(from)) {
			if at.Before(from) {
				at = from
			}
			return at, true
		}
		if i == len(p.next) {
			return time.Time{}, false
		}
		free, at = free.plus(p.next[i].room, 1), p.next[i].at
	}
}

// forward moves the pool on.
func (p *pool) forward(to time.Time) {
	i := 0
	for ; i < len(p.next) && !p.next[i].at.After(to); i++ {
		p.free = p.free.plus(p.next[i].room, 1)
	}
	p.at, p.next = to, p.next[i:]
}

// lend takes room at a time to come, and gives it back after run; 0: never.
func (p *pool) lend(at time.Time, room amounts, run time.Duration) {
	p.give(refund{at, amounts{}.plus(room, -1)})
	if run > 0 {
		p.give(refund{at.Add(run), room})
	}
}

// give notes that room will be given back.
func (p *pool) give(x refund) {
	i, _ := slices.BinarySearchFunc(p.next, x.at, func(y refund, t time.Time) int {
		if y.at.After(t) {
			return 1
		}
		return -1
	})
	p.next = slices.Insert(p.next, i, x)
}

func (x amounts) covers(y amounts) bool {
	for i := range x {
		if y[i] > 0 && x[i] < y[i] {
			return false
		}
	}
	return true
}
