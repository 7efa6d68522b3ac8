package placement

import (
	"container/heap"
	"time"
)

// spots is a heap of lines by the next job of each.
type spots []*line

func (h spots) Len() int           { return len(h) }
func (h spots) Less(i, j int) bool { return compareEntries(h[i].at, h[j].at) < 0 }
func (h spots) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *spots) Push(x any)        { *h = append(*h, x.(*line)) }
func (h *spots) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return x
}

// open readies a seat's jobs for the plan.
func (r *run) open(x *seat) {
	x.lines = x.account.order
	r.fetch(x)
}

// fetch finds the seat's next job among the lines it has begun and those it has
// not.
func (r *run) fetch(x *seat) {
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
func (r *run) pass(x *seat) {
	if r.shows(x) {
		return
	}
	i, classes := 0, r.snapshot.numbered
	for i < len(x.lines) {
		if n := x.lines[i].class(); !r.bygone.has(n) && !r.closed(classes[n]) {
			break
		}
		i++
	}
	x.lines = x.lines[i:]
	r.skipped += i
}

// classSet has classes, by their numbers.
type classSet []uint64

func newClassSet(s *Snapshot) classSet { return make(classSet, (len(s.numbered)+63)/64) }

func (s classSet) has(number int) bool { return s[number>>6]>>(number&63)&1 != 0 }

func (s classSet) put(number int) { s[number>>6] |= 1 << (number & 63) }

// lead makes the first job of the lines begun that of the seat.
func (x *seat) lead() {
	x.first, x.latest = nil, nil
	if len(x.begun) > 0 {
		x.latest = x.begun[0]
		x.first = x.latest.at
	}
}

// enter goes to the line's first job; false if none of it may start now.
func (r *run) enter(x *seat, l *line) bool {
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
func (r *run) eligible(x *seat, l *line) bool {
	for ; l.at != nil; l.next() {
		e := l.at
		if !r.shows(x) && r.useless(e) || r.full(e) {
			continue
		}
		if !e.EligibleAt.After(r.now) && (e.QueueDeadline.IsZero() || e.QueueDeadline.After(r.now)) {
			return true
		}
	}
	return false
}

// shows reports whether the seat's next job shows something although it has no
// place: whether its tenant waits for its quota. That is told by the first job
// that does not start.
func (r *run) shows(x *seat) bool { return r.quotas && !x.tried }

// skips reports whether jobs of the class are passed over in the seat's lines.
func (r *run) skips(x *seat, c *class) bool { return r.closed(c) && !r.shows(x) }

// useless reports whether a job is of a class that had no place and cannot have
// one in room that is held for others either, at a time when nothing else is
// left to do for it.
func (r *run) useless(e *entry) bool {
	c := e.class
	if c.closed != r.number || r.heads < r.policy.Backfill || r.claims > 0 || r.marks[e.ID] != nil {
		return false
	}
	return e.limit <= 0 || r.tooLong(c, e.limit)
}

// closed reports whether no job of the class is worth a look in this plan.
func (r *run) closed(c *class) bool {
	if c.shut == r.number {
		return true
	}
	if c.closed != r.number || c.marked == r.number && r.unmet > 0 || r.heads < r.policy.Backfill || r.claims > 0 {
		return false
	}
	if len(c.limits.list) == 0 || r.tooLong(c, c.limits.list[0].at) || r.fruitless(c) {
		c.shut = r.number
		r.bygone.put(c.number)
		return true
	}
	return false
}

// fruitless looks whether the shortest job of the class fits into room that is
// held for others; if not, no job of it does.
func (r *run) fruitless(c *class) bool {
	if c.probed == r.number {
		return false
	}
	c.probed = r.number
	r.end = r.now.Add(c.limits.list[0].at)
	if _, ok := r.brief(&search{class: c}); ok {
		return false
	}
	c.close(r.number, r.end)
	return true
}

// tooLong reports whether a job of the class that may run for so long cannot be
// over before room that is held for others is needed, or no earlier than one of
// its class that had no place.
func (r *run) tooLong(c *class, limit time.Duration) bool {
	end := r.now.Add(limit)
	return end.After(r.longest) || c.closed == r.number && !c.shorter.IsZero() && !end.Before(c.shorter)
}

// step moves the seat on from its first job.
func (r *run) step(x *seat) {
	l := x.latest
	l.next()
	if !r.skips(x, l.class) && r.eligible(x, l) {
		heap.Fix(&x.begun, 0)
		r.fetch(x)
		r.settle(x)
		return
	}
	r.leave(x)
}

// leave drops the rest of the line that the seat's first job is of.
func (r *run) leave(x *seat) {
	x.latest.over = true
	heap.Pop(&x.begun)
	r.fetch(x)
	r.settle(x)
}

// holdsUp reports whether a job without a place has waited too long for others of
// its tenant to pass it. Those would keep the tenant at its part, and the job from
// ever being among the first, which get a reserved start. Below its part it is
// among them, in its turn.
func (r *run) holdsUp(x *seat, e *entry) bool {
	p := &r.policy
	return e.overdue && !x.pressing && p.Order == Fair && p.Backfill > 0 && r.heads >= p.Backfill && r.possible(e.class)
}

// quit drops all that is left of the seat.
func (r *run) quit(x *seat) {
	x.begun, x.lines = nil, nil
	x.lead()
	r.settle(x)
}
