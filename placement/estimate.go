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
func (r *run) estimate() {
	started := make(map[berth.JobID]bool, len(r.plan.Start))
	for _, s := range r.plan.Start {
		started[s.Job] = true
	}
	f := r.flow()
	for i, e := range r.waiting(started) {
		est := Estimate{Job: e.ID, Position: i + 1}
		switch at, ok := r.reservedAt[e.ID]; {
		case ok:
			est.Start, est.Reserved = at, true
		case r.soon[e.ID]:
			est.Start = r.now
		default:
			est.Start = f.start(e)
		}
		r.plan.Estimates = append(r.plan.Estimates, est)
	}
}

// waiting lists the jobs that may start in the order in which they would, but
// for those left out.
func (r *run) waiting(leftOut map[berth.JobID]bool) []*entry {
	s := r.snapshot
	s.plans++
	q := &run{policy: r.policy, snapshot: s, now: r.now, number: s.plans, owned: r.owned, seats: make([]*seat, len(r.seats))}
	q.seat(&q.root, s.top)
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
}

// floor is when a machine first has room for a class.
type floor struct {
	at    time.Time
	known bool
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
	f := &flow{r, map[*kind]*pool{}, map[*class]floor{}}
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
	if _, ok := f.run.barred(x, e); ok {
		return time.Time{}
	}
	f.run.snapshot.settle(e.class) // the plan may not have looked at it
	need := amountsOf(e.class.all)
	var best *pool
	var at time.Time
	for _, m := range e.class.matches {
		if t, ok := f.pools[m.kind].enough(need); ok && (best == nil || t.Before(at)) {
			best, at = f.pools[m.kind], t
		}
	}
	if best == nil {
		return time.Time{}
	}
	best.forward(at)
	best.free = best.free.plus(need, -1)
	if low := f.floor(e.class); low.After(at) {
		at = low
	}
	if run := f.run.length(e); run > 0 {
		best.give(refund{at.Add(run), need})
	}
	return at
}

// floor is the first time at which machines have room for the class, as far as
// it was looked for.
func (f *flow) floor(c *class) time.Time {
	if c.closed != f.run.number {
		return time.Time{}
	}
	low, ok := f.floors[c]
	if !ok && len(f.floors) < maxFloors {
		var best []opening
		for _, group := range f.run.groups(c) {
			if list := f.run.openings(c, group, best); list != nil {
				best = list
			}
		}
		if best != nil {
			low = floor{best[len(best)-1].at, true}
		}
		f.floors[c] = low
	}
	return low.at
}

// length is how long a job is taken to run; 0: for ever.
func (r *run) length(e *entry) time.Duration {
	if t := remaining(e.Remaining, e.TimeLimit); t > 0 {
		return t + e.RestartCost
	}
	return r.policy.AssumeRun
}

// enough is when there is so much.
func (p *pool) enough(need amounts) (time.Time, bool) {
	free, at := p.free, p.at
	for i := 0; ; i++ {
		if free.covers(need) {
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
