package queue

import (
	"cmp"
	"container/heap"
	"math"
	"time"

	"berth"
	"berth/placement/cluster"
)

// Contender is an account in a plan: the capacity that it holds as the plan goes on,
// and the next of its jobs. Contenders form the tree of the accounts. An account
// with accounts below it has a further contender for its own jobs, next to theirs.
type Contender struct {
	Account *Account
	own     bool // the account's own jobs, where it has accounts below
	Parent  *Contender
	kids    contenders // a heap
	index   int        // in parent.kids

	Held  Holding
	going Holding // by jobs that this plan tells to stop: limits count it until they have
	Past  Amounts // use that still counts, as if it were held
	share float64 // dominant, over weight, with half of the next job

	lines  []stand  // those not begun
	begun  lineHeap // a heap of those begun
	rest   lineHeap // the lines left by narrow
	latest *Line    // that first came from
	First  *Entry   // next of the contender's jobs; nil: none left
	Tried  bool     // a job of it had no room or was barred already
	within bool     // with it the account holds no more than its guarantee

	Part        float64 // of the cluster, by weight among those that hold something or wait
	Pressing    bool    // the next job is overdue, and the account holds less than its part
	reserved    Amounts // of held, what overdue jobs have reserved
	reservedFor *Entry  // the first of them
}

// Amounts are the resources that count in shares: CPU, memory and GPU.
type Amounts [3]float64

// AmountsOf returns the resources of a capacity that count in shares.
func AmountsOf(c berth.Capacity) Amounts {
	return Amounts{float64(c.CPUMilli), float64(c.MemoryMiB), float64(c.GPUMilli)}
}

// Plus adds other amounts the given number of times.
func (x Amounts) Plus(y Amounts, times float64) Amounts {
	for i := range x {
		x[i] += y[i] * times
	}
	return x
}

// Dominant returns the largest share of any one resource of the cluster.
func (x Amounts) Dominant(of Amounts) float64 {
	share := 0.0
	for i := range x {
		if of[i] > 0 {
			share = max(share, x[i]/of[i])
		}
	}
	return share
}

// past is a tenant's use as amounts held: one who has always held x has used x.
func (p *Policy) past(u Usage, now time.Time) Amounts {
	if p.HalfLife <= 0 {
		return Amounts{}
	}
	u, tau := u.Decayed(now, p.HalfLife), p.HalfLife.Seconds()/math.Ln2
	return Amounts{u.CPU * 1000 / tau, u.MemoryMiB / tau, u.GPU * 1000 / tau}
}

// entry is what a start of that size is charged as past use.
func (p *Policy) entry(c berth.Capacity) Amounts {
	if p.HalfLife <= 0 {
		return Amounts{}
	}
	return Amounts{}.Plus(AmountsOf(c), p.EntryPenalty.Seconds()*math.Ln2/p.HalfLife.Seconds())
}

// contenders is a heap by who is next.
type contenders struct {
	list   []*Contender
	shares *Shares
}

func (h *contenders) Len() int { return len(h.list) }

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
func (r *Shares) compareContenders(a, b *Contender) int {
	x, y := a.First, b.First
	if r.policy.Order == Fair {
		if x.Band != y.Band {
			return int(y.Band) - int(x.Band)
		}
		if a.within != b.within {
			if a.within {
				return -1
			}
			return 1
		}
		if a.Pressing != b.Pressing {
			if a.Pressing {
				return -1
			}
			return 1
		}
		if a.Pressing {
			return CompareEntries(x, y)
		}
		return cmp.Or(cmp.Compare(a.share, b.share), CompareEntries(x, y))
	}
	if r.policy.Aging > 0 && x.Band == y.Band && !x.Overdue && !y.Overdue && r.policy.Order == Priority {
		// Accounts that stood still count less.
		s, t := x.Rank+r.stalled(x).Seconds(), y.Rank+r.stalled(y).Seconds()
		if s != t {
			return cmp.Compare(s, t)
		}
	}
	return CompareEntries(x, y)
}

func (r *Shares) stalled(e *Entry) time.Duration {
	return e.tally.account.stalledFor(r.Now)
}

// weigh works out a contender's share and whether its next job is within the
// guarantee. The share counts half of the next job, as Webster's method of
// dividing contenders does: counting none of it favours those of little weight, and
// counting all of it those of much.
func (r *Shares) weigh(x *Contender) {
	amounts := AmountsOf(x.Held.Capacity).Plus(x.Past, 1)
	if x.First != nil {
		amounts = amounts.Plus(AmountsOf(x.First.Class.All), 0.5)
	}
	x.share = amounts.Dominant(r.Owned) / x.weight()
	x.Pressing = x.First != nil && x.First.Overdue && AmountsOf(x.Held.Capacity).Dominant(r.Owned) < x.Part
	x.within = x.First != nil && !x.own && x.Account.Guarantees(x.Held.Capacity, x.First.Class.All)
}

// divide gives the contenders below one their parts of its own, if overdue jobs are to
// press by them.
func (r *Shares) divide() {
	if r.policy.Overdue <= 0 || r.policy.Order != Fair {
		return
	}
	sums := map[*Contender]float64{}
	each := func(f func(*Contender)) {
		for i, x := range r.Contenders {
			if f(x); r.Own[i] != x {
				f(r.Own[i])
			}
		}
	}
	each(func(x *Contender) {
		if x.counts() {
			sums[x.Parent] += x.weight()
		}
	})
	each(func(x *Contender) {
		x.Part = 1
		for y := x; y != &r.Root; y = y.Parent {
			if y.counts() {
				x.Part *= y.weight() / sums[y.Parent]
			}
		}
	})
	r.regroup(&r.Root, func(*Contender) {})
}

