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

// Flow estimates the starts of jobs without a reservation where a simulation cannot, see
// Simulate. It treats the free capacity of each kind as one divisible pool, as if no job could
// fail to fit for fragmentation. The caller passes the jobs to Start in queue order.
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
	starts       map[berth.JobID]Start // jobs that this plan starts now or with a reserved start
	history      *queue.RunTimes       // nil: jobs without known ends never end
	unordered    bool                  // a job without a limit runs: no start is reserved behind it
	guessed      bool                  // the run time of a passed job is predicted
	gaps         bool                  // later jobs of known run time fill gaps, see FillGaps
	passed       int                   // jobs passed to Start
	single       bool                  // the run time of a waiting job is one number, see runs
}

// floor is a lower bound on the starts of a class: the first time at which machines have
// room for all members of a job. It corrects the pools, which ignore fragmentation.
type floor struct {
	at    time.Time // zero: not searched, or no known end of a job makes room
	never bool      // the machines have no room even if empty
	full  bool      // searched: the machines have no room now, and no known end of a job makes room
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

// Start is a job that a plan starts, or for which it keeps capacity.
type Start struct {
	At    time.Time    // from which the job holds room
	Entry *queue.Entry // with the class of the chosen alternative
}

// NewFlow reads the free capacity and the releases after the plan's reservations.
// starts are further jobs of the plan.
//
// A history adds the ends of jobs that have no limit: it returns their capacity in parts, as
// the run times of similar jobs are distributed. waiting is the number of jobs that will be
// passed to Start.
func NewFlow(r *Reservations, q *queue.Queue, s *queue.Shares, starts map[berth.JobID]Start,
	history *queue.RunTimes, waiting int) *Flow {
	f := &Flow{
		Moment: r.Moment, policy: r.policy, cluster: r.cluster, queue: q, ledger: r.ledger, placer: r.placer,
		reservations: r, shares: s,
		pools: map[*cluster.Kind]*pool{}, floors: map[*cluster.Class]floor{}, headrooms: map[*queue.Account]*headroom{},
		starts: maps.Clone(starts), history: history, single: waiting > maxParted,
	}
	for id, at := range r.Starts {
		f.starts[id] = Start{at, q.Jobs[id]}
	}
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
			for _, o := range f.reservations.On(n) {
				room := queue.AmountsOf(o.Grant.Capacity)
				p.free = p.free.Plus(room, -1)
				if !o.Until.IsZero() {
					p.next = append(p.next, refund{at: o.Until, room: room})
				}
			}
		}
		for _, x := range f.reservations.agenda(n) {
			if x.by != nil && f.endless(x.by) && f.history.Running(x.by, f.Now).Known() {
				continue // its assumed end gives way to the prediction
			}
			p.next = append(p.next, refund{at: f.From(x.at), room: queue.AmountsOf(x.grant.Capacity)})
		}
		f.eachEndless(n, func(h *cluster.Holder) { f.release(p, n, h) })
	}
	slices.SortStableFunc(p.next, func(a, b refund) int { return a.at.Compare(b.at) })
	return p
}

// Guesses reports whether the estimates so far rest on predicted run times.
func (f *Flow) Guesses() bool { return f.unordered || f.guessed }

// endless reports whether nothing bounds the run time of a running job.
func (f *Flow) endless(h *cluster.Holder) bool {
	_, ends := h.Ends(0)
	return !ends && h.Stopped != f.Number
}

// eachEndless visits the jobs without a known end on a machine.
func (f *Flow) eachEndless(n *cluster.Node, visit func(*cluster.Holder)) {
	if f.history == nil {
		return
	}
	for i := range n.On.List {
		if h := n.On.List[i].Holder; f.endless(h) {
			visit(h)
		}
	}
	for _, h := range f.reservations.fresh[n] {
		if f.endless(h) {
			visit(h)
		}
	}
}

// release adds the predicted releases of a job on a machine.
func (f *Flow) release(p *pool, n *cluster.Node, h *cluster.Holder) {
	var room queue.Amounts
	for i := range h.Ranks {
		if g := &h.Ranks[i]; g.Machine == n.ID {
			room = room.Plus(queue.AmountsOf(g.Capacity), 1)
		}
	}
	ends := f.ends(h)
	f.unordered = f.unordered || len(ends) > 0
	for _, at := range ends {
		p.next = append(p.next, refund{at: at, room: queue.Amounts{}.Plus(room, 1/float64(len(ends)))})
	}
}

// ends returns the times at which a running job without a known end releases equal parts of
// its capacity; nil if nothing is known about it.
func (f *Flow) ends(h *cluster.Holder) []time.Time {
	var list []time.Time
	for _, total := range f.history.Running(h, f.Now).Parts() {
		list = append(list, f.From(h.StartedAt.Add(total-h.Done)))
	}
	return list
}

