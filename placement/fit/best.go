package fit

import (
	"slices"
	"strings"

	"berth"
	"berth/placement/cluster"
)

// BestMachines returns up to most machines that have room for one member now, in order of
// their best-fit score. It serves explanations, and ignores the rule LeastFragmentation.
func BestMachines(c *cluster.Class, most int) []berth.MachineID {
	type scored struct {
		node  *cluster.Node
		score int64
	}
	var list []scored
	q := Search{Class: c}
	for _, m := range c.Matches {
		// The walk goes from tight to roomy machines (for spread, the other way), so the
		// best machines are among the first; only these are scored.
		for _, need := range Needs(c) {
			left := most
			m.Kind.Walk(need, spreads(c), func(n *cluster.Node) bool {
				if devices, ok := Devices(c, n, m.Devices); ok && q.Allows(n) {
					list = append(list, scored{n, score(c, n, devices)})
					left--
				}
				return left > 0
			})
		}
	}
	// Equal scores are ordered by id, so that the answer does not depend on the walk.
	slices.SortFunc(list, func(a, b scored) int {
		if a.score != b.score {
			return cluster.Sign(a.score - b.score)
		}
		return strings.Compare(string(a.node.ID), string(b.node.ID))
	})
	var ids []berth.MachineID
	for _, x := range list {
		// A share may fit on one machine by both needs: a device in use, and an unused one.
		if !slices.Contains(ids, x.node.ID) && len(ids) < most {
			ids = append(ids, x.node.ID)
		}
	}
	return ids
}
