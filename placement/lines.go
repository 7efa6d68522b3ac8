package placement

import (
	"container/heap"
	"slices"
)

// lineHeap is a heap of lines by the next job of each.
type lineHeap []*line

func (h lineHeap) Len() int           { return len(h) }
func (h lineHeap) Less(i, j int) bool { return compareEntries(h[i].at, h[j].at) < 0 }
func (h lineHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *lineHeap) Push(x any)        { *h = append(*h, x.(*line)) }
func (h *lineHeap) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return x
}

// turn is the walk over the queue: it knows the next job of each contender.
type turn struct {
	*moment
	shares  *shares
	queue   *queue
	pruner  passer // nil: no job is passed over
	bygone  classSet
	skipped int // lines passed over since the pruner has narrowed
}

// passer decides which jobs the turn passes over.
type passer interface {
	closed(*class) bool  // no job of the class is worth a look in this plan
	useless(*entry) bool // this job is not
}

// newTurn returns the walk of a plan. Open has to follow.
func newTurn(r *shares) *turn {
	return &turn{moment: r.moment, shares: r, queue: r.queue, bygone: newClassSet(r.queue)}
}

// passBy sets the decision about jobs to pass over.
func (r *turn) passBy(p passer) { r.pruner = p }

// open makes the contenders of all accounts, and divides the cluster among them.
func (r *turn) open() {
	r.openBelow(&r.shares.root, r.queue.top)
	r.shares.divide()
}

// openBelow makes the contenders of accounts and puts those with jobs into the heap.
func (r *turn) openBelow(parent *contender, accounts []*account) {
	parent.kids.shares = r.shares
	for _, a := range accounts {
		x := &contender{account: a, parent: parent, held: a.held, past: r.shares.policy.past(a.Usage, r.now)}
		r.shares.contenders[a.index] = x
		if len(a.kids) > 0 {
			own := &contender{account: a, own: true, parent: x, held: a.own, past: x.past}
			x.kids.list = append(x.kids.list, own)
			r.shares.own[a.index] = own
			r.begin(own)
			r.openBelow(x, a.kids)
			for _, k := range a.kids {
				x.past = x.past.plus(r.shares.contenders[k.index].past, 1)
			}
		} else {
			r.shares.own[a.index] = x
			r.begin(x)
		}
		parent.kids.list = append(parent.kids.list, x)
	}
	list := parent.kids.list[:0]
	for _, x := range parent.kids.list {
		r.shares.weigh(x)
		if x.first != nil {
			x.index = len(list)
			list = append(list, x)
		}
	}
	parent.kids.list = list
	heap.Init(&parent.kids)
	r.shares.lead(parent)
}

// begin readies a contender's jobs for the plan.
func (r *turn) begin(x *contender) {
	x.lines = x.account.order
	r.fetch(x)
}

