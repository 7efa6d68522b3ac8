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
	for _, h := range r.snapshot.on[n.ID] {
		if r.ripe(h) {
			b.list = append(b.list, victim{holder: h, band: r.policy.band(h.Priority), cost: r.price(h)})
		}
	}
	slices.SortFunc(b.list, func(x, y victim) int {
		return cmp.Or(cmp.Compare(x.band, y.band), cmp.Compare(x.cost, y.cost), compareIDs(x.Job, y.Job))
	})
	return b.list
}

// ripe reports whether a holder may be displaced by anyone.
func (r *run) ripe(h *holder) bool {
	return h.Preemptible && !h.Stopping && r.now.Sub(h.StartedAt) >= r.policy.MinRuntime
}

// cheapestVictims finds the machine where making room for one more member of the
// claim's job costs least. Machines are ruled out by a bound of what it costs
// there at least; the others are looked at one by one.
func (r *run) cheapestVictims(c *class, group string, s *sacrifice) ([]victim, bool) {
	look := search{class: c, group: group}
	best := r.best[:0]
	var where *node
	found := worst
	try := func(p *prospect) {
		m := &c.matches[p.match]
		n := m.kind.members[p.place]
		if found.less(p.bound()) || p.rough && (!r.bound(n, c.capacity, p) || found.less(p.bound())) || !look.allows(n) {
			return
		}
		list := r.victimsOn(n, m.devices, c, s, found.band)
		if list == nil {
			return
		}
		if d := compareVictims(list, best); where == nil || d < 0 || d == 0 && n.ID < where.ID {
			best, where = append(best[:0], list...), n
			found.band, found.cost = weighVictims(list)
		}
	}
	list, first := r.prospects(c)
	if first >= 0 {
		try(&list[first])
	}
	for i := range list {
		if i != first {
			try(&list[i])
		}
	}
	r.best = best
	return slices.Clone(best), where != nil
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
