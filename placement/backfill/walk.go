package backfill

import (
	"container/heap"
	"slices"
	"time"

	"berth/placement/queue"
)

// decide starts jobs and reserves starts at the present moment, in the order of the accounts.
func (s *simulation) decide() {
	s.decided = s.now
	s.reopen()
	if !s.anew {
		s.hasten()
	}
	slots := s.policy.Backfill - len(s.heads)
	// No reserved start is left to give, and no class may start a job: nothing can be decided now.
	if slots <= 0 && !slices.ContainsFunc(s.active, func(r *reach) bool { return !r.closed }) {
		return
	}
	s.charge(1)
	defer s.charge(-1)
	s.field.list = append(s.field.list[:0], s.entrants...)
	s.regroup(slots)
	for len(s.field.list) > 0 && s.visits < maxVisits {
		x := s.field.list[0]
		if !s.eligible(x, slots) {
			s.regroup(slots)
			continue
		}
		if !s.try(x, slots) {
			s.settle(x, slots)
			continue
		}
		if slots--; slots > 0 {
			s.settle(x, slots)
			continue
		}
		s.narrow()
		s.regroup(slots)
	}
}

// hasten starts the jobs with a reserved start that have room now, for instance before the start of another one.
func (s *simulation) hasten() {
	s.heads = slices.DeleteFunc(s.heads, func(h *head) bool {
		// Jobs of this run time and longer ones find no room at the present moment.
		if h.run >= h.shut {
			return false
		}
		for _, o := range h.places {
			s.withdraw(h.number, o.site)
		}
		_, places, ok := s.place(h.reach, search{run: h.run, now: true})
		if ok {
			s.start(h.entrant, h.waiter, places)
			return true
		}
		h.shut = h.run
		for _, o := range h.places {
			s.reserve(h.number, o, h.at, h.run)
		}
		return false
	})
}

// renew takes the reserved starts back.
func (s *simulation) renew() {
	s.renewed = s.now
	s.visits += len(s.active) / classesPerVisit
	for _, h := range s.heads {
		for _, o := range h.places {
			s.withdraw(h.number, o.site)
		}
		h.course.insert(h.waiter)
	}
	s.heads = s.heads[:0]
	for _, r := range s.active {
		r.shut, r.closed = forever+1, false
		if s.moment == 1 && r.refused {
			r.shut = 0
		}
	}
}

// reopen opens the classes for whose members a site has gained room.
func (s *simulation) reopen() {
	s.visits += len(s.active) / classesPerVisit
	for _, r := range s.active {
		if !r.closed && r.shut > forever || !r.opens(s.now) {
			continue
		}
		for _, i := range s.touched {
			s.visits++
			if slices.ContainsFunc(r.groups, func(list []area) bool {
				return slices.ContainsFunc(list, func(a area) bool { return s.sites[i].free.covers(&a.need) })
			}) {
				r.shut, r.closed = forever+1, false
				break
			}
		}
	}
	s.touched = s.touched[:0]
}

// charge adds the reserved starts to their accounts, as plans do during their walk, or removes them with times -1.
func (s *simulation) charge(times int) {
	for _, h := range s.heads {
		s.race.Reserve(h.runner, h.Entry, times)
	}
}

// pick sets the entrant's next job; false without one. Without slots, jobs that find no room are passed over.
func (s *simulation) pick(x *entrant, slots int) bool {
	x.best = nil
	if x.quit == s.moment {
		return false
	}
	for _, c := range x.courses {
		if s.candidate(c, slots) &&
			(x.best == nil || queue.CompareEntries(c.jobs[c.next].Entry, x.job().Entry) < 0) {
			x.best = c
		}
	}
	return x.best != nil
}

// candidate moves a course to its next job that may start or get a reserved start; false without one.
func (s *simulation) candidate(c *course, slots int) bool {
	if c.moment != s.moment {
		c.moment, c.next = s.moment, 0
	}
	if c.barred == s.moment || c.closed && slots <= 0 || len(c.jobs) == 0 {
		s.visits++
		return false
	}
	for ; c.next < min(len(c.jobs), maxPassed); c.next++ {
		s.visits++
		if slots > 0 || c.jobs[c.next].run < c.shut {
			return true
		}
	}
	return false
}

