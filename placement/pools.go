package placement

import (
	"slices"

	"berth"
	"berth/placement/cluster"
)

// poolIndex finds the pools that could run a class without a look at each machine: by kind of
// machine, with the largest total capacity that a machine of the kind has in each pool. Devices
// are not counted, so a pool may be found whose machines have too few.
type poolIndex struct {
	cluster *cluster.Cluster
	totals  map[*cluster.Kind]map[string]berth.Capacity // by pool; nil: not made
	known   map[*cluster.Class][]string
}

func newPoolIndex(c *cluster.Cluster) *poolIndex {
	return &poolIndex{cluster: c, known: map[*cluster.Class][]string{}}
}

// of returns the pools of a class, sorted: of unlike members, the pools for any of them.
func (x *poolIndex) of(c *cluster.Class) []string {
	if list, ok := x.known[c]; ok {
		return list
	}
	// Settle matches the class with the kinds that it has not seen yet.
	x.cluster.Settle(c)
	// Measured on first use: many plans ask for no pools.
	if x.totals == nil {
		x.measure()
	}
	var list []string
	for _, p := range c.Parts {
		for _, m := range p.Class.Matches {
			for pool, total := range x.totals[m.Kind] {
				// The maxima of the amounts may come from different machines, so a pool is never missed but may be
				// found in vain.
				if holds(total, p.Class.Capacity) && !slices.Contains(list, pool) {
					list = append(list, pool)
				}
			}
		}
	}
	slices.Sort(list)
	x.known[c] = list
	return list
}

// holds compares all amounts except devices.
func holds(total, c berth.Capacity) bool {
	return c.CPUMilli <= total.CPUMilli && c.MemoryMiB <= total.MemoryMiB && c.DiskMiB <= total.DiskMiB
}

// measure reads the pools and the capacity of all machines.
func (x *poolIndex) measure() {
	x.totals = map[*cluster.Kind]map[string]berth.Capacity{}
	for _, n := range x.cluster.Nodes {
		pools := x.totals[n.Kind]
		if pools == nil {
			pools = map[string]berth.Capacity{}
			x.totals[n.Kind] = pools
		}
		most := pools[n.Pool]
		pools[n.Pool] = berth.Capacity{
			CPUMilli:  max(most.CPUMilli, n.Total.CPUMilli),
			MemoryMiB: max(most.MemoryMiB, n.Total.MemoryMiB),
			DiskMiB:   max(most.DiskMiB, n.Total.DiskMiB),
		}
	}
}
