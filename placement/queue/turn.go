package queue

import (
	"container/heap"
	"slices"

	"berth/placement/cluster"
)

// lineHeap is a heap of entered lines by their next jobs, in queue order.
type lineHeap []*Line

func (h lineHeap) Len() int { return len(h) }

func (h lineHeap) Less(i, j int) bool { return CompareEntries(h[i].at, h[j].at) < 0 }

func (h lineHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }

func (h *lineHeap) Push(x any) { *h = append(*h, x.(*Line)) }

func (h *lineHeap) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return x
}

// Turn is the walk of one plan over the queue. It maintains the next job of each contender,
// while Shares orders the contenders.
//
// A contender's lines are in two parts: lines that the walk has not entered, sorted by
// their first jobs, and a heap of entered lines. The next job is the least of both. Most
// lines are never entered, so a plan reads few of the waiting jobs.
type Turn struct {
	*cluster.Moment
	shares  *Shares
	queue   *Queue
	pruner  Passer   // nil: the walk passes over no job
	Bygone  ClassSet // classes without a possible start in the rest of the plan
	Skipped int      // lines passed over since the pruner last narrowed the walk
}

// Passer decides which jobs the turn passes over: jobs without a possible start, reserved
// start or preemption in this plan.
type Passer interface {
	Closed(*cluster.Class) bool // no job of the class can be decided in this plan
	Useless(*Entry) bool        // this job cannot be decided in this plan
}

// NewTurn returns the walk of a plan. The caller calls Open before all other methods except
// PassBy.
func NewTurn(r *Shares) *Turn {
	return &Turn{Moment: r.Moment, shares: r, queue: r.queue, Bygone: NewClassSet(r.queue)}
}

// PassBy sets the Passer.
func (r *Turn) PassBy(p Passer) { r.pruner = p }

// Open creates the contenders of all accounts and divides the cluster by weight.
func (r *Turn) Open() {
	r.openBelow(&r.shares.Root, r.queue.top)
	r.shares.divide()
}

// openBelow creates the contenders of accounts and their descendants, and puts each
// contender with jobs into the heap of its parent. Past use of descendants counts for their
// ancestors.
func (r *Turn) openBelow(parent *Contender, accounts []*Account) {
	parent.kids.shares = r.shares
	for _, a := range accounts {
		yielding := r.shares.aside[a]
		x := &Contender{Account: a, Parent: parent, Held: a.held.less(yielding.all), going: yielding.all,
			Past: r.shares.policy.past(a.Usage, r.Now)}
		r.shares.Contenders[a.Index] = x
		if len(a.kids) > 0 {
			own := &Contender{Account: a, own: true, Parent: x, Held: a.own.less(yielding.own), Past: x.Past}
			x.kids.list = append(x.kids.list, own)
			r.shares.Own[a.Index] = own
			r.begin(own)
			r.openBelow(x, a.kids)
			for _, k := range a.kids {
				x.Past = x.Past.Plus(r.shares.Contenders[k.Index].Past, 1)
			}
		} else {
			r.shares.Own[a.Index] = x
			r.begin(x)
		}
		parent.kids.list = append(parent.kids.list, x)
	}
	list := parent.kids.list[:0]
	for _, x := range parent.kids.list {
		r.shares.weigh(x)
		if x.First != nil {
			x.index = len(list)
			list = append(list, x)
		}
	}
	parent.kids.list = list
	heap.Init(&parent.kids)
	r.shares.lead(parent)
}

// begin prepares a leaf contender's lines for the plan and finds the first job.
func (r *Turn) begin(x *Contender) {
	x.lines = x.Account.order
	r.fetch(x)
}

// fetch sets the contender's next job: the least of the entered lines and the first line
// that the walk has not entered. It drops lines of closed classes and enters lines until
// the next job is known.
func (r *Turn) fetch(x *Contender) {
	for {
		// An overdue job is decided even in a closed class, if it is the contender's first
		// job: younger jobs of its tenant may have to wait for it.
		for len(x.begun) > 0 && r.skips(x, x.begun[0].class) && !(x.begun[0].at.Overdue && !x.Tried) {
			x.begun[0].over = true
			heap.Pop(&x.begun)
		}
		r.pass(x)
		if len(x.lines) == 0 {
			break
		}
		l := x.lines[0].line
		if len(x.begun) > 0 {
			if CompareEntries(x.begun[0].at, l.head) < 0 {
				break
			}
		}
		x.lines = x.lines[1:]
		if r.enter(x, l) {
			heap.Push(&x.begun, l)
		}
	}
	x.lead()
}

// pass drops the lines of closed classes before the first open one. A closed class stays
// closed for the rest of the plan.
func (r *Turn) pass(x *Contender) {
	if r.shows(x) {
		return
	}
	i, classes := 0, r.queue.classes
	for i < len(x.lines) {
		if n := x.lines[i].class(); !r.Bygone.Has(n) && !r.passes(classes[n].class) {
			break
		}
		i++
	}
	x.lines = x.lines[i:]
	r.Skipped += i
}

// ClassSet is a set of classes, as a bitmap by Class.Number.
type ClassSet []uint64

