package placement

import (
	"slices"
	"time"

	"berth"
)

// opening is a time from which one more member fits on a machine.
type opening struct {
	at    time.Time
	node  *node
	grant berth.Grant
}

// reserve finds the earliest time at which the job fits when those that hold
// room end as they should, and keeps the room for it from then on. ok is false
// where no such time is known.
func (r *reservations) reserve(e *entry) (at time.Time, ok bool) {
	best := r.places(e.class)
	if best == nil {
		return time.Time{}, false
	}
	at = best[len(best)-1].at
	until := r.leaves(at, e)
	for _, o := range best {
		r.keep(o.node, reservation{at, o.grant, until, true})
	}
	r.heads++
	r.starts[e.ID] = at
	return at, true
}

// places are the openings for all members of a job that are complete first; nil
// if none ever are.
func (r *reservations) places(c *class) []opening {
	var best []opening
	for _, group := range r.placer.groups(c) {
		list := r.openings(c, group, best)
		if list == nil {
			continue
		}
		if best == nil || list[len(list)-1].at.Before(best[len(best)-1].at) {
			best = list
		}
	}
	return best
}

// openings finds places for all members, those that open first; nil if there
// are not enough of them, or none before those of bound are all open.
func (r *reservations) openings(c *class, group string, bound []opening) []opening {
	want := c.members()
	s := search{class: c, group: group}
	limit := time.Time{} // no place that opens then or later is of use
	if bound != nil {
		limit = bound[len(bound)-1].at
	}
	if want == 1 {
		return r.soonest(&s, limit)
	}
	var list []opening
	wish := c.wish()
	for _, m := range c.matches {
		look, touched, last := r.views(m.kind).views, m.kind.touchedBy(r.number), latest(limit)
		for i := range look {
			v := &look[i]
			if !touched.has(i) && v.opens(wish) > last {
				continue
			}
			n := m.kind.members[i]
			if !s.allows(n) || !r.mayOpen(c, n, limit) {
				continue
			}
			list = r.opens(c, n, m.devices, want, limit, list)
			if len(list) >= 2*want {
				list, limit = earliest(list, want, limit)
				if last = latest(limit); !limit.After(r.now) {
					return list
				}
			}
		}
	}
	list, _ = earliest(list, want, limit)
	if len(list) < want {
		return nil
	}
	return list
}

// openingSearch looks for the place that opens first for one member; of several, the
// first by machine id.
type openingSearch struct {
	*search
	run   *reservations
	limit time.Time // no place that opens later is of use
	best  []opening // none or one, which opens at the limit
	list  []opening // buffer
}

// soonest finds the place for one member that opens first; nil if none opens
// before the limit. The machine that may open first of all is looked at before
// the others, since that bounds how many of them are worth it. Those follow that
// the plan has touched, and those that have room now; of the rest, none has any
// before the second by which they are ranked.
func (r *reservations) soonest(s *search, limit time.Time) []opening {
	h := openingSearch{search: s, run: r, limit: limit}
	h.first()
	for _, m := range s.class.matches {
		if m.kind.touchedAt != r.number {
			continue
		}
		for _, n := range m.kind.touched {
			if n.listed == m.kind {
				h.look(n, m.devices)
			}
		}
	}
	for _, need := range s.class.needs() {
		for _, m := range s.class.matches {
			m.kind.walk(need, false, func(n *node) bool {
				if n.touched != r.number {
					h.look(n, m.devices)
				}
				return true
			})
		}
	}
	wish := s.class.wish()
	last := latest(h.limit)
	for _, m := range s.class.matches {
		views, rank := r.byTime(m.kind, wish.devices)
		touched := m.kind.touchedBy(r.number)
		for _, x := range rank {
			if x.key > timeKey(last) {
				break
			}
			if v := &views[x.place]; !touched.has(int(x.place)) && v.opens(wish) <= last {
				h.look(m.kind.members[x.place], m.devices)
				last = latest(h.limit)
			}
		}
	}
	return h.best
}

