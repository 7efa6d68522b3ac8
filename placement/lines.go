package placement

import "container/heap"

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
	x.lines.begin(&x.account.ready)
	r.fetch(x)
}

// fetch finds the seat's next job among the lines it has begun and those it has
// not.
func (r *run) fetch(x *seat) {
	for {
		l, ok := x.lines.at()
		if !ok {
			break
		}
		if r.closed(l.class) {
			x.lines.next() // and stays so for the rest of the plan
			continue
		}
		if len(x.begun) > 0 {
			if first, _ := l.jobs.first(); compareEntries(x.begun[0].at, first) < 0 {
				break
			}
		}
		x.lines.next()
		l.walk.begin(&l.jobs)
		if r.eligible(l) {
			heap.Push(&x.begun, l)
		}
	}
	x.first, x.latest = nil, nil
	if len(x.begun) > 0 {
		x.latest = x.begun[0]
		x.first = x.latest.at
	}
}

// eligible goes to the line's first job from where it is that may start now.
func (r *run) eligible(l *line) bool {
	for {
		e, ok := l.walk.at()
		if !ok {
			return false
		}
		if r.useless(e) {
			l.walk.next()
			continue
		}
		if !e.EligibleAt.After(r.now) && (e.QueueDeadline.IsZero() || e.QueueDeadline.After(r.now)) {
			l.at = e
			return true
		}
		l.walk.next()
	}
}

// useless reports whether a job is of a class that had no place and cannot have
// one in room that is held for others either, at a time when nothing else is
// left to do for it.
func (r *run) useless(e *entry) bool {
	c := e.class
	if c.closed != r.number || r.heads < r.policy.Backfill || r.claims > 0 || r.marks[e.ID] != nil {
		return false
	}
	return e.TimeLimit <= 0 || r.tooLong(e)
}

// closed reports whether no job of the class is worth a look in this plan.
func (r *run) closed(c *class) bool {
	if c.closed != r.number || c.marked == r.number && r.unmet > 0 || r.heads < r.policy.Backfill || r.claims > 0 {
		return false
	}
	return len(c.limits.entries) == 0 || r.tooLong(c.limits.entries[0]) || r.fruitless(c)
}

// fruitless looks whether the shortest job of the class fits into room that is
// held for others; if not, no job of it does. Where there are quotas each job is
// looked at in its turn, to see who waits for them.
func (r *run) fruitless(c *class) bool {
	if r.quotas || c.probed == r.number {
		return false
	}
	c.probed = r.number
	r.end = r.now.Add(c.limits.entries[0].TimeLimit)
	if _, ok := r.brief(&search{class: c}); ok {
		return false
	}
	c.close(r.number, r.end)
	return true
}

// tooLong reports whether a job cannot be over before room that is held for
// others is needed, or no earlier than one of its class that had no place.
func (r *run) tooLong(e *entry) bool {
	end := r.now.Add(e.TimeLimit)
	c := e.class
	return end.After(r.longest) || c.closed == r.number && !c.shorter.IsZero() && !end.Before(c.shorter)
}

// exhausted reports whether nothing that is left could start, reserve or
// displace anything, so that the rest of the queue need not be walked. It is
// walked all the same where that tells something: who waits for quotas, why
// classes have no place, when jobs should start.
func (r *run) exhausted() bool {
	if r.quotas || r.planner.Explain || r.planner.Estimate || r.unmet > 0 || r.heads < r.policy.Backfill || r.claims > 0 {
		return false
	}
	if !r.counted {
		r.counted = true
		for _, c := range r.snapshot.classes {
			if c.ready > 0 {
				r.alive = append(r.alive, c)
			}
		}
	}
	for last := len(r.alive) - 1; last >= 0; last-- {
		c := r.alive[last]
		if !r.closed(c) && !c.through(r.number) && (r.aliveAt == len(r.plan.Start)+1 || !r.dead(c)) {
			r.aliveAt = len(r.plan.Start) + 1
			return false
		}
		r.alive, r.aliveAt = r.alive[:last], 0
	}
	return true
}

// dead reports whether no job of the class has a place: not now and, since room
// only gets less by what starts, not later in the plan.
func (r *run) dead(c *class) bool {
	r.snapshot.settle(c)
	s := search{class: c}
	if c.closed != r.number && s.any() {
		return false
	}
	if len(c.limits.entries) == 0 || r.tooLong(c.limits.entries[0]) {
		return true
	}
	r.end = r.now.Add(c.limits.entries[0].TimeLimit)
	_, ok := r.brief(&s)
	return !ok
}

// pass notes that the plan is done with one more job of the class.
func (r *run) pass(c *class) {
	if c.passedAt != r.number {
		c.passedAt, c.passed = r.number, 0
	}
	c.passed++
}

// through reports whether the plan is done with all jobs of the class.
func (c *class) through(plan int) bool { return c.passedAt == plan && c.passed == c.ready }

// step moves the seat on from its first job.
func (r *run) step(x *seat) {
	l := x.latest
	l.walk.next()
	if !r.closed(l.class) && r.eligible(l) {
		heap.Fix(&x.begun, 0)
	} else {
		heap.Pop(&x.begun)
	}
	r.fetch(x)
	r.settle(x)
}

// leave drops the rest of the line that the seat's first job is of.
func (r *run) leave(x *seat) {
	heap.Pop(&x.begun)
	r.fetch(x)
	r.settle(x)
}
