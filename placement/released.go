package placement

import (
	"slices"

	"berth"
)

// releasedNodes lists the machines on which stopping jobs release more than is
// nominated for others.
func (r *preemption) releasedNodes() []*node {
	if !r.releasedKnown {
		r.releasedKnown = true
		for _, h := range r.cluster.stopping {
			r.release(h)
		}
		for _, h := range r.stops {
			r.release(h)
		}
	}
	return r.releasing
}

// release notes the capacity that a stopping holder releases. No nomination of it
// follows.
func (r *preemption) release(h *holder) {
	for _, id := range h.machines {
		n := r.cluster.nodes[id]
		if n == nil {
			continue
		}
		g := r.nominations.unpromised(n, h)
		if g.Capacity == (berth.Capacity{}) && len(g.GPUs) == 0 {
			continue
		}
		if len(r.released) == 0 {
			r.released = make([][]berth.Grant, r.cluster.extent)
		}
		if len(r.released[n.index]) == 0 {
			r.ledger.touch(n) // entries of lists go by the free capacity alone
			r.releasing = append(r.releasing, n)
		}
		r.released[n.index] = append(r.released[n.index], g)
	}
}

// releasedOn lists the capacity that stopping jobs release on a machine.
func (r *preemption) releasedOn(n *node) []berth.Grant {
	if len(r.released) == 0 {
		return nil
	}
	return r.released[n.index]
}

// fitsReleased reports whether one member of a class without a place fits into
// released capacity.
func (r *preemption) fitsReleased(c *class, group string) bool {
	s := search{class: c, group: group}
	for _, n := range r.releasedNodes() {
		i := slices.IndexFunc(c.matches, func(m match) bool { return m.kind == n.kind })
		if i < 0 || !n.offered() || !s.allows(n) || r.ledger.isFirm(n) {
			continue
		}
		draft := r.ledger.sketch(n)
		draft.addAll(r.releasedOn(n))
		if h := r.ledger.holdOn(n); h != nil && !r.placer.end.IsZero() && !r.placer.end.After(h.until) {
			draft.add(h.grant)
		}
		if c.fits(draft, c.matches[i].devices) {
			return true
		}
	}
	return false
}

// clear gives the victims' capacity to the ledger, with the released capacity of
// their machines if released is set.
func (r *preemption) clear(victims []victim, released bool) {
	for i, v := range victims {
		for _, id := range v.machines {
			n := r.cluster.nodes[id]
			if n == nil || slices.ContainsFunc(victims[:i],
				func(o victim) bool { return slices.Contains(o.machines, id) }) {
				continue
			}
			var list []berth.Grant
			for _, o := range victims[i:] {
				for _, g := range o.Ranks {
					if g.Machine == id {
						list = append(list, g)
					}
				}
			}
			if released && !r.ledger.isFirm(n) {
				list = append(list, r.releasedOn(n)...)
			}
			r.ledger.give(n, list...)
		}
	}
}

// giveReleased gives the released capacity of a machine to the ledger, unless a
// reserved start depends on it.
func (r *preemption) giveReleased(n *node) {
	if !r.ledger.isFirm(n) {
		r.ledger.give(n, r.releasedOn(n)...)
	}
}
