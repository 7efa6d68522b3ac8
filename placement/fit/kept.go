package fit

import (
	"fmt"
	"slices"
	"strings"

	"berth/placement/cluster"
)

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

// ScarceBlocks describes machines that are kept for jobs that need several GPUs of one machine,
// while a class that needs fewer has other free GPUs to choose from.
type ScarceBlocks struct {
	GPUs      int     // free GPUs that such a machine has at least
	Requested float64 // part of the requested GPU share, by jobs for as many GPUs or more, from 0 to 1
	Free      float64 // part of the free GPU share that is in such blocks, from 0 to 1
}

// String describes the scarcity in one clause.
func (s *ScarceBlocks) String() string {
	return fmt.Sprintf(
		"kept off machines with %d free GPUs: %.0f %% of the requested GPUs are for jobs for %d or more on a machine, "+
			"and %.0f %% of the free GPUs are on such machines", s.GPUs, 100*s.Requested, s.GPUs, 100*s.Free)
}

// Scarce returns the GPUs that new jobs of the class are kept off, by the present mix and free
// capacity. It returns nil if there are none, or if the class has no other GPUs to choose from.
func (p *Packer) Scarce(c *cluster.Class) *Scarce {
	sc := p.pricesFor(c)
	if sc == nil {
		return nil
	}
	of := p.modelsOf(c)
	kept := make([]bool, len(sc.sets))
	for g, models := range of {
		kept[g] = len(models) > 0 && sc.sets[g].price > 0
	}
	kept = sc.needed(kept)
	var scarce, plenty []string
	for g, models := range of {
		if kept[g] {
			scarce = append(scarce, models...)
		} else {
			plenty = append(plenty, models...)
		}
	}
	slices.Sort(scarce)
	// A model that is scarce in one region only is no model to keep off.
	scarce = slices.DeleteFunc(slices.Compact(scarce), func(m string) bool { return slices.Contains(plenty, m) })
	if len(plenty) == 0 || len(scarce) == 0 {
		return nil
	}
	s := &Scarce{Models: scarce}
	s.Requested, s.Free = sc.parts(kept)
	return s
}

// ScarceBlocks returns the machines that new jobs of the class are kept off since jobs for more GPUs
// of one machine need them. Of several such numbers of GPUs it returns the one with the highest
// price. It returns nil if there is none, or if all GPUs that the class may use are on such machines.
func (p *Packer) ScarceBlocks(c *cluster.Class) *ScarceBlocks {
	sc := p.pricesFor(c)
	if sc == nil {
		return nil
	}
	var dearest *blocks
	most, of := 0.0, p.modelsOf(c)
	for _, b := range sc.blocks {
		if b.gpus <= int64(c.Request.GPUs) {
			continue // the job needs a block itself
		}
		price, free, together := 0.0, int64(0), int64(0)
		for g, models := range of {
			if len(models) > 0 {
				price = max(price, b.price[g])
				free, together = free+sc.sets[g].free, together+b.free[g]
			}
		}
		if price > most && together > 0 && free > together {
			dearest, most = b, price
		}
	}
	if dearest == nil {
		return nil
	}
	s := &ScarceBlocks{GPUs: int(dearest.gpus)}
	for i := range dearest.demands {
		s.Requested += dearest.demands[i].amount / sc.total
	}
	free, together := int64(0), int64(0)
	for g := range sc.sets {
		free, together = free+sc.sets[g].free, together+dearest.free[g]
	}
	s.Free = float64(together) / float64(max(1, free))
	return s
}

// pricesFor returns the prices that count for jobs of a class, up to date; nil: none.
func (p *Packer) pricesFor(c *cluster.Class) *scarcity {
	if p.fleet == nil || p.fleet.scarcity == nil || c.Request.GPUs == 0 || spreads(c) {
		return nil
	}
	p.fleet.scarcity.refresh()
	return p.fleet.scarcity
}

// modelsOf returns the models of the devices of each set that a class may use; none for a set that
// it may not use.
func (p *Packer) modelsOf(c *cluster.Class) [][]string {
	sc := p.fleet.scarcity
	list := make([][]string, len(sc.sets))
	for _, n := range p.cluster.Nodes {
		i := slices.IndexFunc(c.Matches, func(m cluster.Match) bool { return m.Kind == n.Kind })
		if i < 0 || n.Kind.Index >= len(sc.of) || sc.of[n.Kind.Index] == nil {
			continue
		}
		for d, v := range n.Variants {
			if v >= cluster.MaxVariants || c.Matches[i].Devices>>v&1 == 0 {
				continue
			}
			models := &list[sc.of[n.Kind.Index][v]]
			if model := n.GPUs[d].Model; !slices.Contains(*models, model) {
				*models = append(*models, model)
			}
		}
	}
	return list
}

// needed returns the sets among the given ones for which there is demand that only the given sets
// can serve. The other ones have a price for demand that may come.
func (sc *scarcity) needed(sets []bool) []bool {
	list := make([]bool, len(sets))
	for i := range sc.demands {
		d := &sc.demands[i]
		if !slices.ContainsFunc(d.sets, func(g int) bool { return !sets[g] }) {
			for _, g := range d.sets {
				list[g] = true
			}
		}
	}
	return list
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
