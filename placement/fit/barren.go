package fit

import (
	"slices"

	"berth/placement/cluster"
)

// Barren reports whether no machine has room for one member of the class, not counting held
// capacity. One part without a machine makes a whole gang of unlike members barren.
//
// A positive answer holds for the epoch, in which free capacity only shrinks. It also holds
// for every class that may use the same machines (Class.Like) and requests at least as
// much, so that one search answers for many classes of a full cluster.
func (r *Placer) Barren(c *cluster.Class) bool {
	m := r.memory.of(c)
	if m.barren == r.epoch {
		return true
	}
	r.cluster.Settle(c)
	if parts := c.Unlike(); parts != nil {
		if !slices.ContainsFunc(parts, func(p cluster.Part) bool { return r.Barren(p.Class) }) {
			return false
		}
		r.memory.of(c).barren = r.epoch
		return true
	}
	known := r.barrens[c.Like]
	// Only classes with a search of their own are listed, so the lists stay short.
	if !slices.ContainsFunc(known, func(o *cluster.Class) bool { return AsksForAll(c, o) }) {
		s := Search{Class: c}
		if s.any() {
			return false
		}
		r.barrens[c.Like] = append(known, c)
	}
	m.barren = r.epoch
	return true
}
