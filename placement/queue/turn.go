package queue

import (
	"container/heap"
	"slices"

	"berth/placement/cluster"
)

// lineHeap is a heap of lines by the next job of each.
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

// Turn is the walk over the queue: it knows the next job of each contender.
type Turn struct {
	*cluster.Moment
	shares  *Shares
	queue   *Queue
	pruner  Passer // nil: no job is passed over
	Bygone  ClassSet
	Skipped int // lines passed over since the pruner has narrowed
}

// Passer decides which jobs the turn passes over.
type Passer interface {
	Closed(*cluster.Class) bool // no job of the class is worth a look in this plan
	Useless(*Entry) bool        // this job is not
}

// NewTurn returns the walk of a plan. Open has to follow.
func NewTurn(r *Shares) *Turn {
	return &Turn{Moment: r.Moment, shares: r, queue: r.queue, Bygone: NewClassSet(r.queue)}
}

// PassBy sets the decision about jobs to pass over.
func (r *Turn) PassBy(p Passer) { r.pruner = p }

// Open makes the contenders of all accounts, and divides the cluster among them.
func (r *Turn) Open() {
	r.openBelow(&r.shares.Root, r.queue.top)
	r.shares.divide()
}

// openBelow makes the contenders of accounts and puts those with jobs into the heap.
func (r *Turn) openBelow(parent *Contender, accounts []*Account) {
	parent.kids.shares = r.shares
	for _, a := range accounts {
		x := &Contender{Account: a, Parent: parent, Held: a.held, Past: r.shares.policy.past(a.Usage, r.Now)}
		r.shares.Contenders[a.Index] = x
		if len(a.kids) > 0 {
			own := &Contender{Account: a, own: true, Parent: x, Held: a.own, Past: x.Past}
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

// begin readies a contender's jobs for the plan.
func (r *Turn) begin(x *Contender) {
	x.lines = x.Account.order
	r.fetch(x)
}

// fetch finds the contender's next job among the lines it has begun and those it has
// not.
func (r *Turn) fetch(x *Contender) {
	for {
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

// pass goes past the lines whose jobs are passed over, which stays so for the
// rest of the plan.
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

// ClassSet has classes, by their numbers.
type ClassSet []uint64

// NewClassSet returns an empty set for the classes of a queue.
func NewClassSet(q *Queue) ClassSet { return make(ClassSet, (len(q.classes)+63)/64) }

// Has reports whether a class is in the set.
func (s ClassSet) Has(number int) bool { return s[number>>6]>>(number&63)&1 != 0 }

// Drop removes a class.
func (s ClassSet) Drop(number int) { s[number>>6] &^= 1 << (number & 63) }

// Put adds a class.
func (s ClassSet) Put(number int) { s[number>>6] |= 1 << (number & 63) }

// lead makes the first job of the lines begun that of the contender.
func (x *Contender) lead() {
	x.First, x.latest = nil, nil
	if len(x.begun) > 0 {
		x.latest = x.begun[0]
		x.First = x.latest.at
	}
}

// enter goes to the line's first job; false if none of it may start now.
func (r *Turn) enter(x *Contender, l *Line) bool {
	l.at, l.enteredAt = l.head, r.Number
	l.over = !r.eligible(x, l)
	return !l.over
}

// next goes to the job after the one that the line is at; at is nil past the end.
func (l *Line) next() {
	switch {
	case l.jobs.Len() == 1:
		l.at = nil
		return
	case l.at == l.head: // most lines are left there, so that only others begin a walk
		l.walk.Begin(&l.jobs)
	}
	l.walk.Next()
	l.at, _ = l.walk.At()
}

// eligible goes to the line's first job from where it is that may start now.
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

// passes reports whether every job of the class is passed over.
func (r *Turn) passes(c *cluster.Class) bool { return r.pruner != nil && r.pruner.Closed(c) }

// shows reports whether the contender's next job shows something although it has no
// place: whether its tenant waits for its quota. That is told by the first job
// that does not start.
func (r *Turn) shows(x *Contender) bool { return r.shares.quotas && !x.Tried }

// skips reports whether jobs of the class are passed over in the contender's lines.
func (r *Turn) skips(x *Contender, c *cluster.Class) bool { return r.passes(c) && !r.shows(x) }

// Step moves the contender on from its first job.
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

// Leave drops the rest of the line that the contender's first job is of.
func (r *Turn) Leave(x *Contender) {
	x.latest.over = true
	heap.Pop(&x.begun)
	r.fetch(x)
	r.shares.settle(x)
}

// Quit drops all that is left of the contender.
func (r *Turn) Quit(x *Contender) {
	x.begun, x.lines = nil, nil
	x.lead()
	r.shares.settle(x)
}

// stays reports whether the contender's next job is looked at although its class has
// no place: for what it shows, or because others of its tenant may not pass it.
func (r *Turn) stays(x *Contender) bool { return r.shows(x) || x.First.Overdue && !x.Tried }

// DropClosed leaves out the lines of closed classes among the lines that are begun.
func (r *Turn) DropClosed() {
	r.shares.regroup(&r.shares.Root, func(x *Contender) {
		x.begun = slices.DeleteFunc(x.begun, func(l *Line) bool {
			return r.passes(l.class) && !(l == x.latest && r.stays(x))
		})
		heap.Init(&x.begun)
		r.fetch(x)
	})
}

// KeepOnly begins the lines of these classes and leaves out all others.
func (r *Turn) KeepOnly(classes []*cluster.Class) {
	for _, c := range classes {
		for _, l := range r.queue.Of(c).Lines {
			x := r.shares.Own[l.account.Index]
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
