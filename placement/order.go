package placement

import (
	"cmp"
	"container/heap"
	"math"
	"time"

	"berth"
)

// contender is an account in a plan: the capacity that it holds as the plan goes on,
// and the next of its jobs. Contenders form the tree of the accounts. An account
// with accounts below it has a further contender for its own jobs, next to theirs.
type contender struct {
	account *account
	own     bool // the account's own jobs, where it has accounts below
	parent  *contender
	kids    contenders // a heap
	index   int        // in parent.kids

	held  holding
	going holding // by jobs that this plan tells to stop: limits count it until they have
	past  amounts // use that still counts, as if it were held
	share float64 // dominant, over weight, with half of the next job

	lines  []stand  // those not begun
	begun  lineHeap // a heap of those begun
	rest   lineHeap // the lines left by narrow
	latest *line    // that first came from
	first  *entry   // next of the contender's jobs; nil: none left
	tried  bool     // a job of it had no room or was barred already
	within bool     // with it the account holds no more than its guarantee

	part        float64 // of the cluster, by weight among those that hold something or wait
	pressing    bool    // the next job is overdue, and the account holds less than its part
	reserved    amounts // of held, what overdue jobs have reserved
	reservedFor *entry  // the first of them
}

// amounts are those resources of which shares are told.
type amounts [3]float64

// amountsOf returns the resources of a capacity that count in shares.
func amountsOf(c berth.Capacity) amounts {
	return amounts{float64(c.CPUMilli), float64(c.MemoryMiB), float64(c.GPUMilli)}
}

// plus adds other amounts the given number of times.
func (x amounts) plus(y amounts, times float64) amounts {
	for i := range x {
		x[i] += y[i] * times
	}
	return x
}

// dominant is the largest share of any one resource of the cluster.
func (x amounts) dominant(of amounts) float64 {
	share := 0.0
	for i := range x {
		if of[i] > 0 {
			share = max(share, x[i]/of[i])
		}
	}
	return share
}

// past is a tenant's use as amounts held: one who has always held x has used x.
func (p *Policy) past(u Usage, now time.Time) amounts {
	if p.HalfLife <= 0 {
		return amounts{}
	}
	u, tau := u.Decayed(now, p.HalfLife), p.HalfLife.Seconds()/math.Ln2
	return amounts{u.CPU * 1000 / tau, u.MemoryMiB / tau, u.GPU * 1000 / tau}
}

// entry is what a start of that size is charged as past use.
func (p *Policy) entry(c berth.Capacity) amounts {
	if p.HalfLife <= 0 {
		return amounts{}
	}
	return amounts{}.plus(amountsOf(c), p.EntryPenalty.Seconds()*math.Ln2/p.HalfLife.Seconds())
}

// contenders is a heap by who is next.
type contenders struct {
	list   []*contender
	shares *shares
}

func (h *contenders) Len() int           { return len(h.list) }
func (h *contenders) Less(i, j int) bool { return h.shares.compareContenders(h.list[i], h.list[j]) < 0 }
func (h *contenders) Swap(i, j int) {
	h.list[i], h.list[j] = h.list[j], h.list[i]
	h.list[i].index, h.list[j].index = i, j
}
func (h *contenders) Push(any) { panic("placement: contenders are not pushed") }
func (h *contenders) Pop() any {
	last := len(h.list) - 1
	x := h.list[last]
	h.list = h.list[:last]
	return x
}

// compareContenders orders two contenders below one. Both have jobs.
func (r *shares) compareContenders(a, b *contender) int {
	x, y := a.first, b.first
	if r.policy.Order == Fair {
		if x.band != y.band {
			return int(y.band) - int(x.band)
		}
		if a.within != b.within {
			if a.within {
				return -1
			}
			return 1
		}
		if a.pressing != b.pressing {
			if a.pressing {
				return -1
			}
			return 1
		}
		if a.pressing {
			return compareEntries(x, y)
		}
		return cmp.Or(cmp.Compare(a.share, b.share), compareEntries(x, y))
	}
	if r.policy.Aging > 0 && x.band == y.band && !x.overdue && !y.overdue && r.policy.Order == Priority {
		// Accounts that stood still count less.
		s, t := x.rank+r.stalled(x).Seconds(), y.rank+r.stalled(y).Seconds()
		if s != t {
			return cmp.Compare(s, t)
		}
	}
	return compareEntries(x, y)
}

func (r *shares) stalled(e *entry) time.Duration {
	return e.tally.account.stalledFor(r.now)
}

// weigh works out a contender's share and whether its next job is within the
// guarantee. The share counts half of the next job, as Webster's method of
// dividing contenders does: counting none of it favours those of little weight, and
// counting all of it those of much.
func (r *shares) weigh(x *contender) {
	amounts := amountsOf(x.held.Capacity).plus(x.past, 1)
	if x.first != nil {
		amounts = amounts.plus(amountsOf(x.first.class.all), 0.5)
	}
	x.share = amounts.dominant(r.owned) / x.weight()
	x.pressing = x.first != nil && x.first.overdue && amountsOf(x.held.Capacity).dominant(r.owned) < x.part
	x.within = x.first != nil && !x.own && x.account.guarantees(x.held.Capacity, x.first.class.all)
}

