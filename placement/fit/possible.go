package fit

import (
	"slices"

	"berth"
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
	if c.Unlike() != nil {
		possible := slices.ContainsFunc(Roomy(r, c), func(group string) bool { return r.possibleIn(c, group) })
		if m.never = r.cluster.Shape; possible {
			m.never, m.ever = 0, r.cluster.Shape
		}
		return possible
	}
	members := map[string]int{} // by group
	for _, x := range c.Matches {
		for _, n := range x.Kind.All(r.Number) {
			if slices.Contains(c.Request.Avoid, n.ID) {
				continue
			}
			group := c.GroupOf(&n.Machine)
			if members[group] += MembersOn(c, n); members[group] >= c.Members() {
				m.ever = r.cluster.Shape
				return true
			}
		}
	}
	m.never = r.cluster.Shape
	return false
}

// possibleIn places the members of a gang of unlike members on empty machines of one group, in the orders
// that a plan tries.
func (r *Placer) possibleIn(c *cluster.Class, group string) bool {
	return slices.ContainsFunc(c.Orders, func(parts []cluster.Part) bool { return possibleInOrder(r, parts, group) })
}

// possibleInOrder places the parts of a gang on empty machines of one group, one after the other. It
// takes as many members as fit from one machine after the other, on copies that only this search sees.
func possibleInOrder(r *Placer, parts []cluster.Part, group string) bool {
	empty := map[*cluster.Node]*cluster.Node{}
	for _, p := range parts {
		left := p.Members
		for _, x := range p.Class.MatchesIn(group) {
			for _, n := range x.Kind.All(r.Number) {
				if slices.Contains(p.Class.Request.Avoid, n.ID) {
					continue
				}
				if empty[n] == nil {
					empty[n] = Emptied(n)
				}
				for left > 0 {
					devices, ok := Devices(p.Class, empty[n], x.Devices)
					if !ok {
						break
					}
					empty[n].Subtract(Grant(p.Class, empty[n], devices))
					left--
				}
			}
		}
		if left > 0 {
			return false
		}
	}
	return true
}

// Emptied returns a copy of a machine with all its capacity free and all its devices healthy. Trials
// may change it freely.
func Emptied(n *cluster.Node) *cluster.Node {
	x := n.Blank()
	x.Used, x.GPUs = berth.Capacity{}, slices.Clone(n.GPUs)
	for i := range x.GPUs {
		x.GPUs[i].UsedMilli, x.GPUs[i].Healthy = 0, true
	}
	x.Recount()
	x.Unshare()
	return &x
}
