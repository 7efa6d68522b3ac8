package placement

import (
	"slices"
	"strings"

	"berth"
)

// bestMachines lists machines that fit now, the best first, at most the given number.
func bestMachines(c *class, most int) []berth.MachineID {
	type scored struct {
		node  *node
		score int64
	}
	var list []scored
	q := search{class: c}
	for _, m := range c.matches {
		for _, need := range c.needs() {
			left := most
			m.kind.walk(need, c.spreads(), func(n *node) bool {
				if devices, ok := c.fit(n, m.devices); ok && q.allows(n) {
					list = append(list, scored{n, c.score(n, devices)})
					left--
				}
				return left > 0
			})
		}
	}
	slices.SortFunc(list, func(a, b scored) int {
		if a.score != b.score {
			return sign(a.score - b.score)
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