// divide gives the contenders below one their parts of its own, if overdue jobs are to
// press by them.
func (r *shares) divide() {
	if r.policy.Overdue <= 0 || r.policy.Order != Fair {
		return
	}
	sums := map[*contender]float64{}
	each := func(f func(*contender)) {
		for i, x := range r.contenders {
			if f(x); r.own[i] != x {
				f(r.own[i])
			}
		}
	}
	each(func(x *contender) {
		if x.counts() {
			sums[x.parent] += x.weight()
		}
	})
	each(func(x *contender) {
		x.part = 1
		for y := x; y != &r.root; y = y.parent {
			if y.counts() {
				x.part *= y.weight() / sums[y.parent]
			}
		}
	})
	r.regroup(&r.root, func(*contender) {})
}

// counts reports whether the contender takes part in dividing the cluster.
func (x *contender) counts() bool { return x.first != nil || x.held.jobs > 0 }

// weight of a contender among its siblings.
func (x *contender) weight() float64 {
	if x.own {
		return 1
	}
	return x.account.weight()
}

// lead makes the first job of a contender that of its first contender.
func (r *shares) lead(x *contender) {
	if len(x.kids.list) > 0 {
		x.first = x.kids.list[0].first
	} else if x.kids.shares != nil {
		x.first = nil
	}
}

// next is the contender whose first job is next of all; nil when there is none.
func (r *shares) next() *contender {
	if r.root.first == nil {
		return nil
	}
	x := &r.root
	for len(x.kids.list) > 0 {
		x = x.kids.list[0]
	}
	return x
}

// charge makes a job of the contender count as held by it and those above it.
func (r *shares) charge(x *contender, e *entry) {
	r.join(e)
	penalty := r.policy.entry(e.class.all)
	for ; x != &r.root; x = x.parent {
		x.held.add(e.class.all, e.Preemptible, 1)
		x.past = x.past.plus(penalty, 1)
	}
}

// settle puts a contender that has moved on, and those above it, where they belong.
func (r *shares) settle(x *contender) {
	for x != &r.root {
		p := x.parent
		if x.first == nil {
			heap.Remove(&p.kids, x.index)
		} else {
			r.weigh(x)
			heap.Fix(&p.kids, x.index)
		}
		r.lead(p)
		x = p
	}
}

// discharge takes a job that stops off its accounts, as far as shares go.
func (r *shares) discharge(h *holder) {
	for x := r.contenders[h.owner.account]; x != &r.root; x = x.parent {
		x.held.add(berth.Capacity{}.Sub(h.capacity), h.Preemptible, -1)
		x.going.add(h.capacity, h.Preemptible, 1)
		if x.first != nil {
			r.weigh(x)
			heap.Fix(&x.parent.kids, x.index)
			r.lead(x.parent)
		}
	}
}

// shares is the tree of accounts in one plan: each holds capacity, and the next
// job of each competes for the turn.
type shares struct {
	*moment
	policy     *Policy
	queue      *queue
	root       contender
	contenders []*contender // by account.index
	own        []*contender // the contender of the account's own jobs, by its index
	owned      amounts      // of the cluster

	siblings   map[berth.JobID]int // elements that this plan gives room to, by parent
	quotas     bool                // some account has a limit
	guarantees bool                // some account has a guarantee
}

// newShares returns the shares of a plan. owned is the capacity of the cluster.
func newShares(at *moment, policy *Policy, q *queue, owned amounts) *shares {
	r := &shares{
		moment: at, policy: policy, queue: q, owned: owned,
		contenders: make([]*contender, 1+len(q.accounts)), own: make([]*contender, 1+len(q.accounts)),
	}
	for _, a := range q.accounts {
		r.quotas = r.quotas || a.limits()
		r.guarantees = r.guarantees || a.guaranteed()
	}
	return r
}

// unbarred returns the shares of another plan for the same accounts, for a walk that
// no quota stops.
func (r *shares) unbarred(at *moment) *shares {
	return &shares{
		moment: at, policy: r.policy, queue: r.queue, owned: r.owned,
		contenders: make([]*contender, len(r.contenders)), own: make([]*contender, len(r.own)),
	}
}

// regroup calls change with each contender that has jobs left, then sorts all
// contenders again.
func (r *shares) regroup(above *contender, change func(*contender)) {
	list := above.kids.list[:0]
	for _, x := range above.kids.list {
		if x.kids.shares != nil {
			r.regroup(x, change)
		} else {
			change(x)
		}
		r.weigh(x)
		if x.first != nil {
			x.index = len(list)
			list = append(list, x)
		}
	}
	above.kids.list = list
	heap.Init(&above.kids)
	r.lead(above)
}

// siblings are the contenders in which two accounts part: below the same one. They
// are nil if one is above the other, or both are the same.
func siblings(a, b *contender) (x, y *contender) {
	for x = a; x.parent != nil; x = x.parent {
		for y = b; y.parent != nil; y = y.parent {
			if x.parent == y.parent && x != y {
				return x, y
			}
			if x == y {
				return nil, nil
			}
		}
	}
	return nil, nil
}

// shielded reports whether a holder's tenant, or one between it and top, has no
// more than what is guaranteed to it.
func shielded(x, top *contender) bool {
	for ; x != nil; x = x.parent {
		if a := x.account; a.known && a.guaranteed() && !a.borrows(x.held.Capacity) {
			return true
		}
		if x == top {
			break
		}
	}
	return false
}

// covers reports whether the amounts are enough for others, resource by resource.
func (x amounts) covers(y amounts) bool {
	for i := range x {
		if y[i] > 0 && x[i] < y[i] {
			return false
		}
	}
	return true
}
