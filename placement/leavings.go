package placement

import (
	"slices"

	"berth"
)

// leavings lists the machines on which those that stop give back more than is
// earmarked of it, with what that is.
func (r *run) leavings() []*node {
	if !r.leftKnown {
		r.leftKnown = true
		for _, h := range r.snapshot.stopping {
			r.bequeath(h)
		}
		for _, h := range r.stops {
			r.bequeath(h)
		}
	}
	return r.left
}

// bequeath notes what a holder that stops leaves behind. Nobody is promised more
// of it afterwards.
func (r *run) bequeath(h *holder) {
	for _, id := range h.machines {
		n := r.snapshot.nodes[id]
		if n == nil {
			continue
		}
		g := r.unpromised(n, h)
		if g.Capacity == (berth.Capacity{}) && len(g.GPUs) == 0 {
			continue
		}
		if len(n.leavings) == 0 {
			r.touch(n) // looks go by what is free now
			r.left = append(r.left, n)
		}
		n.leavings = append(n.leavings, g)
	}
}

// forget drops them.
func (r *run) forget() {
	for _, n := range r.left {
		n.leavings = n.leavings[:0]
	}
	r.left = r.left[:0]
}

// inLeavings reports whether one member of a class that has no place now has one
// with what those that stop leave behind.
func (r *run) inLeavings(c *class, group string) bool {
	s := search{class: c, group: group}
	for _, n := range r.leavings() {
		i := slices.IndexFunc(c.matches, func(m match) bool { return m.kind == n.kind })
		if i < 0 || n.leaf.size == 0 || !s.allows(n) || n.kept.firm() {
			continue
		}
		draft := r.sketch(n)
		draft.addAll(n.leavings)
		if n.kept != nil && !r.end.IsZero() && !r.end.After(n.kept.until()) {
			draft.add(n.kept.held)
		}
		if c.fits(draft, c.matches[i].devices) {
			return true
		}
	}
	return false
}

// clear makes room where victims are, and where they leave something behind with
// others that stop.
func (r *run) clear(victims []victim, leavings bool) {
	for i, v := range victims {
		for _, id := range v.machines {
			n := r.snapshot.nodes[id]
			if n == nil || slices.ContainsFunc(victims[:i], func(o victim) bool { return slices.Contains(o.machines, id) }) {
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
			if leavings && !n.kept.firm() {
				list = append(list, n.leavings...)
			}
			r.give(n, list...)
		}
	}
}

// giveLeavings gives what is left behind on a machine to a claim, unless a
// reserved start counts on it.
func (r *run) giveLeavings(n *node) {
	if n.kept.firm() {
		return
	}
	r.give(n, n.leavings...)
}

func (n *node) addAll(list []berth.Grant) {
	for _, g := range list {
		n.add(g)
	}
}

// leftBehind is how much there is of it.
func (n *node) leftBehind() (sum berth.Capacity) {
	for _, g := range n.leavings {
		sum = sum.Add(g.Capacity)
	}
	return sum
}
