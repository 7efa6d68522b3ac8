package fit

import "berth/placement/cluster"

// total adds the surcharge for scarce devices to the fragmentation cost of one more member of
// the class in the group. where is the free part with the least fragmentation cost, for a share
// of a GPU; on a machine with devices of several sets, total chooses the free part itself.
func (f *fleet) total(g *group, c *cluster.Class, devices uint64, loss float32, where hole) (float32, hole) {
	set, uniform := f.scarcity.uniform(g.kind)
	switch r := c.Request; {
	case uniform && set < 0:
		return loss, where
	case uniform:
		return loss + f.fastSurcharge(set, g, c, where), where
	case r.GPUs == 0:
		return loss + f.surcharge(g, c, g.holes), where
	case r.GPUMilli == cluster.Whole:
		f.after = g.without(f.after, r.GPUs, devices)
		return loss + f.surcharge(g, c, f.after), where
	default:
		return f.leastTotal(g, c, devices)
	}
}

// fastSurcharge is surcharge for a machine whose devices are all of one set.
func (f *fleet) fastSurcharge(set int, g *group, c *cluster.Class, where hole) float32 {
	sum := 0.0
	if s := &f.scarcity.sets[set]; s.price > 0 {
		sum = s.priceOf(g.gpu, g.cpu) - s.priceOf(g.gpu-c.Capacity.GPUMilli, g.cpu-c.Capacity.CPUMilli)
	}
	taken := int64(0) // GPUs that were wholly free
	switch r := c.Request; {
	case r.GPUMilli == cluster.Whole:
		taken = int64(r.GPUs)
	case r.GPUs > 0 && where.free() == cluster.Whole:
		taken = 1
	}
	if taken > 0 {
		sum += f.scarcity.blockPrice(set, g.wholes) - f.scarcity.blockPrice(set, g.wholes-taken)
	}
	return float32(sum)
}

// surcharge returns the fall of the price of a group's free capacity, in thousandths of a GPU,
// that one more member of the class causes. holes are the free parts that remain. It is never
// negative, so that a place whose fragmentation cost alone is too high can be passed over.
func (f *fleet) surcharge(g *group, c *cluster.Class, holes []hole) float32 {
	to := remnant{g.kind, g.cpu - c.Capacity.CPUMilli, g.memory - c.Capacity.MemoryMiB, holes}
	return float32(max(0, f.scarcity.priceOf(&g.remnant)-f.scarcity.priceOf(&to)))
}

// leastTotal returns the least sum of fragmentation cost and surcharge for a share of a GPU, and
// its free part. The fragmentation cost of each free part is computed at each call, since only
// the least one is kept.
func (f *fleet) leastTotal(g *group, c *cluster.Class, devices uint64) (float32, hole) {
	least, best := float32(never), hole(0)
	for i, h := range g.holes {
		if h.free() < c.Request.GPUMilli || devices>>h.variant()&1 == 0 || i > 0 && h == g.holes[i-1] || !h.admits(c) {
			continue
		}
		f.after = g.with(f.after, i, c)
		to := remnant{g.kind, g.cpu - c.Capacity.CPUMilli, g.memory - c.Capacity.MemoryMiB, f.after}
		f.uncached++
		if l := f.loss(g, &to) + f.surcharge(g, c, f.after); l < least {
			least, best = l, h
		}
	}
	return least, best
}
