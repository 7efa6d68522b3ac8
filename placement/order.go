package placement

import (
	"cmp"
	"container/heap"
	"math"
	"time"

	"berth"
)

// seat is an account in a plan: what it holds as the plan goes on, and which of
// its jobs comes next. Seats form the tree that the accounts form; one with
// seats below it has no jobs of its own, those sit in a seat beside its others.
type seat struct {
	account *account
	own     bool // the account's own jobs, where it has accounts below
	parent  *seat
	kids    seats // a heap
	index   int   // in parent.kids

	held  holding
	going holding // by jobs that this plan tells to stop: limits count it until they have
	past  amounts // use that still counts, as if it were held
	share float64 // dominant, over weight, with half of the next job

	lines  []stand // those not begun
	begun  spots   // a heap of those begun
	rest   spots   // those that narrow leaves
	latest *line   // that first came from
	first  *entry  // next of the seat's jobs; nil: none left
	tried  bool    // a job of it had no room or was barred already
	within bool    // with it the account holds no more than its guarantee

	part     float64 // of the cluster, by weight among those that hold something or wait
	pressing bool    // the next job is overdue, and the account holds less than its part
	vowed    amounts // of held, what overdue jobs have reserved
	vowedTo  *entry  // the first of them
}

// amounts are those resources of which shares are told.
type amounts [3]float64

func amountsOf(c berth.Capacity) amounts {
	return amounts{float64(c.CPUMilli), float64(c.MemoryMiB), float64(c.GPUMilli)}
}

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

// seats is a heap by who is next.
type seats struct {
	list []*seat
	run  *run
}

func (h *seats) Len() int           { return len(h.list) }
func (h *seats) Less(i, j int) bool { return h.run.comparesSeats(h.list[i], h.list[j]) < 0 }
func (h *seats) Swap(i, j int) {
	h.list[i], h.list[j] = h.list[j], h.list[i]
	h.list[i].index, h.list[j].index = i, j
}
func (h *seats) Push(any) { panic("placement: seats are not pushed") }
func (h *seats) Pop() any {
	last := len(h.list) - 1
	x := h.list[last]
	h.list = h.list[:last]
	return x
}

// comparesSeats orders two seats below one. Both have jobs.
func (r *run) comparesSeats(a, b *seat) int {
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

func (r *run) stalled(e *entry) time.Duration {
	return e.tally.account.stalledFor(r.now)
}

// seat makes the seats of accounts and puts those with jobs into the heap.
func (r *run) seat(parent *seat, accounts []*account) {
	parent.kids.run = r
	for _, a := range accounts {
		x := &seat{account: a, parent: parent, held: a.held, past: r.policy.past(a.Usage, r.now)}
		r.seats[a.index] = x
		if len(a.kids) > 0 {
			own := &seat{account: a, own: true, parent: x, held: a.own, past: x.past}
			x.kids.list = append(x.kids.list, own)
			r.sits[a.index] = own
			r.open(own)
			r.seat(x, a.kids)
			for _, k := range a.kids {
				x.past = x.past.plus(r.seats[k.index].past, 1)
			}
		} else {
			r.sits[a.index] = x
			r.open(x)
		}
		parent.kids.list = append(parent.kids.list, x)
	}
	list := parent.kids.list[:0]
	for _, x := range parent.kids.list {
		r.weigh(x)
		if x.first != nil {
			x.index = len(list)
			list = append(list, x)
		}
	}
	parent.kids.list = list
	heap.Init(&parent.kids)
	r.lead(parent)
}

// weigh works out a seat's share and whether its next job is within the
// guarantee. The share counts half of the next job, as Webster's method of
// dividing seats does: counting none of it favours those of little weight, and
// counting all of it those of much.
func (r *run) weigh(x *seat) {
	amounts := amountsOf(x.held.Capacity).plus(x.past, 1)
	if x.first != nil {
		amounts = amounts.plus(amountsOf(x.first.class.all), 0.5)
	}
	x.share = amounts.dominant(r.owned) / x.weight()
	x.pressing = x.first != nil && x.first.overdue && amountsOf(x.held.Capacity).dominant(r.owned) < x.part
	x.within = x.first != nil && !x.own && x.account.guarantees(x.held.Capacity, x.first.class.all)
}

// divide gives the seats below one their parts of its own, if overdue jobs are to
// press by them.
func (r *run) divide() {
	if r.policy.Overdue <= 0 || r.policy.Order != Fair {
		return
	}
	sums := map[*seat]float64{}
	each := func(f func(*seat)) {
		for i, x := range r.seats {
			if f(x); r.sits[i] != x {
				f(r.sits[i])
			}
		}
	}
	each(func(x *seat) {
		if x.counts() {
			sums[x.parent] += x.weight()
		}
	})
	each(func(x *seat) {
		x.part = 1
		for y := x; y != &r.root; y = y.parent {
			if y.counts() {
				x.part *= y.weight() / sums[y.parent]
			}
		}
	})
	r.reseat(&r.root, func(*seat) {})
}

// counts reports whether the seat takes part in dividing the cluster.
func (x *seat) counts() bool { return x.first != nil || x.held.jobs > 0 }

// weight of a seat among those beside it.
func (x *seat) weight() float64 {
	if x.own {
		return 1
	}
	return x.account.weight()
}

// lead makes the first job of a seat that of its first seat.
func (r *run) lead(x *seat) {
	if len(x.kids.list) > 0 {
		x.first = x.kids.list[0].first
	} else if x.kids.run != nil {
		x.first = nil
	}
}

// next is the seat whose first job is next of all; nil when there is none.
func (r *run) next() *seat {
	if r.root.first == nil {
		return nil
	}
	x := &r.root
	for len(x.kids.list) > 0 {
		x = x.kids.list[0]
	}
	return x
}

// charge makes a job of the seat count as held by it and those above it.
func (r *run) charge(x *seat, e *entry) {
	r.join(e)
	penalty := r.policy.entry(e.class.all)
	for ; x != &r.root; x = x.parent {
		x.held.add(e.class.all, e.Preemptible, 1)
		x.past = x.past.plus(penalty, 1)
	}
}

// settle puts a seat that has moved on, and those above it, where they belong.
func (r *run) settle(x *seat) {
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
