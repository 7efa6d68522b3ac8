package fit

import (
	"slices"

	"berth/placement/cluster"
)

// Constants of the prices of blocks; see docs/design/placement.md.
const (
	// blockScale is the price of a thousandth of a GPU in a block for which there is much more
	// demand than supply.
	blockScale = 10
	// ampleBlocks is the load up to which blocks have no price.
	ampleBlocks = 1
)

// blocks holds the shadow prices of blocks of one size. A block is that many free GPUs of one set,
// together on one machine. Blocks have a price if the jobs for as many GPUs or more need more of the
// free capacity than there is in blocks. Then smaller jobs go to machines that hold no block, even if
// others would be better filled.
//
// The fragmentation cost hardly counts such jobs. They are few by number, so the best of eight
// samples seldom contains one.
//
// Where CPU runs out before GPUs, blocks have no price: free GPUs are left over in any case. The CPU
// and the memory of the machine do not count.
//
// Invariant: free is the sum over the machines of the fleet; see addFreeBlocks.
type blocks struct {
	market
	gpus  int64     // of one block
	free  []int64   // by set: GPU share in blocks, in thousandths of a GPU
	price []float64 // by set: of each thousandth of a GPU in a block
}

// addBlocks adds the blocks of each size for which there is demand.
func (sc *scarcity) addBlocks() {
	sc.wholes = make([]int64, len(sc.sets))
	var sizes []int64
	for i := range sc.value.shapes {
		if n := sc.value.shapes[i].gpus; n > 1 && !slices.Contains(sizes, n) {
			sizes = append(sizes, n)
		}
	}
	slices.Sort(sizes)
	for _, n := range sizes {
		if b := sc.newBlocks(n); len(b.demands) > 0 {
			sc.blocks = append(sc.blocks, b)
		}
	}
}

// newBlocks returns the blocks of a number of GPUs, with the demand of all shapes that need at
// least as many.
func (sc *scarcity) newBlocks(gpus int64) *blocks {
	b := &blocks{gpus: gpus, free: make([]int64, len(sc.sets)), price: make([]float64, len(sc.sets))}
	b.size(len(sc.sets))
	for _, d := range sc.demands {
		for _, i := range d.shapes {
			if s := &sc.value.shapes[i]; s.gpus >= gpus {
				b.ask(i, d.sets, s.p*float64(s.class.Capacity.GPUMilli))
			}
		}
	}
	return b
}

// of returns the GPU share in the blocks of a machine with wholes free GPUs of one set, in thousandths
// of a GPU.
func (b *blocks) of(wholes int64) int64 { return wholes / b.gpus * b.gpus * cluster.Whole }

// setPrices computes the price of blocks from the loads.
func (b *blocks) setPrices() {
	for g, load := range b.load {
		if b.price[g] = 0; load > ampleBlocks {
			b.price[g] = blockScale * (1 - ampleBlocks/load)
		}
	}
}

// addFreeBlocks adds a machine's blocks to its sets, or removes them where sign is -1.
func (sc *scarcity) addFreeBlocks(s *remnant, sets []int32, sign int64) {
	if len(sc.blocks) == 0 {
		return
	}
	sc.countWholes(s, sets)
	for i, g := range sets {
		if slices.Contains(sets[:i], g) {
			continue
		}
		for _, b := range sc.blocks {
			b.free[g] += sign * b.of(sc.wholes[g])
		}
	}
}

// countWholes sets wholes to the number of the machine's free GPUs of each of its sets.
func (sc *scarcity) countWholes(s *remnant, sets []int32) {
	for _, g := range sets {
		sc.wholes[g] = 0
	}
	for _, h := range s.holes {
		if h.free() == cluster.Whole {
			sc.wholes[sets[h.variant()]]++
		}
	}
}

// priceOfBlocks returns the price of all blocks of a machine.
func (sc *scarcity) priceOfBlocks(s *remnant, sets []int32) (sum float64) {
	if len(sc.blocks) == 0 {
		return 0
	}
	sc.countWholes(s, sets)
	for i, g := range sets {
		if !slices.Contains(sets[:i], g) {
			sum += sc.blockPrice(int(g), sc.wholes[g])
		}
	}
	return sum
}

// blockPrice returns the price of the blocks of one set on a machine with that many free GPUs of it.
func (sc *scarcity) blockPrice(set int, wholes int64) (sum float64) {
	for _, b := range sc.blocks {
		if b.price[set] > 0 {
			sum += b.price[set] * float64(b.of(wholes))
		}
	}
	return sum
}