// first looks at the machine that may open first.
func (h *openingSearch) first() {
	r, wish := h.run, h.class.wish()
	now, least := tickOf(r.now), noTick
	var where *node
	var at match
	for _, m := range h.class.matches {
		views, rank := r.byTime(m.kind, wish.devices)
		touched := m.kind.touchedBy(r.number)
		for _, x := range rank {
			if x.key > timeKey(least) {
				break
			}
			v := &views[x.place]
			if touched.has(int(x.place)) {
				continue
			}
			if low := max(now, v.opens(wish)); low < least {
				least, where, at = low, m.kind.members[x.place], m
			}
		}
	}
	if where != nil {
		h.look(where, at.devices)
	}
}

// look at one machine.
func (h *openingSearch) look(n *node, devices uint64) {
	r, limit := h.run, h.limit
	if len(h.best) > 0 && n.ID < h.best[0].node.ID {
		limit = limit.Add(1) // it is better if it opens at the same time
	}
	if !limit.IsZero() && !limit.After(r.now) || !h.allows(n) || !r.mayOpen(h.class, n, limit) {
		return
	}
	h.list = r.opens(h.class, n, devices, 1, limit, h.list[:0])
	if len(h.list) > 0 && (limit.IsZero() || h.list[0].at.Before(limit)) {
		h.best = append(h.best[:0], h.list[0])
		h.limit = h.list[0].at
	}
}

// earliest leaves the openings that are first, and bounds later looks by the
// last of them.
func earliest(list []opening, want int, limit time.Time) ([]opening, time.Time) {
	slices.SortFunc(list, func(a, b opening) int {
		if x := a.at.Compare(b.at); x != 0 {
			return x
		}
		return compareIDs(berth.JobID(a.node.ID), berth.JobID(b.node.ID))
	})
	if len(list) >= want {
		list = list[:want]
		limit = list[want-1].at
	}
	return list, limit
}

// mayOpen rules out machines at a glance.
func (r *reservations) mayOpen(c *class, n *node, limit time.Time) bool {
	if !c.capacity.Fits(n.Total) {
		return false
	}
	if limit.IsZero() {
		return true
	}
	a := r.agendaOf(n)
	if r.ledger.holdOn(n) != nil || c.capacity.Fits(n.free) {
		return true
	}
	if len(a.list) == 0 || !r.from(a.list[0].at).Before(limit) {
		return false
	}
	if c.request.GPUMilli < whole || c.request.GPUs == 0 {
		return true
	}
	i := c.request.GPUs - n.has.whole - 1 // of the releases of devices, the one that must come first
	return i < 0 || i < len(a.devices) && r.from(a.devices[i]).Before(limit)
}

// opens adds the openings of one machine.
func (r *reservations) opens(
	c *class, n *node, allowed uint64, want int, limit time.Time, list []opening,
) []opening {
	x := r.ledger.sketch(n)
	at := r.now
	agenda := r.agenda(n)
	if h := r.ledger.holdOn(n); h != nil {
		x.add(h.grant)
		r.events = append(r.events[:0], agenda...)
		list := r.lists[h.index]
		for i := range list {
			o := &list[i]
			if x.owe(o.grant); !o.until.IsZero() {
				r.events = append(r.events, release{at: o.until, grant: &o.grant})
			}
		}
		if len(r.events) > len(agenda) {
			agenda = r.events
			slices.SortStableFunc(agenda, func(a, b release) int { return a.at.Compare(b.at) })
		}
	}
	for i := 0; ; {
		for want > 0 {
			devices, ok := c.fit(x, allowed)
			if !ok {
				break
			}
			g := c.grant(n, devices)
			list = append(list, opening{at, n, g})
			x.subtract(g)
			want--
		}
		if i == len(agenda) || want == 0 {
			return list
		}
		for at = r.from(agenda[i].at); i < len(agenda) && !agenda[i].at.After(at); i++ {
			x.add(*agenda[i].grant)
		}
		if !limit.IsZero() && !at.Before(limit) {
			return list
		}
	}
}
