package placement

import (
	"cmp"
	"math"
	"slices"

	"berth"
)

// victim is a holder that may be displaced, and what that costs.
type victim struct {
	*holder
	why  PreemptReason
	band int
	cost float64
}

// bait is who could be displaced on a machine, as far as that does not depend on
// for whom.
type bait struct {
	plan int
	list []victim // by band, by cost
}

// bait of a machine, worked out once a plan.
func (r *run) bait(n *node) []victim {
	b := &n.bait
	if b.plan == r.number {
		return b.list
	}
	b.plan, b.list = r.number, b.list[:0]
	for i := range n.on.list {
		if x := &n.on.list[i]; x.ripe(r) {
			b.list = append(b.list, victim{holder: x.holder, band: r.policy.band(int(x.priority)), cost: r.price(x.holder)})
		}
	}
	slices.SortFunc(b.list, func(x, y victim) int {
		return cmp.Or(cmp.Compare(x.band, y.band), cmp.Compare(x.cost, y.cost), compareIDs(x.Job, y.Job))
	})
	return b.list
}

// chase is a look for the machine where making room for one more member of the
// claim's job costs least.
type chase struct {
	search
	run   *run
	spare *sacrifice // whose victims go already
	want  glance

	band, highest int32 // of the job, and that anybody who goes may be of

	where *node // the best so far; nil: none
	best  []victim
	found bound // what they cost
}

// cheapestVictims finds the machine where making room for one more member of the
// claim's job costs least. Machines are ruled out by a bound of what it costs
// there at least, in the order of that bound as far as it does not depend on the
// job; the others are looked at one by one.
func (r *run) cheapestVictims(c *class, group string, s *sacrifice) ([]victim, bool) {
	h := chase{search: search{class: c, group: group}, run: r, spare: s, want: glanceOf(c.capacity), best: r.best[:0], found: worst}
	h.band = min(short(int64(r.aim.band)), noBand-1)
	h.highest = h.band
	if r.aim.borrowers {
		h.highest = noBand - 1
	}
	list, first := h.prospects()
	if first >= 0 {
		h.try(&list[first])
	}
	for i := range list {
		if i != first {
			h.try(&list[i])
		}
	}
	for j, m := range c.matches {
		all := r.prey(m.kind)
		for _, x := range m.kind.byCost[r.passed[j]:] {
			if h.found.less(x.bound()) {
				break
			}
			if p, ok := h.prospect(int32(j), x.place, &all[x.place], h.found); ok {
				h.try(&p)
			}
		}
	}
	r.best = h.best
	return slices.Clone(h.best), h.where != nil
}

// prospects lists machines where the claim may find victims, until the bound of
// none that follows is less; first is where it is least, -1 if nowhere. How far
// that went of each kind is in run.passed.
func (h *chase) prospects() (list []prospect, first int) {
	r := h.run
	list, first = r.found[:0], -1
	r.passed = r.passed[:0]
	low := worst
	for j, m := range h.class.matches {
		all, i := r.prey(m.kind), 0
		for ; i < len(m.kind.byCost); i++ {
			x := m.kind.byCost[i]
			if low.less(x.bound()) {
				break
			}
			p, ok := h.prospect(int32(j), x.place, &all[x.place], low)
			if !ok {
				continue
			}
			if b := p.bound(); !p.rough && b.less(low) {
				low, first = b, len(list)
			}
			list = append(list, p)
		}
		r.passed = append(r.passed, i)
	}
	r.found = list
	return list, first
}

// prospect of a machine; ok is false if there are no victims on it for the claim.
// It is rough where the bound is no less than low anyway.
func (h *chase) prospect(match, place int32, x *prey, low bound) (p prospect, ok bool) {
	r, k := h.run, h.class.matches[match].kind
	if x.band > h.highest || x.plan != r.number && !h.want.within(x.most) {
		return p, false
	}
	n := k.members[place]
	if x.band >= h.band && !n.lure.tenants.meets(&r.aim.peers) {
		return p, false
	}
	p = prospect{match: match, place: place, band: x.band}
	room := x.room
	if x.plan == r.number {
		room = glanceOf(r.clearing(n))
	}
	if h.want.within(room.plus(x.low)) {
		p.cost = x.cost(h.want, room)
		return p, true
	}
	p.band, p.rough = x.next, true
	if p.band == noBand || p.band > h.highest {
		return p, false
	}
	return p, low.less(p.bound()) || r.bound(n, h.want, &p)
}

