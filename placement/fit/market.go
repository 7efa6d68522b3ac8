package fit

import (
	"encoding/binary"
	"math"
	"slices"
)

// market is a transport problem: demands that may each use some device sets, and the supply of
// each set.
type market struct {
	demands []demand  // fewest sets first
	supply  []int64   // by set, in thousandths of a GPU, at least 1
	base    []float64 // by set: demand that cannot move, in thousandths of a GPU
	load    []float64 // by set: demand over supply; the demand alone while balance computes
	order   []int     // buffer of redistribute
}

// demand is the demand of all shapes that may use the same sets.
type demand struct {
	key    string // the sets, encoded
	sets   []int  // indexes of sets, ascending
	shapes []int
	amount float64   // GPU demand, in a unit of the caller; see balance
	flow   []float64 // the part that each set serves, by position in sets
}

// size makes room for a number of sets.
func (m *market) size(sets int) {
	m.supply, m.base, m.load = make([]int64, sets), make([]float64, sets), make([]float64, sets)
}

// ask adds an amount of demand of a shape that may use the sets.
func (m *market) ask(shape int, sets []int, amount float64) {
	var key []byte
	for _, g := range sets {
		key = binary.BigEndian.AppendUint16(key, uint16(g))
	}
	at := slices.IndexFunc(m.demands, func(d demand) bool { return d.key == string(key) })
	if at < 0 {
		at = len(m.demands)
		m.demands = append(m.demands, demand{key: string(key), sets: sets, flow: make([]float64, len(sets))})
	}
	m.demands[at].shapes = append(m.demands[at].shapes, shape)
	m.demands[at].amount += amount
}

// balance distributes the demand over the sets so that no shape could move to a set with a
// lower load: in turn, each demand fills the least loaded of its sets to an equal level. The
// demand in thousandths of a GPU is scale times the amounts.
func (m *market) balance(scale float64) {
	copy(m.load, m.base)
	for i := range m.demands {
		d := &m.demands[i]
		sum := 0.0
		for _, g := range d.sets {
			sum += float64(m.supply[g])
		}
		for k, g := range d.sets {
			// load holds the sum of flows until the rounds end.
			d.flow[k] = d.amount * scale * float64(m.supply[g]) / sum
			m.load[g] += d.flow[k]
		}
	}
	for range maxRounds {
		most := 0.0
		for i := range m.demands {
			if d := &m.demands[i]; len(d.sets) > 1 {
				most = max(most, m.redistribute(d, d.amount*scale))
			}
		}
		if most < settled {
			break
		}
	}
	for g := range m.load {
		m.load[g] /= float64(m.supply[g])
	}
}

// redistribute moves one demand over its sets, given the flows of all others. It returns the
// largest change of a flow, relative to the set's supply.
func (m *market) redistribute(d *demand, amount float64) (most float64) {
	ratio := func(g int) float64 { return m.load[g] / float64(m.supply[g]) }
	order := m.order[:0]
	for k, g := range d.sets {
		m.load[g] -= d.flow[k]
		x := ratio(g)
		order = append(order, k)
		for j := k; j > 0 && ratio(d.sets[order[j-1]]) > x; j-- {
			order[j], order[j-1] = order[j-1], order[j]
		}
	}
	m.order = order
	level, supply, load := 0.0, 0.0, 0.0
	for j, k := range order {
		g := d.sets[k]
		if j > 0 && level <= ratio(g) {
			break
		}
		supply += float64(m.supply[g])
		load += m.load[g]
		level = (amount + load) / supply
	}
	for k, g := range d.sets {
		flow := max(0, level*float64(m.supply[g])-m.load[g])
		most = max(most, math.Abs(flow-d.flow[k])/float64(m.supply[g]))
		d.flow[k] = flow
		m.load[g] += flow
	}
	return most
}