// NewClassSet returns an empty set for the classes of a queue.
func NewClassSet(q *Queue) ClassSet { return make(ClassSet, (len(q.classes)+63)/64) }

// Has reports whether a class is in the set.
func (s ClassSet) Has(number int) bool { return s[number>>6]>>(number&63)&1 != 0 }

// Drop removes a class.
func (s ClassSet) Drop(number int) { s[number>>6] &^= 1 << (number & 63) }

// Put adds a class.
func (s ClassSet) Put(number int) { s[number>>6] |= 1 << (number & 63) }

// lead sets the contender's next job from its entered lines.
func (x *Contender) lead() {
	x.First, x.latest = nil, nil
	if len(x.begun) > 0 {
		x.latest = x.begun[0]
		x.First = x.latest.at
	}
}

// enter moves a line to its first job that may start now. It returns false for a line
// without such a job.
func (r *Turn) enter(x *Contender, l *Line) bool {
	l.at, l.enteredAt = l.head, r.Number
	l.over = !r.eligible(x, l)
	return !l.over
}

// next moves the line to its next job; at is nil past the end.
func (l *Line) next() {
	switch {
	case l.jobs.Len() == 1:
		l.at = nil
		return
	case l.at == l.head: // most walks end at the first job and need no cursor
		l.walk.Begin(&l.jobs)
	}
	l.walk.Next()
	l.at, _ = l.walk.At()
}

// eligible moves the line forward, from its present job, to the first job that may start
// now. Such a job is eligible, its queue deadline has not passed, its parent's limit of
// running elements leaves room, and the pruner does not pass over it. eligible returns
// false if no such job is left.
func (r *Turn) eligible(x *Contender, l *Line) bool {
	for ; l.at != nil; l.next() {
		e := l.at
		if !r.shows(x) && r.pruner != nil && r.pruner.Useless(e) || r.shares.Full(e) {
			continue
		}
		if !e.EligibleAt.After(r.Now) && (e.QueueDeadline.IsZero() || e.QueueDeadline.After(r.Now)) {
			return true
		}
	}
	return false
}

// passes reports whether the walk passes over every job of the class.
func (r *Turn) passes(c *cluster.Class) bool { return r.pruner != nil && r.pruner.Closed(c) }

// shows reports whether the plan must decide the contender's next job even without room, to
// learn whether the tenant waits for its quotas alone (Plan.Stalled). The contender's first
// job that does not start answers this.
func (r *Turn) shows(x *Contender) bool { return r.shares.quotas && !x.Tried }

// skips reports whether the walk passes over jobs of the class in the contender's lines.
func (r *Turn) skips(x *Contender, c *cluster.Class) bool { return r.passes(c) && !r.shows(x) }

// Step moves the contender on from its present job to the next one.
func (r *Turn) Step(x *Contender) {
	l := x.latest
	l.next()
	if !r.skips(x, l.class) && r.eligible(x, l) {
		heap.Fix(&x.begun, 0)
		r.fetch(x)
		r.shares.settle(x)
		return
	}
	r.Leave(x)
}

// Leave drops the rest of the contender's present line for this plan.
func (r *Turn) Leave(x *Contender) {
	x.latest.over = true
	heap.Pop(&x.begun)
	r.fetch(x)
	r.shares.settle(x)
}

// Quit drops all remaining jobs of the contender for this plan.
func (r *Turn) Quit(x *Contender) {
	x.begun, x.lines = nil, nil
	x.lead()
	r.shares.settle(x)
}

// stays reports whether the contender's next job is decided although its class is closed,
// because of shows, or because the job is overdue and younger jobs of its tenant may have
// to wait.
func (r *Turn) stays(x *Contender) bool { return r.shows(x) || x.First.Overdue && !x.Tried }

// DropClosed drops the entered lines of closed classes. Lines that are not entered yet are
// dropped by fetch. It suits a walk in which many lines stay open; see KeepOnly.
func (r *Turn) DropClosed() {
	r.shares.regroup(&r.shares.Root, func(x *Contender) {
		x.begun = slices.DeleteFunc(x.begun, func(l *Line) bool {
			return r.passes(l.class) && !(l == x.latest && r.stays(x))
		})
		heap.Init(&x.begun)
		r.fetch(x)
	})
}

// KeepOnly enters all lines of the given classes and drops all other lines. With few
// classes left, that is cheaper than passing over all lines of the other classes.
func (r *Turn) KeepOnly(classes []*cluster.Class) {
	for _, c := range classes {
		for _, l := range r.queue.Of(c).Lines {
			x := r.shares.Own[l.account.Index]
			// A line that the walk has entered stays at its job, unless the plan is done
			// with it.
			if l.enteredAt != r.Number && r.enter(x, l) || l.enteredAt == r.Number && !l.over {
				x.rest = append(x.rest, l)
			}
		}
	}
	r.shares.regroup(&r.shares.Root, func(x *Contender) {
		if r.stays(x) && !slices.Contains(x.rest, x.latest) {
			x.rest = append(x.rest, x.latest)
		}
		x.begun, x.rest, x.lines = x.rest, nil, nil
		heap.Init(&x.begun)
		x.lead()
	})
}