// try looks at one machine closely, if it may be the best.
func (h *chase) try(p *prospect) {
	r, m := h.run, &h.class.matches[p.match]
	n := m.kind.members[p.place]
	if h.found.less(p.bound()) || p.rough && (!r.bound(n, h.want, p) || h.found.less(p.bound())) || !h.allows(n) {
		return
	}
	list := r.victimsOn(n, m.devices, h.class, h.spare, h.found.band)
	if list == nil {
		return
	}
	if d := compareVictims(list, h.best); h.where == nil || d < 0 || d == 0 && n.ID < h.where.ID {
		h.best, h.where = append(h.best[:0], list...), n
		h.found.band, h.found.cost = weighVictims(list)
	}
}

// compareVictims orders sets of victims: by the highest band that goes, by what
// it costs, by how many.
func compareVictims(a, b []victim) int {
	ba, ca := weighVictims(a)
	bb, cb := weighVictims(b)
	return cmp.Or(cmp.Compare(ba, bb), cmp.Compare(ca, cb), cmp.Compare(len(a), len(b)))
}

func weighVictims(list []victim) (band int, cost float64) {
	band = math.MinInt
	for _, v := range list {
		band, cost = max(band, v.band), cost+v.cost
	}
	return band, cost
}

// victimsOn picks the cheapest victims on one machine that make room for a
// member; nil if all of them together do not, or only with one of a band above
// highest. The list lasts until the next call.
func (r *run) victimsOn(n *node, allowed uint64, c *class, s *sacrifice, highest int) []victim {
	if n.kept.firm() {
		return nil
	}
	draft := r.sketch(n)
	if n.kept != nil {
		draft.add(n.kept.held)
	}
	if r.overlaid {
		draft.addAll(n.leavings)
	}
	list := r.picked[:0]
	defer func() { r.picked = list[:0] }()
	for _, v := range r.bait(n) {
		if v.band > highest {
			return nil // those that follow are no better
		}
		if slices.ContainsFunc(s.victims, func(o victim) bool { return o.holder == v.holder }) {
			continue
		}
		why, ok := r.may(v)
		if !ok || r.countedOn(v.holder) {
			continue
		}
		v.why = why
		list = append(list, v)
		for i := range v.Ranks {
			if v.Ranks[i].Machine == n.ID {
				draft.add(v.Ranks[i])
			}
		}
		if c.fits(draft, allowed) {
			list = r.spare(draft, c, allowed, list)
			return list
		}
	}
	return nil
}

// countedOn reports whether a reserved start counts on the holder on any of its
// machines. A gang goes as a whole, and who displaces it for its room on one
// machine may be given that on another.
func (r *run) countedOn(h *holder) bool {
	return len(h.machines) > 1 && slices.ContainsFunc(h.machines, func(id berth.MachineID) bool {
		n := r.snapshot.nodes[id]
		return n != nil && n.kept.firm()
	})
}

// spare leaves out, from the dearest, whom the member does not need.
func (r *run) spare(draft *node, c *class, allowed uint64, list []victim) []victim {
	for i := len(list) - 2; i >= 0; i-- { // the last one was needed
		for _, g := range list[i].Ranks {
			if g.Machine == draft.ID {
				draft.owe(g)
			}
		}
		if c.fits(draft, allowed) {
			list = slices.Delete(list, i, i+1)
			continue
		}
		for _, g := range list[i].Ranks {
			if g.Machine == draft.ID {
				draft.add(g)
			}
		}
	}
	return list
}
