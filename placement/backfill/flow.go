package backfill

import (
	"maps"
	"slices"
	"time"

	"berth"
	"berth/placement/cluster"
	"berth/placement/fit"
	"berth/placement/queue"
)

// Flow estimates starts. It treats the free capacity of each kind as one pool that can
// be cut at will.
type Flow struct {
	*cluster.Moment
	policy       *queue.Policy
	cluster      *cluster.Cluster
	queue        *queue.Queue
	ledger       *cluster.Ledger
	placer       *fit.Placer
	reservations *Reservations
	shares       *queue.Shares
	pools        map[*cluster.Kind]*pool
	floors       map[*cluster.Class]floor
	headrooms    map[*queue.Account]*headroom
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
	free queue.Amounts
	next []refund // by time
}

// refund is room that is given back.
type refund struct {
	at   time.Time
	room queue.Amounts
}

// NewFlow reads the free capacity and the releases after the plan's reservations.
// starts are further jobs of the plan, with the time from which each holds room.
func NewFlow(r *Reservations, q *queue.Queue, s *queue.Shares, starts map[berth.JobID]time.Time) *Flow {
	f := &Flow{
		Moment: r.Moment, policy: r.policy, cluster: r.cluster, queue: q, ledger: r.ledger, placer: r.placer,
		reservations: r, shares: s,
		pools: map[*cluster.Kind]*pool{}, floors: map[*cluster.Class]floor{}, headrooms: map[*queue.Account]*headroom{},
		starts: maps.Clone(r.Starts),
	}
	maps.Copy(f.starts, starts)
	for _, k := range f.cluster.Kinds {
		f.pools[k] = f.poolOf(k)
	}
	return f
}

// poolOf reads the capacity of one kind of machine.
func (f *Flow) poolOf(k *cluster.Kind) *pool {
	p := &pool{at: f.Now}
	for _, n := range k.All(f.Number) {
		p.free = p.free.Plus(queue.AmountsOf(n.Free), 1)
		if h := f.ledger.HoldOn(n); h != nil {
			p.free = p.free.Plus(queue.AmountsOf(h.Grant.Capacity), 1)
			for _, o := range f.reservations.on(n) {
				room := queue.AmountsOf(o.Grant.Capacity)
				p.free = p.free.Plus(room, -1)
				if !o.Until.IsZero() {
					p.next = append(p.next, refund{o.Until, room})
				}
			}
		}
		for _, x := range f.reservations.agenda(n) {
			p.next = append(p.next, refund{f.From(x.at), queue.AmountsOf(x.grant.Capacity)})
		}
	}
	slices.SortStableFunc(p.next, func(a, b refund) int { return a.at.Compare(b.at) })
	return p
}

// Start takes the capacity of a job from the pool that has enough of it first, and
// returns the time; zero if no pool ever has.
func (f *Flow) Start(e *queue.Entry) time.Time {
	x := f.shares.Contenders[f.queue.Account(e.Tenant).Index]
	from, ok := f.affords(x, e)
	if !ok {
		return time.Time{}
	}
	f.cluster.Settle(e.Class) // its place may not have been searched
	need := queue.AmountsOf(e.Class.All)
	var best *pool
	var at time.Time
	for _, m := range e.Class.Matches {
		if t, ok := f.pools[m.Kind].enough(need, from); ok && (best == nil || t.Before(at)) {
			best, at = f.pools[m.Kind], t
		}
	}
	if best == nil {
		return time.Time{}
	}
	low := f.floor(e.Class)
	if low.never {
		return time.Time{}
	}
	run := f.reservations.length(e)
	if from.After(f.Now) {
		best.lend(at, need, run) // others need not wait until its tenant may hold it
	} else {
		best.forward(at)
		best.free = best.free.Plus(need, -1)
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
func (f *Flow) floor(c *cluster.Class) floor {
	if !f.placer.Closed(c) {
		return floor{}
	}
	low, ok := f.floors[c]
	if !ok && len(f.floors) < maxFloors {
		if best := f.reservations.Places(c); best != nil {
			low.at = best[len(best)-1].At
		} else {
			low.never = !f.placer.Possible(c)
		}
		f.floors[c] = low
	}
	return low
}

// enough is when there is so much, but not before from.
func (p *pool) enough(need queue.Amounts, from time.Time) (time.Time, bool) {
	free, at := p.free, p.at
	for i := 0; ; i++ {
		if free.Covers(need) && (i == len(p.next) || p.next[i].at.After(at) && p.next[i].at.After(from)) {
			if at.Before(from) {
				at = from
			}
			return at, true
		}
		if i == len(p.next) {
			return time.Time{}, false
		}
		free, at = free.Plus(p.next[i].room, 1), p.next[i].at
	}
}

// forward moves the pool on.
func (p *pool) forward(to time.Time) {
	i := 0
	for ; i < len(p.next) && !p.next[i].at.After(to); i++ {
		p.free = p.free.Plus(p.next[i].room, 1)
	}
	p.at, p.next = to, p.next[i:]
}

// lend takes room at a time to come, and gives it back after run; 0: never.
func (p *pool) lend(at time.Time, room queue.Amounts, run time.Duration) {
	p.give(refund{at, queue.Amounts{}.Plus(room, -1)})
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
