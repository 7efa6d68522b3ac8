package fit

import (
	"fmt"
	"slices"
	"strings"

	"berth/placement/cluster"
)

// total adds the surcharge for scarce devices to the fragmentation cost of one more member of
// the class in the group. where is the free part with the least fragmentation cost, for a share
// of a GPU; on a machine with devices of several sets, total chooses the free part itself.
func (f *fleet) total(g *group, c *cluster.Class, devices uint64, loss float32, where hole) (float32, hole) {
	s, uniform := f.scarcity.uniform(g.kind)
	switch r := c.Request; {
	case uniform && (s == nil || s.price == 0):
		return loss, where
	case uniform:
		after := s.priceOf(g.gpu-c.Capacity.GPUMilli, g.cpu-c.Capacity.CPUMilli)
		return loss + float32(s.priceOf(g.gpu, g.cpu)-after), where
	case r.GPUs == 0:
		return loss + f.surcharge(g, c, g.holes), where
	case r.GPUMilli == cluster.Whole:
		f.after = g.without(f.after, r.GPUs, devices)
		return loss + f.surcharge(g, c, f.after), where
	default:
		return f.leastTotal(g, c, devices)
	}
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
		if h.free() < c.Request.GPUMilli || devices>>h.variant()&1 == 0 || i > 0 && h == g.holes[i-1] {
			continue
		}
		f.after = g.with(f.after, i, c.Request.GPUMilli)
		to := remnant{g.kind, g.cpu - c.Capacity.CPUMilli, g.memory - c.Capacity.MemoryMiB, f.after}
		f.uncached++
		if l := f.loss(g, &to) + f.surcharge(g, c, f.after); l < least {
			least, best = l, h
		}
	}
	return least, best
}

// Scarce describes GPUs that a class may use but that are kept for jobs bound to them, while
// the class has other GPUs to choose from.
type Scarce struct {
	Models    []string // of the scarce GPUs, sorted
	Requested float64  // part of the requested GPU share that only these GPUs can serve, from 0 to 1
	Free      float64  // part of the free GPU share that these GPUs are, from 0 to 1
}

// String describes the scarcity in one clause.
func (s *Scarce) String() string {
	return fmt.Sprintf(
		"kept off %s: %.0f %% of the requested GPUs must be of these, which are %.0f %% of the free GPUs",
		strings.Join(s.Models, ", "), 100*s.Requested, 100*s.Free)
}

// Scarce returns the GPUs that new jobs of the class are kept off, by the present mix and free
// capacity. It returns nil if there are none, or if the class has no other GPUs to choose from.
func (p *Packer) Scarce(c *cluster.Class) *Scarce {
	if p.fleet == nil || p.fleet.scarcity == nil || c.Request.GPUs == 0 || spreads(c) {
		return nil
	}
	sc := p.fleet.scarcity
	sc.refresh()
	priced := make([]bool, len(sc.sets))
	var scarce, plenty []string // models
	for _, n := range p.cluster.Nodes {
		i := slices.IndexFunc(c.Matches, func(m cluster.Match) bool { return m.Kind == n.Kind })
		if i < 0 || n.Kind.Index >= len(sc.of) || sc.of[n.Kind.Index] == nil {
			continue
		}
		for d, v := range n.Variants {
			if v >= cluster.MaxVariants || c.Matches[i].Devices>>v&1 == 0 {
				continue
			}
			g := sc.of[n.Kind.Index][v]
			if priced[g] = sc.sets[g].price > 0; priced[g] {
				scarce = append(scarce, n.GPUs[d].Model)
			} else {
				plenty = append(plenty, n.GPUs[d].Model)
			}
		}
	}
	slices.Sort(scarce)
	// A model that is scarce in one region only is no model to keep off.
	scarce = slices.DeleteFunc(slices.Compact(scarce), func(m string) bool { return slices.Contains(plenty, m) })
	if len(plenty) == 0 || len(scarce) == 0 {
		return nil
	}
	s := &Scarce{Models: scarce}
	s.Requested, s.Free = sc.parts(priced)
	return s
}

// parts returns the part of the requested GPU share that only the given sets can serve, and the
// part of the free GPU share that they are.
func (sc *scarcity) parts(sets []bool) (requested, free float64) {
	for i := range sc.demands {
		d := &sc.demands[i]
		if !slices.ContainsFunc(d.sets, func(g int) bool { return !sets[g] }) {
			_, gpu := sc.value.means(d.shapes)
			requested += gpu / sc.total
		}
	}
	sum := int64(0)
	for g := range sc.sets {
		sum += sc.sets[g].free
		if sets[g] {
			free += float64(sc.sets[g].free)
		}
	}
	return requested, free / float64(max(1, sum))
}
