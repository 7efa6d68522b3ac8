package queue

import (
	"cmp"
	"container/heap"
	"math"
	"time"

	"berth"
	"berth/placement/cluster"
)

// Contender is an account in a plan: the capacity that the account holds as the plan
// proceeds, and the next of its jobs. Contenders form the same tree as the accounts. An
// account with accounts below has one more contender for its own jobs, a sibling of its
// children.
type Contender struct {
	Account *Account
	own     bool // for the account's own jobs, next to the accounts below
	Parent  *Contender
	kids    contenders // heap of the contenders below that have jobs left
	index   int        // in Parent.kids

	Held  Holding // with the starts of this plan, without stopping jobs and jobs that give way
	going Holding // by jobs that this plan stops, or that give way: quotas count these until the end
	Past  Amounts // past use, as capacity held
	share float64 // dominant share over weight, with half of the next job

	lines  []stand  // lines that the walk has not entered yet, in order
	begun  lineHeap // lines that the walk has entered, by their next jobs
	rest   lineHeap // lines that KeepOnly keeps
	latest *Line    // line of First
	First  *Entry   // next job of the contender; nil: none left
	Tried  bool     // a job of the contender had no room or was barred
	within bool     // with First the account stays within its guarantee

	Part        float64 // of the cluster, by weight among contenders that hold capacity or wait
	Pressing    bool    // First is overdue, and the account holds less than Part
	reserved    Amounts // part of Held that overdue jobs have reserved
	reservedFor *Entry  // first of these jobs
}

// Amounts holds the resources that count in shares: CPU (thousandths of a core), memory
// (MiB) and GPU (thousandths of a device).
type Amounts [3]float64

// AmountsOf returns the resources of a capacity that count in shares.
func AmountsOf(c berth.Capacity) Amounts {
	return Amounts{float64(c.CPUMilli), float64(c.MemoryMiB), float64(c.GPUMilli)}
}

// Plus returns the sum of x and times y; x itself stays unchanged.
func (x Amounts) Plus(y Amounts, times float64) Amounts {
	for i := range x {
		x[i] += y[i] * times
	}
	return x
}

// Dominant returns the dominant share: the largest share of any one resource of the
// cluster's amounts.
func (x Amounts) Dominant(of Amounts) float64 {
	share := 0.0
	for i := range x {
		if of[i] > 0 {
			share = max(share, x[i]/of[i])
		}
	}
	return share
}

// past converts decayed use into amounts held: the decayed use of a tenant that has always
// held x converges to x times tau, where tau is the mean lifetime of use under the
// half-life.
func (p *Policy) past(u Usage, now time.Time) Amounts {
	if p.HalfLife <= 0 {
		return Amounts{}
	}
	u, tau := u.Decayed(now, p.HalfLife), p.HalfLife.Seconds()/math.Ln2
	return Amounts{u.CPU * 1000 / tau, u.MemoryMiB / tau, u.GPU * 1000 / tau}
}

// entry returns the entry penalty of a start with capacity c, as amounts held.
func (p *Policy) entry(c berth.Capacity) Amounts {
	if p.HalfLife <= 0 {
		return Amounts{}
	}
	return Amounts{}.Plus(AmountsOf(c), p.EntryPenalty.Seconds()*math.Ln2/p.HalfLife.Seconds())
}

// contenders is a heap of siblings by compareContenders.
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

// compareContenders orders two siblings; both must have jobs left. In fair order the keys
// are: the band of the next job, within the guarantee first, overdue jobs with a claim to
// their tenant's part first, and the least share. The other orders compare the next jobs
// alone, over all tenants.
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
	return cmp.Or(r.compareAged(x, y), CompareEntries(x, y))
}

// compareAged orders jobs of one band by their age in order Priority; 0 leaves the order to CompareEntries.
//
// A job ages by its account's clock, so the time that an account spent at its limits counts against its job's age. It
// cancels out within an account, and therefore is not in Rank.
func (r *Shares) compareAged(x, y *Entry) int {
	if r.policy.Aging <= 0 || x.Band != y.Band || x.Overdue || y.Overdue || r.policy.Order != Priority {
		return 0
	}
	return cmp.Compare(x.Rank+r.stalled(x).Seconds(), y.Rank+r.stalled(y).Seconds())
}

// stalled returns the time that the account of a job has spent at its limits.
func (r *Shares) stalled(e *Entry) time.Duration {
	return e.tally.account.stalledFor(r.Now)
}

// weigh computes a contender's share, and whether the next job presses or stays within the
// guarantee.
//
// The share counts half of the next job, as Webster's method of apportionment does:
// counting none of the job favors accounts of little weight, and counting the whole job
// favors accounts of much weight.
func (r *Shares) weigh(x *Contender) {
	amounts := AmountsOf(x.Held.Capacity).Plus(x.Past, 1)
	if x.First != nil {
		amounts = amounts.Plus(AmountsOf(x.First.Class.All), 0.5)
	}
	x.share = amounts.Dominant(r.Owned) / x.weight()
	x.Pressing = x.First != nil && x.First.Overdue && AmountsOf(x.Held.Capacity).Dominant(r.Owned) < x.Part
	x.within = x.First != nil && !x.own && x.Account.Guarantees(x.Held.Capacity, x.First.Class.All)
}

