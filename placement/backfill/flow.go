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

// Flow estimates the starts of jobs without a reservation. It treats the free capacity of
// each kind as one divisible pool, as if no job could fail to fit for fragmentation. The
// caller passes the jobs to Start in queue order.
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
	starts       map[berth.JobID]time.Time // jobs that this plan starts now or with a reserved start
}

// floor is a lower bound on the starts of a class: the first time at which machines have
// room for all members of a job. It corrects the pools, which ignore fragmentation.
type floor struct {
	at    time.Time // zero: not searched
	never bool      // the machines have no room even if empty
}

// maxFloors bounds the number of classes whose floor a plan searches.
const maxFloors = 64

// pool is the free capacity of one kind of machine, or an unused quota, over time. Its
// time at only advances: capacity that was free before is lost to later jobs.
type pool struct {
	at   time.Time
	free queue.Amounts
	next []refund // by time
}

// refund is capacity that returns to a pool at a time. A negative amount leaves the pool.
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

// poolOf returns the pool of one kind of machine: its free and held capacity, less the
// reservations, with the releases of occupants and of reservations.
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

// Start estimates the start of a job and takes its capacity from the pool that has enough
// at the earliest time. It returns the zero time if no pool ever has enough or if the ends
// of jobs do not make the quotas of the job's tenants sufficient.
func (f *Flow) Start(e *queue.Entry) time.Time {
	x := f.shares.Contenders[f.queue.Account(e.Tenant).Index]
	from, ok := f.affords(x, e)
	if !ok {
		return time.Time{}
	}
	f.cluster.Settle(e.Class) // the plan may have skipped the class
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
		// The job waits for its quota. The pool stays at its time, so that jobs of other
		// tenants may take the capacity until then.
		best.lend(at, need, run)
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

// floor returns the floor of a class. It is the zero floor for a class that has not failed
// to fit in this plan, and for classes beyond maxFloors.
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

// enough returns the first time, from the given one on, at which the pool covers the need;
// ok is false if it never does. It applies all refunds of one moment before it compares.
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

// forward advances the pool to a time and applies the refunds up to then.
func (p *pool) forward(to time.Time) {
	i := 0
	for ; i < len(p.next) && !p.next[i].at.After(to); i++ {
		p.free = p.free.Plus(p.next[i].room, 1)
	}
	p.at, p.next = to, p.next[i:]
}

// lend takes capacity at a future time and returns it after run; 0: never.
func (p *pool) lend(at time.Time, room queue.Amounts, run time.Duration) {
	p.give(refund{at, queue.Amounts{}.Plus(room, -1)})
	if run > 0 {
		p.give(refund{at.Add(run), room})
	}
}

// give inserts a refund behind the refunds of the same or an earlier time.
func (p *pool) give(x refund) {
	i, _ := slices.BinarySearchFunc(p.next, x.at, func(y refund, t time.Time) int {
		if y.at.After(t) {
			return 1
		}
		return -1
	})
	p.next = slices.Insert(p.next, i, x)
}
