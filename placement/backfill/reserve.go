package backfill

import (
	"slices"
	"time"

	"berth"
	"berth/placement/cluster"
	"berth/placement/fit"
	"berth/placement/queue"
)

// Opening is the time from which one more member fits on a machine, and its grant.
type Opening struct {
	At    time.Time
	node  *cluster.Node
	grant berth.Grant
}

// Reserve finds the earliest time at which the job fits if all occupants end at their
// limits, and keeps the capacity for the job from then on. ok is false if no such time
// is known.
func (r *Reservations) Reserve(e *queue.Entry) (at time.Time, ok bool) {
	r.Limit = e.TimeLimit
	best := r.Places(e.Class)
	r.Limit = 0
	if best == nil {
		return time.Time{}, false
	}
	at = best[len(best)-1].At
	until := r.Leaves(at, e)
	for _, o := range best {
		r.Keep(o.node, Reservation{at, o.grant, until, true, true})
	}
	r.Heads++
	r.Starts[e.ID] = at
	return at, true
}

// Places returns one opening per member, all in one group of machines, by time: the set
// whose last opening is the earliest. It returns nil if no group ever has room for all
// members.
func (r *Reservations) Places(c *cluster.Class) []Opening {
	var best []Opening
	for _, group := range fit.Roomy(r.placer, c) {
		list := r.gang(c, group, best)
		if list == nil {
			continue
		}
		if best == nil || list[len(list)-1].At.Before(best[len(best)-1].At) {
			best = list
		}
	}
	return best
}

// gang returns openings of a group for the members of all parts, by time. The result may be nil or not
// improve on bound, as that of openings. It tries other orders of the parts only if there is no bound yet.
func (r *Reservations) gang(c *cluster.Class, group string, bound []Opening) []Opening {
	if c.Unlike() == nil {
		return r.openings(c, group, bound)
	}
	for _, parts := range c.Orders {
		if list := gangInOrder(r, c, parts, group, bound); list != nil || bound != nil {
			return list
		}
	}
	return nil
}

// gangInOrder places the parts one after the other, and each one sees the capacity of the earlier ones as
// taken.
func gangInOrder(r *Reservations, c *cluster.Class, parts []cluster.Part, group string, bound []Opening) []Opening {
	r.chosen = r.chosen[:0]
	defer func() { r.chosen = r.chosen[:0] }()
	for _, p := range parts {
		list := r.openings(p.Class, group, bound)
		if len(list) < p.Members {
			return nil
		}
		r.chosen = append(r.chosen, list...)
	}
	list, _ := earliest(slices.Clone(r.chosen), c.Members(), time.Time{})
	return list
}