// fetch finds the contender's next job among the lines it has begun and those it has
// not.
func (r *turn) fetch(x *contender) {
	for {
		for len(x.begun) > 0 && r.skips(x, x.begun[0].class) && !(x.begun[0].at.overdue && !x.tried) {
			x.begun[0].over = true
			heap.Pop(&x.begun)
		}
		r.pass(x)
		if len(x.lines) == 0 {
			break
		}
		l := x.lines[0].line
		if len(x.begun) > 0 {
			if compareEntries(x.begun[0].at, l.head) < 0 {
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
func (r *turn) pass(x *contender) {
	if r.shows(x) {
		return
	}
	i, classes := 0, r.queue.classes
	for i < len(x.lines) {
		if n := x.lines[i].class(); !r.bygone.has(n) && !r.passes(classes[n].class) {
			break
		}
		i++
	}
	x.lines = x.lines[i:]
	r.skipped += i
}

// classSet has classes, by their numbers.
type classSet []uint64

// newClassSet returns an empty set for the classes of a queue.
func newClassSet(q *queue) classSet { return make(classSet, (len(q.classes)+63)/64) }

// has reports whether a class is in the set.
func (s classSet) has(number int) bool { return s[number>>6]>>(number&63)&1 != 0 }

// drop removes a class.
func (s classSet) drop(number int) { s[number>>6] &^= 1 << (number & 63) }

// put adds a class.
func (s classSet) put(number int) { s[number>>6] |= 1 << (number & 63) }

// lead makes the first job of the lines begun that of the contender.
func (x *contender) lead() {
	x.first, x.latest = nil, nil
	if len(x.begun) > 0 {
		x.latest = x.begun[0]
		x.first = x.latest.at
	}
}

// enter goes to the line's first job; false if none of it may start now.
func (r *turn) enter(x *contender, l *line) bool {
	l.at, l.enteredAt = l.head, r.number
	l.over = !r.eligible(x, l)
	return !l.over
}

// next goes to the job after the one that the line is at; at is nil past the end.
func (l *line) next() {
	switch {
	case l.jobs.len() == 1:
		l.at = nil
		return
	case l.at == l.head: // most lines are left there, so that only others begin a walk
		l.walk.begin(&l.jobs)
	}
	l.walk.next()
	l.at, _ = l.walk.at()
}

// eligible goes to the line's first job from where it is that may start now.
func (r *turn) eligible(x *contender, l *line) bool {
	for ; l.at != nil; l.next() {
		e := l.at
		if !r.shows(x) && r.pruner != nil && r.pruner.useless(e) || r.shares.full(e) {
			continue
		}
		if !e.EligibleAt.After(r.now) && (e.QueueDeadline.IsZero() || e.QueueDeadline.After(r.now)) {
			return true
		}
	}
	return false
}

// passes reports whether every job of the class is passed over.
func (r *turn) passes(c *class) bool { return r.pruner != nil && r.pruner.closed(c) }

// shows reports whether the contender's next job shows something although it has no
// place: whether its tenant waits for its quota. That is told by the first job
// that does not start.
func (r *turn) shows(x *contender) bool { return r.shares.quotas && !x.tried }

// skips reports whether jobs of the class are passed over in the contender's lines.
func (r *turn) skips(x *contender, c *class) bool { return r.passes(c) && !r.shows(x) }

// step moves the contender on from its first job.
func (r *turn) step(x *contender) {
	l := x.latest
	l.next()
	if !r.skips(x, l.class) && r.eligible(x, l) {
		heap.Fix(&x.begun, 0)
		r.fetch(x)
		r.shares.settle(x)
		return
	}
	r.leave(x)
}

// leave drops the rest of the line that the contender's first job is of.
func (r *turn) leave(x *contender) {
	x.latest.over = true
	heap.Pop(&x.begun)
	r.fetch(x)
	r.shares.settle(x)
}

// quit drops all that is left of the contender.
func (r *turn) quit(x *contender) {
	x.begun, x.lines = nil, nil
	x.lead()
	r.shares.settle(x)
}

// stays reports whether the contender's next job is looked at although its class has
// no place: for what it shows, or because others of its tenant may not pass it.
func (r *turn) stays(x *contender) bool { return r.shows(x) || x.first.overdue && !x.tried }

// dropClosed leaves out the lines of closed classes among the lines that are begun.
func (r *turn) dropClosed() {
	r.shares.regroup(&r.shares.root, func(x *contender) {
		x.begun = slices.DeleteFunc(x.begun, func(l *line) bool {
			return r.passes(l.class) && !(l == x.latest && r.stays(x))
		})
		heap.Init(&x.begun)
		r.fetch(x)
	})
}

// keepOnly begins the lines of these classes and leaves out all others.
func (r *turn) keepOnly(classes []*class) {
	for _, c := range classes {
		for _, l := range r.queue.of(c).lines {
			x := r.shares.own[l.account.index]
			if l.enteredAt != r.number && r.enter(x, l) || l.enteredAt == r.number && !l.over {
				x.rest = append(x.rest, l)
			}
		}
	}
	r.shares.regroup(&r.shares.root, func(x *contender) {
		if r.stays(x) && !slices.Contains(x.rest, x.latest) {
			x.rest = append(x.rest, x.latest)
		}
		x.begun, x.rest, x.lines = x.rest, nil, nil
		heap.Init(&x.begun)
		x.lead()
	})
}