// divide sets the Part of each contender: its parent's part, divided by weight among the
// siblings that hold capacity or have jobs. Only overdue jobs in fair order use parts;
// without these divide returns at once.
func (r *Shares) divide() {
	if r.policy.Overdue <= 0 || r.policy.Order != Fair {
		return
	}
	sums := map[*Contender]float64{}
	// Own[i] is the same contender where the account has no accounts below.
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
	// Pressing depends on Part, so every contender is weighed again.
	r.regroup(&r.Root, func(*Contender) {})
}

// counts reports whether the contender takes part in the division of the cluster.
func (x *Contender) counts() bool { return x.First != nil || x.Held.Jobs > 0 }

// weight returns the weight of a contender among its siblings. The jobs of an account
// itself weigh 1 next to the accounts below.
func (x *Contender) weight() float64 {
	if x.own {
		return 1
	}
	return x.Account.ShareWeight()
}

// lead sets the next job of an inner contender to the next job of its first child. A
// contender without a heap of children keeps its own next job.
func (r *Shares) lead(x *Contender) {
	if len(x.kids.list) > 0 {
		x.First = x.kids.list[0].First
	} else if x.kids.shares != nil {
		x.First = nil
	}
}

// Next returns the contender with the next job in queue order, at the end of the path of
// first children; nil if no job is left.
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

// Charge adds a job and its entry penalty to the contender and all its ancestors. Reserved
// starts and jobs that wait for their victims are charged as well. The caller then moves
// the turn on, which puts the contender at its new place.
func (r *Shares) Charge(x *Contender, e *Entry) {
	r.join(e)
	penalty := r.policy.entry(e.Class.All)
	for ; x != &r.Root; x = x.Parent {
		x.Held.add(e.Class.All, e.Preemptible, 1)
		x.Past = x.Past.Plus(penalty, 1)
	}
}

// settle restores the heaps after the next job of a contender has changed, from the
// contender up to the root. A contender without jobs leaves the heap of its parent.
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

// Discharge removes a stopping job from the shares of its account and all ancestors, and
// restores their heaps. Quotas still count the job, since it holds its capacity until it
// has ended.
func (r *Shares) Discharge(h *cluster.Holder) {
	if cluster.GivesWay(h.Priority) {
		return // it is in no share, see SetAside
	}
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

// Shares is the tree of accounts in one plan. Each account holds capacity, and the next
// jobs of siblings compete.
//
// All contenders are rebuilt for each plan from the accounts of the queue, which the plan
// does not change.
type Shares struct {
	*cluster.Moment
	policy     *Policy
	queue      *Queue
	Root       Contender
	Contenders []*Contender // by Account.Index
	Own        []*Contender // contender for the account's own jobs, by Account.Index
	Owned      Amounts      // total of the cluster

	aside      map[*Account]aside  // see SetAside
	siblings   map[berth.JobID]int // elements that this plan gives capacity, by array
	quotas     bool                // some account has a quota
	Guarantees bool                // some account has a guarantee
}

// aside is the holding of jobs that give way to every other job: by the account with its descendants, and by its own
// jobs.
type aside struct{ all, own Holding }

// SetAside takes running jobs that give way out of the shares of their accounts. Otherwise the tenant of such a job
// would defer to others for its sake, and leave the job in place. Quotas count the jobs. The caller opens the turn
// afterwards.
func (r *Shares) SetAside(running map[berth.JobID]*cluster.Holder) {
	r.aside = map[*Account]aside{}
	for _, h := range running {
		if !cluster.GivesWay(h.Priority) {
			continue
		}
		first := r.queue.Account(h.Tenant)
		for a := first; a != nil; a = a.parent {
			x := r.aside[a]
			x.all.add(h.Capacity, h.Preemptible, 1)
			if a == first {
				x.own.add(h.Capacity, h.Preemptible, 1)
			}
			r.aside[a] = x
		}
	}
}

// NewShares returns the shares of a plan, still without contenders; see Turn.Open. owned is
// the total capacity of the cluster.
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

// Unbarred returns the shares of another plan for the same accounts, for a walk that no
// quota stops. Estimates use it.
func (r *Shares) Unbarred(at *cluster.Moment) *Shares {
	return &Shares{
		Moment: at, policy: r.policy, queue: r.queue, Owned: r.Owned, aside: r.aside,
		Contenders: make([]*Contender, len(r.Contenders)), Own: make([]*Contender, len(r.Own)),
	}
}

// regroup calls change with each leaf contender below above that has jobs left, then weighs
// and sorts all contenders again. Contenders that have no job after change leave their
// heaps.
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

// Siblings returns the two ancestors of a and b, or a and b themselves, that are children
// of their nearest common ancestor. Both results are nil if one contender is above the
// other, or both are the same.
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

// Shielded reports whether a tenant, or one of its ancestors up to and including top, has a
// guarantee and borrows nothing beyond.
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

// Covers reports whether x is at least y in every resource that y contains.
func (x Amounts) Covers(y Amounts) bool {
	for i := range x {
		if y[i] > 0 && x[i] < y[i] {
			return false
		}
	}
	return true
}