// openings returns the earliest openings of a group for all members, by time. The result
// is nil or does not improve on bound if the last of these openings is not before the
// last opening of bound, the best of an earlier group.
func (r *Reservations) openings(c *cluster.Class, group string, bound []Opening) []Opening {
	want := c.Members()
	s := fit.Search{Class: c, Group: group}
	limit := time.Time{} // openings from this time on are useless; zero: no limit
	if bound != nil {
		limit = bound[len(bound)-1].At
	}
	if want == 1 {
		return r.soonest(&s, limit)
	}
	var list []Opening
	wish := wishOf(c)
	for _, m := range s.Matches() {
		look, touched, last := r.views(m.Kind).views, m.Kind.TouchedBy(r.Number), cluster.Latest(limit)
		for i := range look {
			r.placer.Visits++
			r.visits++
			v := &look[i] // outdated for a machine that the plan has touched
			if !touched.Has(i) && v.opens(wish) > last {
				continue
			}
			n := m.Kind.Members[i]
			if !s.Allows(n) || !r.mayOpen(c, n, limit) {
				continue
			}
			list = r.opens(c, n, m.Devices, want, limit, list)
			// Sorting at twice the need, not at each machine, tightens the limit often enough.
			if len(list) >= 2*want {
				list, limit = earliest(list, want, limit)
				if last = cluster.Latest(limit); !limit.After(r.Now) {
					return list // all members fit now: no machine is better
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

// openingSearch searches for the earliest opening for one member. Of openings at the same
// time, the first by machine id wins, so that the result does not depend on the order of
// the search.
type openingSearch struct {
	*fit.Search
	run   *Reservations
	limit time.Time // later openings are useless; zero: no limit
	best  []Opening // empty, or the opening at the limit
	list  []Opening // buffer
}

// soonest returns the earliest opening for one member, or nil without an opening before
// the limit. It searches machines in this order, to compute few agendas:
//
//   - the machine with the least lower bound, since its opening limits the search;
//   - the machines that the plan has touched, for which the index has no valid bound;
//   - the machines with room now;
//   - the others, ranked by the second before which they have no room, up to the limit.
func (r *Reservations) soonest(s *fit.Search, limit time.Time) []Opening {
	h := openingSearch{Search: s, run: r, limit: limit}
	h.first()
	for _, m := range s.Matches() {
		if m.Kind.TouchedAt != r.Number {
			continue
		}
		for _, n := range m.Kind.Touched {
			if n.Listed == m.Kind {
				h.look(n, m.Devices)
			}
		}
	}
	for _, need := range fit.Needs(s.Class) {
		for _, m := range s.Matches() {
			m.Kind.Walk(need, false, func(n *cluster.Node) bool {
				if n.Touched != r.Number {
					h.look(n, m.Devices)
				}
				return true
			})
		}
	}
	wish := wishOf(s.Class)
	last := cluster.Latest(h.limit)
	for _, m := range s.Matches() {
		views, rank := r.byTime(m.Kind, wish.devices)
		touched := m.Kind.TouchedBy(r.Number)
		for _, x := range rank {
			r.visits++
			if x.Key > cluster.TimeKey(last) {
				break
			}
			if v := &views[x.Place]; !touched.Has(int(x.Place)) && v.opens(wish) <= last {
				h.look(m.Kind.Members[x.Place], m.Devices)
				last = cluster.Latest(h.limit)
			}
		}
	}
	return h.best
}

// first searches the machine with the least lower bound on its opening.
func (h *openingSearch) first() {
	r, wish := h.run, wishOf(h.Class)
	now, least := cluster.TickOf(r.Now), cluster.NoTick
	var where *cluster.Node
	var at cluster.Match
	for _, m := range h.Matches() {
		views, rank := r.byTime(m.Kind, wish.devices)
		touched := m.Kind.TouchedBy(r.Number)
		for _, x := range rank {
			r.visits++
			if x.Key > cluster.TimeKey(least) {
				break
			}
			v := &views[x.Place]
			if touched.Has(int(x.Place)) {
				continue
			}
			if low := max(now, v.opens(wish)); low < least {
				least, where, at = low, m.Kind.Members[x.Place], m
			}
		}
	}
	if where != nil {
		h.look(where, at.Devices)
	}
}

// look computes the opening of one machine and keeps it if it is the best so far.
func (h *openingSearch) look(n *cluster.Node, devices uint64) {
	r, limit := h.run, h.limit
	r.visits++
	if len(h.best) > 0 && n.ID < h.best[0].node.ID {
		limit = limit.Add(1) // this machine wins a tie by its id
	}
	if !limit.IsZero() && !limit.After(r.Now) || !h.Allows(n) || !r.mayOpen(h.Class, n, limit) {
		return
	}
	h.list = r.opens(h.Class, n, devices, 1, limit, h.list[:0])
	if len(h.list) > 0 && (limit.IsZero() || h.list[0].At.Before(limit)) {
		h.best = append(h.best[:0], h.list[0])
		h.limit = h.list[0].At
	}
}

// earliest sorts the openings and keeps the first ones, as many as wanted. With enough
// openings it returns the time of the last one as the new limit.
func earliest(list []Opening, want int, limit time.Time) ([]Opening, time.Time) {
	slices.SortFunc(list, func(a, b Opening) int {
		if x := a.At.Compare(b.At); x != 0 {
			return x
		}
		return cluster.CompareIDs(berth.JobID(a.node.ID), berth.JobID(b.node.ID))
	})
	if len(list) >= want {
		list = list[:want]
		limit = list[want-1].At
	}
	return list, limit
}

// oweChosen takes the chosen places of the present job on a machine out of a copy of the machine: from now
// on, as the capacity of reserved starts.
func (r *Reservations) oweChosen(x, n *cluster.Node) {
	for i := range r.chosen {
		if r.chosen[i].node == n {
			x.Owe(r.chosen[i].grant)
		}
	}
}

// mayOpen is a cheap necessary condition for an opening before the limit. It compares
// totals, the first release, and the release that frees the last missing device.
func (r *Reservations) mayOpen(c *cluster.Class, n *cluster.Node, limit time.Time) bool {
	if !c.Capacity.Fits(n.Total) {
		return false
	}
	if limit.IsZero() {
		return true
	}
	a := r.agendaOf(n)
	if r.ledger.HoldOn(n) != nil || c.Capacity.Fits(n.Free) {
		return true
	}
	if len(a.list) == 0 || !r.From(a.list[0].at).Before(limit) {
		return false
	}
	if c.Request.GPUMilli < cluster.Whole || c.Request.GPUs == 0 {
		return true
	}
	i := c.Request.GPUs - n.Room.Whole - 1 // the release of the last missing device
	return i < 0 || i < len(a.devices) && r.From(a.devices[i]).Before(limit)
}

// opens appends to list up to want openings of one machine before the limit. It replays
// the machine's releases by time on a copy of the node, and places members after each
// moment as far as they fit.
func (r *Reservations) opens(
	c *cluster.Class, n *cluster.Node, allowed uint64, want int, limit time.Time, list []Opening,
) []Opening {
	x := r.ledger.Sketch(n)
	at := r.Now
	agenda := r.agenda(n)
	r.oweChosen(x, n)
	if h := r.ledger.HoldOn(n); h != nil {
		// Reserved capacity counts as taken from now on, since the new job may still run
		// when the reservation starts. The hold is a part of it, so it is added back first.
		h.Lift(x)
		r.events = append(r.events[:0], agenda...)
		list := r.lists[h.Index]
		for i := range list {
			o := &list[i]
			if r.bare && o.Firm {
				continue
			}
			if x.Owe(o.Grant); !o.Until.IsZero() {
				r.events = append(r.events, release{at: o.Until, grant: &o.Grant})
			}
		}
		if len(r.events) > len(agenda) {
			agenda = r.events
			slices.SortStableFunc(agenda, func(a, b release) int { return a.at.Compare(b.at) })
		}
	}
	if list, ok := r.withWindow(n, agenda[:len(agenda):len(agenda)]); ok {
		agenda = list
		slices.SortStableFunc(agenda, func(a, b release) int { return a.at.Compare(b.at) })
	}
	for i := 0; ; {
		for want > 0 && !r.crosses(n, at) {
			devices, ok := fit.Devices(c, x, allowed)
			if !ok {
				break
			}
			g := fit.Grant(c, n, devices)
			list = append(list, Opening{at, n, g})
			x.Subtract(g)
			want--
		}
		if i == len(agenda) || want == 0 {
			return list
		}
		for at = r.From(agenda[i].at); i < len(agenda) && !agenda[i].at.After(at); i++ {
			x.Add(*agenda[i].grant)
		}
		if !limit.IsZero() && !at.Before(limit) {
			return list
		}
	}
}
