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

// candidates lists the occupants of a machine that some job could displace, by
// band and cost. It is computed once a plan.
func (r *preemption) candidates(n *node) []victim {
	b := r.index.candidatesOf(n)
	if b.plan == r.number {
		return b.list
	}
	b.plan, b.list = r.number, b.list[:0]
	for i := range n.on.list {
		if x := &n.on.list[i]; r.isCandidate(x) {
			b.list = append(b.list, victim{holder: x.holder, band: r.policy.band(int(x.priority)),
				cost: r.cost(x.holder)})
		}
	}
	slices.SortFunc(b.list, func(x, y victim) int {
		return cmp.Or(cmp.Compare(x.band, y.band), cmp.Compare(x.cost, y.cost), compareIDs(x.Job, y.Job))
	})
	return b.list
}

// victimSearch looks for the machine on which room for one more member costs
// least.
type victimSearch struct {
	search
	run   *preemption
	spare *displacement // its victims stop already
	want  glance

	band, highest int32 // of the job, and of any victim

	where *node // the best so far; nil: none
	best  []victim
	found bound // of best
}

// cheapestVictims finds the machine on which room for one more member costs least.
// A lower bound of the cost rules machines out, in the order of the bound as far
// as it does not depend on the job. The search looks at the others one by one.
func (r *preemption) cheapestVictims(c *class, group string, s *displacement) ([]victim, bool) {
	h := victimSearch{search: search{class: c, group: group}, run: r, spare: s, want: glanceOf(c.capacity),
		best: r.best[:0], found: worst}
	h.band = min(short(int64(r.rights.band)), noBand-1)
	h.highest = h.band
	if r.rights.borrowers {
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
		b := r.bounds(m.kind)
		touched := m.kind.touchedBy(r.number)
		for _, x := range b.byCost[r.passed[j]:] {
			if h.found.less(keyBound(x.key)) {
				break
			}
			if p, ok := h.prospect(int32(j), x.place, b, touched, h.found); ok {
				h.try(&p)
			}
		}
	}
	r.best = h.best
	return slices.Clone(h.best), h.where != nil
}

// prospects lists machines that may have victims, until no further bound is less
// than the least one so far; first is the place of that, -1 if there is none.
// preemption.passed is the length of the part of each kind that was read.
func (h *victimSearch) prospects() (list []prospect, first int) {
	r := h.run
	list, first = r.found[:0], -1
	r.passed = r.passed[:0]
	low := worst
	for j, m := range h.class.matches {
		b, i := r.bounds(m.kind), 0
		touched := m.kind.touchedBy(r.number)
		for ; i < len(b.byCost); i++ {
			x := b.byCost[i]
			if low.less(keyBound(x.key)) {
				break
			}
			p, ok := h.prospect(int32(j), x.place, b, touched, low)
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

// prospect returns a machine with its bound; ok is false if no victims there would
// do. The bound is rough where it is no less than low anyway.
func (h *victimSearch) prospect(
	match, place int32, b *kindBounds, touched bitset, low bound,
) (p prospect, ok bool) {
	r, x, isTouched := h.run, &b.entries[place], touched.has(int(place))
	if x.band > h.highest || !isTouched && !h.want.within(x.most) {
		return p, false
	}
	n := b.kind.members[place]
	if x.band >= h.band && !r.index.of(n).tenants.meets(&r.rights.peers) {
		return p, false
	}
	p = prospect{match: match, place: place, band: x.band}
	room := x.room
	if isTouched {
		room = glanceOf(r.available(n))
	}
	if h.want.within(room.plus(x.low)) {
		p.cost = x.cost(h.want, room)
		return p, true
	}
	p.band, p.rough = x.next, true
	if p.band == noBand || p.band > h.highest {
		return p, false
	}
	return p, low.less(p.bound()) || r.lowerBound(n, h.want, &p)
}

// try looks for the victims on one machine, if it may be the best.
func (h *victimSearch) try(p *prospect) {
	r, m := h.run, &h.class.matches[p.match]
	n := m.kind.members[p.place]
	if h.found.less(p.bound()) || p.rough && (!r.lowerBound(n, h.want, p) || h.found.less(p.bound())) || !h.allows(n) {
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
// member; nil if all candidates together do not, or only with one of a band above
// highest. The list lasts until the next call.
func (r *preemption) victimsOn(n *node, allowed uint64, c *class, s *displacement, highest int) []victim {
	if r.ledger.isFirm(n) {
		return nil
	}
	draft := r.ledger.sketch(n)
	if h := r.ledger.holdOn(n); h != nil {
		draft.add(h.grant)
	}
	if r.overlaid {
		draft.addAll(r.releasedOn(n))
	}
	list := r.picked[:0]
	defer func() { r.picked = list[:0] }()
	for _, v := range r.candidates(n) {
		if v.band > highest {
			return nil // the rest of the candidates are of no lower band
		}
		if slices.ContainsFunc(s.victims, func(o victim) bool { return o.holder == v.holder }) {
			continue
		}
		why, ok := r.may(v)
		if !ok || r.dependedOn(v.holder) {
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
			list = spareVictims(draft, c, allowed, list)
			return list
		}
	}
	return nil
}

// dependedOn reports whether a reserved start depends on the holder on any of its
// machines. A gang stops as a whole, and the job that displaces it for its
// capacity on one machine may take its capacity on another.
func (r *preemption) dependedOn(h *holder) bool {
	return len(h.machines) > 1 && slices.ContainsFunc(h.machines, func(id berth.MachineID) bool {
		n := r.cluster.nodes[id]
		return n != nil && r.ledger.isFirm(n)
	})
}

// spareVictims drops the victims that the member does not need, the most
// expensive first.
func spareVictims(draft *node, c *class, allowed uint64, list []victim) []victim {
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
