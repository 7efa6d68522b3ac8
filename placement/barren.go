package placement

import "slices"

// barren reports whether no machine has room for one member of the class, held
// room aside. It stays so for the epoch, and for every class that may
// use the same machines and asks for no less.
func (r *placer) barren(c *class) bool {
	m := r.memory.of(c)
	if m.barren == r.epoch {
		return true
	}
	r.cluster.settle(c)
	known := r.barrens[c.like]
	if !slices.ContainsFunc(known, func(o *class) bool { return c.asksForAll(o) }) {
		s := search{class: c}
		if s.any() {
			return false
		}
		r.barrens[c.like] = append(known, c)
	}
	m.barren = r.epoch
	return true
}

// asksForAll reports whether the class asks for all that another one asks for.
func (c *class) asksForAll(o *class) bool {
	return o.capacity.Fits(c.capacity) && o.request.GPUs <= c.request.GPUs && o.request.GPUMilli <= c.request.GPUMilli
}