// FillGaps makes the estimates let a job of known run time start before an earlier one if it ends
// before the capacity is needed, as plans do. Plans find fewer gaps: the kinds are divisible pools
// here, and jobs that come later take part of the gaps.
func (f *Flow) FillGaps() { f.gaps = true }

// maxBackfilled is the number of jobs, the first of the queue, whose estimates let later jobs
// fill gaps: each of them looks at all ends and starts before it.
const maxBackfilled = 1000

// maxParted is the number of waiting jobs up to which each has a distribution of run times.
// More jobs have one number each: their parts would make the pools long, and average out.
const maxParted = 250

// runs returns the run times after which equal parts of a waiting job's capacity return; nil:
// never.
func (f *Flow) runs(e *queue.Entry) []time.Duration {
	if run := queue.Remaining(e.Remaining, e.TimeLimit); run > 0 || f.history == nil {
		if run = f.reservations.length(e); run > 0 {
			return []time.Duration{run}
		}
		return nil
	}
	predicted := f.history.Waiting(e)
	switch {
	case !predicted.Known() && f.policy.AssumeRun > 0:
		return []time.Duration{f.policy.AssumeRun}
	case !predicted.Known():
		return nil
	}
	f.guessed = true
	list := predicted.Parts()
	if f.single {
		list = []time.Duration{predicted.Mean()}
	}
	for i := range list {
		list[i] = max(time.Second, list[i]-e.Done) + e.RestartCost
	}
	return list
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
	runs := f.runs(e)
	f.passed++
	backfills := f.gaps && f.policy.Backfill > 0 && f.passed <= maxBackfilled && len(runs) == 1 && !f.unordered
	var best *pool
	var at time.Time
	for _, m := range e.Class.Matches {
		find := f.pools[m.Kind].enough
		if backfills {
			find = f.pools[m.Kind].gap(runs[0])
		}
		if t, ok := find(need, from); ok && (best == nil || t.Before(at)) {
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
	if low.full && !at.After(f.Now) {
		// The pool has enough only as the sum of parts that are too small. The next release may make room.
		if at, ok = best.enoughAfter(need, f.Now); !ok {
			return time.Time{}
		}
	}
	if from.After(f.Now) || backfills || f.unordered && at.After(best.at) {
		// The job waits for its quota, or nothing keeps capacity for it, or later jobs may use
		// it until then. The pool stays at its time.
		best.lend(at, need, runs)
	} else {
		best.forward(at)
		best.free = best.free.Plus(need, -1)
		best.restore(at, need, runs)
	}
	if low.at.After(at) {
		at = low.at
	}
	f.pay(x, e, at, runs)
	return at
}

// earliest returns the first time at which the machines have room for all members of a job of a class once the
// present occupants end, device by device: no job of the class starts before. Reserved starts and maintenance windows
// do not count. never: no known end of an occupant makes room.
func (f *Flow) earliest(c *cluster.Class) (at time.Time, never bool) {
	f.reservations.bare = true
	best := f.reservations.Places(c)
	f.reservations.bare = false
	if best == nil {
		return time.Time{}, true
	}
	return best[len(best)-1].At, false
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
			low.never, low.full = !f.placer.Possible(c), true
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

// enoughAfter is enough from the first refund after a time on; ok is false without such a refund.
func (p *pool) enoughAfter(need queue.Amounts, now time.Time) (at time.Time, ok bool) {
	for i := range p.next {
		if p.next[i].at.After(now) {
			return p.enough(need, p.next[i].at)
		}
	}
	return time.Time{}, false
}

// gap is enough for a job of known run time: the pool must cover the need until the job ends,
// also after the starts of the jobs that were passed before. Short jobs thus fill the gaps that
// wide ones leave, as plans let them.
func (p *pool) gap(run time.Duration) func(need queue.Amounts, from time.Time) (time.Time, bool) {
	return func(need queue.Amounts, from time.Time) (at time.Time, fits bool) {
		free, now := p.free, p.at
		if now.Before(from) {
			now = from
		}
		for i := 0; ; now = p.next[i].at {
			for ; i < len(p.next) && !p.next[i].at.After(now); i++ { // all of one moment
				free = free.Plus(p.next[i].room, 1)
			}
			switch covers := free.Covers(need); {
			case covers && !fits:
				at, fits = now, true
			case !covers:
				fits = false
			}
			if i == len(p.next) || fits && !p.next[i].at.Before(at.Add(run)) {
				return at, fits
			}
		}
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

// lend takes capacity at a future time and returns equal parts of it after runs; none: never.
func (p *pool) lend(at time.Time, room queue.Amounts, runs []time.Duration) {
	p.give(refund{at: at, room: queue.Amounts{}.Plus(room, -1)})
	p.restore(at, room, runs)
}

// restore returns equal parts of capacity that was taken at a time.
func (p *pool) restore(at time.Time, room queue.Amounts, runs []time.Duration) {
	for _, run := range runs {
		p.give(refund{at: at.Add(run), room: queue.Amounts{}.Plus(room, 1/float64(len(runs)))})
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
