package preempt

import (
	"slices"

	"berth"
	"berth/placement/cluster"
	"berth/placement/fit"
)

// short reports whether a group of machines has too few places for the members of some part of a gang, even
// if all jobs that the present job may preempt stopped. It spares the search for victims of the members
// that do have a place. Each part is counted by itself, so a false answer promises nothing.
func short(r *Search, c *cluster.Class, group string) bool {
	return slices.ContainsFunc(c.Parts, func(p cluster.Part) bool {
		s, left := r.placer.SearchFor(p.Class, group), p.Members
		want := cluster.GlanceOf(p.Class.Capacity)
		for _, m := range s.Matches() {
			b := r.bounds(m.Kind)
			touched := m.Kind.TouchedBy(r.Number)
			for i := range b.entries {
				n, most := m.Kind.Members[i], b.entries[i].most
				if b.entries[i].band == noBand {
					most = b.entries[i].room // most is for machines with candidates
				}
				r.placer.Visits++
				if !touched.Has(i) && !want.Within(most) || !s.Allows(n) {
					continue
				}
				if left -= fit.PlacesOn(p.Class, cleared(r, n), m.Devices); left <= 0 {
					return false
				}
			}
		}
		return true
	}) || fit.SumLacks(r.placer, c, group, func(n *cluster.Node) berth.Capacity { return cleared(r, n).Free })
}

// cleared returns a machine without the jobs on it that the present job may preempt. Held capacity stays held: the
// job's end is unknown, so no member may use it. The result is valid until the next call.
func cleared(r *Search, n *cluster.Node) *cluster.Node {
	x := r.ledger.Sketch(n)
	for _, v := range r.candidates(n) {
		if _, ok := r.may(v); !ok {
			continue
		}
		for i := range v.Ranks {
			if v.Ranks[i].Machine == n.ID {
				x.Add(v.Ranks[i])
			}
		}
	}
	return x
}
