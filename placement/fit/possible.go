package fit

import (
	"berth/placement/cluster"
)

// Possible reports whether the machines could hold all members of a job of the class if
// they were empty, with all members in one group. The answer is cached until the set of
// machines changes (Cluster.Shape).
func (r *Placer) Possible(c *cluster.Class) bool {
	m := r.memory.of(c)
	switch r.cluster.Shape {
	case m.never:
		return false
	case m.ever:
		return true
	}
	r.cluster.Settle(c)
	members := map[string]int{} // by group
	for _, x := range c.Matches {
		for _, n := range x.Kind.All(r.Number) {
			group := GroupOf(c, &n.Machine)
			if members[group] += MembersOn(c, n); members[group] >= c.Members() {
				m.ever = r.cluster.Shape
				return true
			}
		}
	}
	m.never = r.cluster.Shape
	return false
}
