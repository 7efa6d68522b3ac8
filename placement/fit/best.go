package fit

import (
	"slices"
	"strings"

	"berth"
	"berth/placement/cluster"
)

// BestMachines lists machines that fit now, the best first, at most the given number.
func BestMachines(c *cluster.Class, most int) []berth.MachineID {
	type scored struct {
		node  *cluster.Node
		score int64
	}
	var list []scored
	q := Search{Class: c}
	for _, m := range c.Matches {
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
	slices.SortFunc(list, func(a, b scored) int {
		if a.score != b.score {
			return cluster.Sign(a.score - b.score)
		}
		return strings.Compare(string(a.node.ID), string(b.node.ID))
	})
	var ids []berth.MachineID
	for _, x := range list {
		if !slices.Contains(ids, x.node.ID) && len(ids) < most {
			ids = append(ids, x.node.ID)
		}
	}
	return ids
}