// eligible reports whether the entrant's next job is still one, after other jobs have closed classes.
func (s *simulation) eligible(x *entrant, slots int) bool {
	return slots > 0 || !x.best.closed && x.job().run < x.best.shut
}

// narrow closes the classes without room, once all reserved starts are decided.
func (s *simulation) narrow() {
	s.visits += len(s.active) / classesPerVisit
	for _, r := range s.active {
		r.closed = r.closed || !s.covers(r)
	}
}

// regroup drops the entrants without a next job from the field, and sorts the others.
func (s *simulation) regroup(slots int) {
	s.visits += len(s.field.list)
	s.field.list = slices.DeleteFunc(s.field.list, func(x *entrant) bool { return !s.pick(x, slots) })
	heap.Init(&s.field)
}

// settle restores the field after its first entrant has changed.
func (s *simulation) settle(x *entrant, slots int) {
	switch {
	case !s.pick(x, slots):
		heap.Pop(&s.field)
	case x.runner.Nested():
		heap.Init(&s.field)
	default:
		heap.Fix(&s.field, 0)
	}
}

// try starts the entrant's next job if it has room. Otherwise it reserves a start with a slot, and reports true;
// without a slot it closes the class for jobs of this run time.
func (s *simulation) try(x *entrant, slots int) (reserved bool) {
	c, w := x.best, x.job()
	if _, barred := s.race.Barred(x.runner, w.Entry); barred || s.race.MustYield(x.runner, w.Entry) {
		c.barred = s.moment
		return false
	}
	var places []spot
	at, ok := s.now, false
	if w.run < c.shut {
		if at, places, ok = s.place(c.reach, search{run: w.run, now: true}); !ok {
			c.shut = w.run
			c.closed = !s.covers(c.reach)
		}
	}
	if !ok && slots > 0 {
		// The plan has refused the class, so the job starts now only if the plan has reserved this very moment.
		look := search{run: w.run}
		refused := s.moment == 1 && c.refused && !s.reservations.Starts[w.ID].Equal(s.now)
		if refused {
			look.from = s.second
		}
		if !refused || !s.second.IsZero() {
			at, places, ok = s.place(c.reach, look)
		}
	}
	switch {
	case !ok && slots > 0: // never
		c.next++
		return false
	case !ok:
		if s.race.HoldsUp(x.runner, w.Entry) && s.placer.Possible(w.Class) {
			x.quit = s.moment
		}
		return false // otherwise pick passes over it
	case at.After(s.now):
		s.keep(x, w, at, places)
		return true
	}
	c.remove()
	s.start(x, w, places)
	return false
}

// start starts a job at the present moment.
func (s *simulation) start(x *entrant, w waiter, places []spot) {
	for _, o := range places {
		p := &s.sites[o.site]
		p.free.add(&o.need, -1)
		if w.run < forever {
			p.give(change{at: s.now.Add(w.run), room: o.need})
		}
	}
	s.begin(x, w, places)
}

// remove removes the candidate from its course. It moves the few jobs in front, since a line may be long.
func (c *course) remove() {
	copy(c.jobs[1:c.next+1], c.jobs[:c.next])
	c.jobs = c.jobs[1:]
}

// insert returns a removed job to its place.
func (c *course) insert(w waiter) {
	i, _ := slices.BinarySearchFunc(c.jobs, w, func(a, b waiter) int { return queue.CompareEntries(a.Entry, b.Entry) })
	c.jobs = c.all[len(c.all)-len(c.jobs)-1:]
	copy(c.jobs[:i], c.jobs[1:i+1])
	c.jobs[i] = w
}

// keep reserves a start for the entrant's next job.
func (s *simulation) keep(x *entrant, w waiter, at time.Time, places []spot) {
	s.reserved++
	h := &head{w, x, x.best, s.reserved, at, slices.Clone(places)}
	for _, o := range places {
		s.reserve(h.number, o, at, w.run)
	}
	s.heads = append(s.heads, h)
	s.race.Reserve(x.runner, w.Entry, 1)
	x.best.remove()
}

// covers reports whether some site has free capacity for a member, reserved starts aside.
func (s *grounds) covers(r *reach) bool {
	if !r.opens(s.now) {
		return false
	}
	for _, areas := range r.groups {
		for i := range areas {
			for _, n := range areas[i].sites {
				if s.site(n.number).free.covers(&areas[i].need) {
					return true
				}
			}
		}
	}
	return false
}
