package placement

import (
	"maps"
	"slices"
	"time"

	"berth"
)

// flow is the machines as a fluid, kind by kind.
type flow struct {
	*moment
	policy       *Policy
	cluster      *cluster
	queue        *queue
	ledger       *ledger
	placer       *placer
	reservations *reservations
	shares       *shares
	pools        map[*kind]*pool
	floors       map[*class]floor
	headrooms    map[*account]*headroom
	starts       map[berth.JobID]time.Time // jobs of this plan that start or have a reserved start
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

// newFlow reads the free capacity and the releases after the plan's reservations.
// starts are further jobs of the plan, with the time from which each holds room.
func newFlow(r *reservations, q *queue, s *shares, starts map[berth.JobID]time.Time) *flow {
	f := &flow{
		moment: r.moment, policy: r.policy, cluster: r.cluster, queue: q, ledger: r.ledger, placer: r.placer,
		reservations: r, shares: s,
		pools: map[*kind]*pool{}, floors: map[*class]floor{}, headrooms: map[*account]*headroom{},
		starts: maps.Clone(r.starts),
	}
	maps.Copy(f.starts, starts)
	for _, k := range f.cluster.kinds {
		f.pools[k] = f.poolOf(k)
	}
	return f
}

// poolOf reads the capacity of one kind of machine.
func (f *flow) poolOf(k *kind) *pool {
	p := &pool{at: f.now}
	for _, n := range k.all(f.number) {
		p.free = p.free.plus(amountsOf(n.free), 1)
		if h := f.ledger.holdOn(n); h != nil {
			p.free = p.free.plus(amountsOf(h.grant.Capacity), 1)
			for _, o := range f.reservations.on(n) {
				room := amountsOf(o.grant.Capacity)
				p.free = p.free.plus(room, -1)
				if !o.until.IsZero() {
					p.next = append(p.next, refund{o.until, room})
				}
			}
		}
		for _, x := range f.reservations.agenda(n) {
			p.next = append(p.next, refund{f.from(x.at), amountsOf(x.grant.Capacity)})
		}
	}
	slices.SortStableFunc(p.next, func(a, b refund) int { return a.at.Compare(b.at) })
	return p
}

// start lets the job take its room where there is enough of it first; zero if
// there never is.
func (f *flow) start(e *entry) time.Time {
	x := f.shares.contenders[f.queue.account(e.Tenant).index]
	from, ok := f.affords(x, e)
	if !ok {
		return time.Time{}
	}
	f.cluster.settle(e.class) // its place may not have been searched
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
	run := f.reservations.length(e)
	if from.After(f.now) {
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

// floor is the first time at which machines have room for the class, as far as
// it was looked for.
func (f *flow) floor(c *class) floor {
	if !f.placer.closed(c) {
		return floor{}
	}
	low, ok := f.floors[c]
	if !ok && len(f.floors) < maxFloors {
		if best := f.reservations.places(c); best != nil {
			low.at = best[len(best)-1].at
		} else {
			low.never = !f.placer.possible(c)
		}
		f.floors[c] = low
	}
	return low
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
