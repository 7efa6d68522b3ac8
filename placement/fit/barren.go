package fit

import (
	"slices"

	"berth/placement/cluster"
)

// Barren reports whether no machine has room for one member of the class, without
// regard to held capacity. The answer holds for the epoch, and for every class that may
// use the same machines and requests no less.
func (r *Placer) Barren(c *cluster.Class) bool {
	m := r.memory.of(c)
	if m.barren == r.epoch {
		return true
	}
	r.cluster.Settle(c)
	known := r.barrens[c.Like]
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