// counts reports whether the contender takes part in dividing the cluster.
func (x *Contender) counts() bool { return x.First != nil || x.Held.Jobs > 0 }

// weight of a contender among its siblings.
func (x *Contender) weight() float64 {
	if x.own {
		return 1
	}
	return x.Account.ShareWeight()
}

// lead makes the first job of a contender that of its first contender.
func (r *Shares) lead(x *Contender) {
	if len(x.kids.list) > 0 {
		x.First = x.kids.list[0].First
	} else if x.kids.shares != nil {
		x.First = nil
	}
}

// Next returns the contender with the next job of all; nil when no job is left.
func (r *Shares) Next() *Contender {
	if r.Root.First == nil {
		return nil
	}
	x := &r.Root
	for len(x.kids.list) > 0 {
		x = x.kids.list[0]
	}
	return x
}

// Charge adds a job to the held capacity of the contender and of all above.
func (r *Shares) Charge(x *Contender, e *Entry) {
	r.join(e)
	penalty := r.policy.entry(e.Class.All)
	for ; x != &r.Root; x = x.Parent {
		x.Held.add(e.Class.All, e.Preemptible, 1)
		x.Past = x.Past.Plus(penalty, 1)
	}
}

// settle puts a contender that has moved on, and those above it, where they belong.
func (r *Shares) settle(x *Contender) {
	for x != &r.Root {
		p := x.Parent
		if x.First == nil {
			heap.Remove(&p.kids, x.index)
		} else {
			r.weigh(x)
			heap.Fix(&p.kids, x.index)
		}
		r.lead(p)
		x = p
	}
}

// Discharge removes a stopping job from the shares of its accounts. Limits still count
// it.
func (r *Shares) Discharge(h *cluster.Holder) {
	for x := r.Contenders[h.Owner.Account]; x != &r.Root; x = x.Parent {
		x.Held.add(berth.Capacity{}.Sub(h.Capacity), h.Preemptible, -1)
		x.going.add(h.Capacity, h.Preemptible, 1)
		if x.First != nil {
			r.weigh(x)
			heap.Fix(&x.Parent.kids, x.index)
			r.lead(x.Parent)
		}
	}
}

// Shares is the tree of accounts in one plan: each holds capacity, and the next
// job of each competes for the turn.
type Shares struct {
	*cluster.Moment
	policy     *Policy
	queue      *Queue
	Root       Contender
	Contenders []*Contender // by Account.Index
	Own        []*Contender // the contender of the account's own jobs, by its index
	Owned      Amounts      // of the cluster

	siblings   map[berth.JobID]int // elements that this plan gives room to, by parent
	quotas     bool                // some account has a limit
	Guarantees bool                // some account has a guarantee
}

// NewShares returns the shares of a plan. owned is the capacity of the cluster.
func NewShares(at *cluster.Moment, policy *Policy, q *Queue, owned Amounts) *Shares {
	r := &Shares{
		Moment: at, policy: policy, queue: q, Owned: owned,
		Contenders: make([]*Contender, 1+len(q.accounts)), Own: make([]*Contender, 1+len(q.accounts)),
	}
	for _, a := range q.accounts {
		r.quotas = r.quotas || a.limited()
		r.Guarantees = r.Guarantees || a.guaranteed()
	}
	return r
}

// Unbarred returns the shares of another plan for the same accounts, for a walk that
// no quota stops.
func (r *Shares) Unbarred(at *cluster.Moment) *Shares {
	return &Shares{
		Moment: at, policy: r.policy, queue: r.queue, Owned: r.Owned,
		Contenders: make([]*Contender, len(r.Contenders)), Own: make([]*Contender, len(r.Own)),
	}
}

// regroup calls change with each contender that has jobs left, then sorts all
// contenders again.
func (r *Shares) regroup(above *Contender, change func(*Contender)) {
	list := above.kids.list[:0]
	for _, x := range above.kids.list {
		if x.kids.shares != nil {
			r.regroup(x, change)
		} else {
			change(x)
		}
		r.weigh(x)
		if x.First != nil {
			x.index = len(list)
			list = append(list, x)
		}
	}
	above.kids.list = list
	heap.Init(&above.kids)
	r.lead(above)
}

// Siblings returns the ancestors of two contenders below their nearest common one, or
// the contenders themselves. They are nil if one contender is above the other, or both
// are the same.
func Siblings(a, b *Contender) (x, y *Contender) {
	for x = a; x.Parent != nil; x = x.Parent {
		for y = b; y.Parent != nil; y = y.Parent {
			if x.Parent == y.Parent && x != y {
				return x, y
			}
			if x == y {
				return nil, nil
			}
		}
	}
	return nil, nil
}

// Shielded reports whether a tenant, or one between it and top, holds no more than its
// guarantee.
func Shielded(x, top *Contender) bool {
	for ; x != nil; x = x.Parent {
		if a := x.Account; a.Known && a.guaranteed() && !a.Borrows(x.Held.Capacity) {
			return true
		}
		if x == top {
			break
		}
	}
	return false
}

// Covers reports whether the amounts are enough for others, resource by resource.
func (x Amounts) Covers(y Amounts) bool {
	for i := range x {
		if y[i] > 0 && x[i] < y[i] {
			return false
		}
	}
	return true
}
