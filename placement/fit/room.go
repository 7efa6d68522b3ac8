package fit

import (
	"slices"

	"berth"
	"berth/placement/cluster"
)

// Roomy returns the groups of Groups whose machines could hold all members of a job if they were empty. A
// label with another value on each machine makes as many groups as machines, and a wide gang fits none of
// them: no search needs to try. The answer is cached until the set of machines changes (Cluster.Shape).
func Roomy(r *Placer, c *cluster.Class) []string {
	if !c.Gathers() || c.Members() == 1 {
		return r.Groups(c)
	}
	r.cluster.Settle(c) // also of a cached answer: searches of the groups read the class's machines
	m := r.memory.of(c)
	if m.roomyAt != r.cluster.Shape {
		m.roomy = m.roomy[:0]
		for _, group := range r.Groups(c) {
			if roomy(r, c, group) {
				m.roomy = append(m.roomy, group)
			}
		}
		m.roomyAt = r.cluster.Shape
	}
	return m.roomy
}

// roomy reports whether the machines of a group have the amounts of all members of a class, and enough
// places for the members of each part by itself. Unhealthy devices count as well.
func roomy(r *Placer, c *cluster.Class, group string) bool {
	for _, p := range c.Parts {
		left := p.Members
		for _, m := range p.Class.MatchesIn(group) {
			m.Kind.Each(func(n *cluster.Node) bool {
				r.Visits++
				left -= min(left, membersIn(p.Class, n.Total, devicesOf(p.Class, n, m.Devices)))
				return left > 0
			})
			if left == 0 {
				break
			}
		}
		if left > 0 {
			return false
		}
	}
	return !SumLacks(r, c, group, func(n *cluster.Node) berth.Capacity { return n.Total })
}

// SumLacks reports whether the amounts of the machines of a group that any part of the class may use do not
// add up to all members of a gang of unlike members. It stops where they do.
func SumLacks(
	r *Placer, c *cluster.Class, group string, amount func(*cluster.Node) berth.Capacity,
) bool {
	if c.Unlike() == nil {
		return false // the members were counted
	}
	var sum berth.Capacity
	seen := map[*cluster.Kind]bool{}
	for _, p := range c.Parts {
		for _, m := range p.Class.MatchesIn(group) {
			if seen[m.Kind] {
				continue
			}
			seen[m.Kind] = true
			m.Kind.Each(func(n *cluster.Node) bool {
				r.Visits++
				x := amount(n)
				sum = sum.Add(berth.Capacity{CPUMilli: max(0, x.CPUMilli), MemoryMiB: max(0, x.MemoryMiB),
					DiskMiB: max(0, x.DiskMiB), GPUMilli: max(0, x.GPUMilli)})
				return !c.All.Fits(sum)
			})
			if c.All.Fits(sum) {
				return false
			}
		}
	}
	return true
}

// devicesOf returns the number of members for which an empty machine has devices of the allowed variants.
func devicesOf(c *cluster.Class, n *cluster.Node, allowed uint64) int {
	if c.Request.GPUs == 0 {
		return c.Members()
	}
	count := 0
	for i := range n.Variants {
		if admitted(n, i, allowed) {
			count++
		}
	}
	if c.Request.GPUMilli < cluster.Whole {
		return count * int(cluster.Whole/c.Request.GPUMilli)
	}
	return count / c.Request.GPUs
}

// PlacesOn returns the number of members for which a machine has free capacity, at most the members of a
// job. It does not distinguish shares of different tenants, so it may be too many.
func PlacesOn(c *cluster.Class, n *cluster.Node, allowed uint64) int {
	if !c.MayEnter(n) {
		return 0
	}
	return membersIn(c, n.Free, freeDevicesOf(c, n, allowed))
}

// freeDevicesOf returns the number of members for which a machine has free devices.
func freeDevicesOf(c *cluster.Class, n *cluster.Node, allowed uint64) int {
	r := &c.Request
	if r.GPUs == 0 {
		return c.Members()
	}
	count := 0
	for i, free := range n.FreeMilli {
		if free < r.GPUMilli || !admitted(n, i, allowed) {
			continue
		}
		if r.GPUMilli < cluster.Whole {
			count += int(free / r.GPUMilli)
		} else if free == cluster.Whole {
			count++
		}
	}
	if r.GPUMilli < cluster.Whole {
		return count
	}
	return count / r.GPUs
}

// short reports whether the free and held capacity of the machines of a group cannot hold all members of
// some part of a gang, or is less than the sum of all members. It spares the placement of the members that
// do have room. Machines that two parts could use count for both, so a false answer promises nothing.
func short(r *Placer, c *cluster.Class, avoid []berth.MachineID, group string) bool {
	if c.Members() == 1 {
		return false // the search itself costs no more
	}
	return slices.ContainsFunc(c.Parts, func(p cluster.Part) bool {
		s := r.search(p.Class, avoid, group)
		return lacks(r, &s, p.Members)
	}) || SumLacks(r, c, group, r.ledger.WithHeld)
}

// lacks reports whether the machines of a search have fewer places than members. It stops at the last
// member that has a place.
func lacks(r *Placer, s *Search, members int) bool {
	c := s.Class
	for _, need := range Needs(c) {
		for _, m := range s.Matches() {
			r.Visits++
			m.Kind.Walk(need, false, func(n *cluster.Node) bool {
				r.Visits++
				if s.Allows(n) {
					members -= PlacesOn(c, n, m.Devices)
				}
				return members > 0
			})
			if members <= 0 {
				return false
			}
		}
	}
	if r.End.IsZero() {
		return true
	}
	for _, h := range r.ledger.Holds {
		r.Visits++
		n := h.Node
		m, ok := c.MatchOf(n.Kind)
		if !ok || r.End.After(h.Until) || !n.Offered() || !s.Allows(n) {
			continue
		}
		x := r.ledger.Sketch(n)
		h.Lift(x)
		if members -= PlacesOn(c, x, m.Devices); members <= 0 {
			return false
		}
	}
	return true
}
