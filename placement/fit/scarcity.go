package fit

import (
	"encoding/binary"
	"math"
	"math/bits"
	"slices"
	"strings"

	"berth/placement/cluster"
)

// Constants of the scarcity prices. docs/design/placement.md shows how they were chosen: results
// hardly depend on them.
const (
	// priceScale turns a relative difference of loads into a price. A job that has a choice
	// takes scarcer devices only for a fragmentation cost that the difference outweighs.
	priceScale = 30
	// boundWeight is how often the demand of a bound shape counts: one with a condition that
	// excludes some devices. Other shapes find a place wherever capacity is left, so their
	// demand decides only where bound demand does not.
	boundWeight = 20
	// evenLoad is the relative difference up to which two loads count as equal.
	evenLoad = 0.01
	// cpuReserve is the CPU that a free GPU needs to be usable, relative to the mean request
	// of its users: machines whose GPUs are all in use keep some CPU.
	cpuReserve = 1.2
	// maxMatches bounds the number of shapes times kinds for which prices are computed. Beyond
	// it, where nearly each machine is a kind of its own, nothing has a price.
	maxMatches = 1 << 18
	// maxSets bounds the device sets likewise: the search for the balance takes quadratic time.
	maxSets = 128
	// balance stops after maxRounds rounds, or once no flow changes by more than settled times
	// the supply of its set.
	maxRounds = 100
	settled   = 1e-3
)

// scarcity holds the shadow prices of free GPUs. GPUs of a model have a price if the demand that
// is bound to the model, relative to the free GPUs of the model, exceeds the same ratio elsewhere.
// Then jobs that could run elsewhere keep off that model.
//
// The prices are the dual values of a transport problem between shapes of the mix and device sets:
// shapes with a choice go where the load is least, until no shape gains by moving. The demand is
// the mix, scaled to the free capacity. So a model becomes scarce when other jobs have taken much
// of it, and stops being scarce when its demand does not come.
//
// Prices are a function of the mix, the machines and the free capacity, rounded by quantize. They
// never depend on earlier prices: kept prices equal recomputed ones.
type scarcity struct {
	value   *value
	sets    []deviceSet // sorted by users
	of      [][]int32   // by Kind.Index, by variant: index of the set; nil: the kind has no machine
	bound   []bool      // by shape: a condition of the request excludes some device
	demands []demand    // fewest sets first
	total   float64     // demand of all shapes, each counted once
	quantum int64       // least step of a supply, in thousandths of a GPU
	stale   bool        // free capacity has changed since the last balance
	order   []int       // buffer of redistribute
}

// deviceSet is the set of all devices that the same shapes may use.
type deviceSet struct {
	key    string  // the users, encoded
	users  []int   // indexes of shapes, ascending
	perCPU float64 // usable thousandths of a GPU for each thousandth of a core
	free   int64   // free share of the devices, in thousandths of a GPU
	cpu    int64   // free thousandths of a core on the machines with such devices
	supply int64   // the part of free that also has CPU, rounded by quantize
	load   float64 // demand over supply; while balance computes, the demand
	price  float64 // of each free thousandth of a GPU that has CPU; 0: not scarce
	need   float64 // CPU per thousandth of a GPU of the jobs for which the set is scarce
}

// demand is the demand of all shapes that may use the same sets.
type demand struct {
	key    string // the sets, encoded
	sets   []int  // indexes of sets, ascending
	shapes []int
	amount float64   // relative GPU demand, bound shapes counted boundWeight times
	flow   []float64 // the part that each set serves, by position in sets
}

// newScarcity computes the device sets of a cluster under a mix, without free capacity. It returns
// nil if all shapes may use the same devices: then nothing can be scarce.
func newScarcity(c *cluster.Cluster, v *value) *scarcity {
	sc := &scarcity{value: v, of: make([][]int32, len(c.Kinds)), stale: true, bound: make([]bool, len(v.shapes))}
	most := make([]int, len(c.Kinds)) // devices of the largest machine
	kinds := 0
	for _, n := range c.Nodes {
		if n.Placeable() && n.Kind != nil && len(n.GPUs) > 0 {
			if most[n.Kind.Index] == 0 {
				kinds++
			}
			most[n.Kind.Index] = max(most[n.Kind.Index], len(n.GPUs))
		}
	}
	if kinds*len(v.shapes) > maxMatches {
		return nil
	}
	at := map[string]int{}
	for _, k := range c.Kinds {
		if most[k.Index] > 0 {
			sc.addKind(k, int64(most[k.Index]), at)
		}
	}
	sc.sortSets()
	sc.addDemands()
	if len(sc.demands) < 2 || len(sc.sets) > maxSets {
		return nil
	}
	sc.quantum = max(1, c.Owned.GPUMilli>>11)
	return sc
}

// addKind adds the devices of a kind to their sets. at is the position of each set by key.
func (sc *scarcity) addKind(k *cluster.Kind, most int64, at map[string]int) {
	devices := sc.value.devicesOf(k)
	every := uint64(1)<<min(len(k.Variants), cluster.MaxVariants) - 1
	for i := range sc.value.shapes {
		sc.bound[i] = sc.bound[i] || devices[i] != every
	}
	sc.of[k.Index] = make([]int32, min(len(k.Variants), cluster.MaxVariants))
	for variant := range sc.of[k.Index] {
		var users []int
		var key []byte
		for i := range sc.value.shapes {
			if devices[i]>>variant&1 != 0 && sc.value.shapes[i].gpus <= most {
				users = append(users, i)
				key = binary.BigEndian.AppendUint16(key, uint16(i))
			}
		}
		g, ok := at[string(key)]
		if !ok {
			g = len(sc.sets)
			at[string(key)] = g
			sc.sets = append(sc.sets, deviceSet{key: string(key), users: users})
		}
		sc.of[k.Index][variant] = int32(g)
	}
}

// sortSets orders the sets by users, so that sums do not depend on the order of kinds.
func (sc *scarcity) sortSets() {
	was := make([]string, len(sc.sets))
	for g := range sc.sets {
		was[g] = sc.sets[g].key
	}
	slices.SortFunc(sc.sets, func(a, b deviceSet) int { return strings.Compare(a.key, b.key) })
	now := make([]int32, len(sc.sets))
	for g, key := range was {
		now[g] = int32(slices.IndexFunc(sc.sets, func(s deviceSet) bool { return s.key == key }))
	}
	for _, variants := range sc.of {
		for i := range variants {
			variants[i] = now[variants[i]]
		}
	}
	for g := range sc.sets {
		s := &sc.sets[g]
		cpu, gpu := sc.value.means(s.users)
		if s.perCPU = math.Inf(1); cpu > 0 {
			s.perCPU = gpu / cpu / cpuReserve
		}
	}
}

// means returns the mean requests of some shapes: CPU in thousandths of a core, and GPU share
// in thousandths.
func (v *value) means(shapes []int) (cpu, gpu float64) {
	for _, i := range shapes {
		cpu += v.shapes[i].p * float64(v.shapes[i].cpu)
		gpu += v.shapes[i].p * float64(v.shapes[i].class.Capacity.GPUMilli)
	}
	return cpu, gpu
}

// addDemands groups the shapes by the sets that they may use, fewest sets first.
func (sc *scarcity) addDemands() {
	may := make([][]int, len(sc.value.shapes))
	for g := range sc.sets {
		for _, i := range sc.sets[g].users {
			may[i] = append(may[i], g)
		}
	}
	at := map[string]int{}
	for i, sets := range may {
		if len(sets) == 0 {
			continue
		}
		var key []byte
		for _, g := range sets {
			key = binary.BigEndian.AppendUint16(key, uint16(g))
		}
		d, ok := at[string(key)]
		if !ok {
			d = len(sc.demands)
			at[string(key)] = d
			sc.demands = append(sc.demands, demand{
				key: string(key), sets: sets, flow: make([]float64, len(sets)),
			})
		}
		x := &sc.demands[d]
		x.shapes = append(x.shapes, i)
		amount := sc.value.shapes[i].p * float64(sc.value.shapes[i].class.Capacity.GPUMilli)
		sc.total += amount
		if sc.bound[i] {
			amount *= boundWeight
		}
		x.amount += amount
	}
	slices.SortFunc(sc.demands, func(a, b demand) int {
		if len(a.sets) != len(b.sets) {
			return len(a.sets) - len(b.sets)
		}
		return strings.Compare(a.key, b.key)
	})
}

// add adds a machine's free capacity to its sets, or removes it where sign is -1.
func (sc *scarcity) add(s *remnant, sign int64) {
	if s.kind.Index >= len(sc.of) || sc.of[s.kind.Index] == nil {
		return
	}
	sets := sc.of[s.kind.Index]
	for _, h := range s.holes {
		sc.sets[sets[h.variant()]].free += sign * h.free()
	}
	for i, g := range sets {
		if !slices.Contains(sets[:i], g) {
			sc.sets[g].cpu += sign * s.cpu
		}
	}
	sc.stale = true
}

// quantize rounds a supply down to a multiple of a step of 1.6 to 3.1 % of it, and of at least
// the quantum, so that prices change only now and then.
func (sc *scarcity) quantize(x int64) int64 {
	step := max(int64(1)<<max(0, bits.Len64(uint64(x))-6), sc.quantum)
	return max(1, x/step*step)
}

// refresh recomputes the prices if a quantized supply has changed.
func (sc *scarcity) refresh() {
	if !sc.stale {
		return
	}
	sc.stale = false
	changed := false
	for g := range sc.sets {
		s := &sc.sets[g]
		x := s.free
		if most := float64(s.cpu) * s.perCPU; most < float64(x) {
			x = int64(most)
		}
		if x = sc.quantize(max(0, x)); x != s.supply {
			s.supply, changed = x, true
		}
	}
	if changed {
		sc.balance()
		sc.setPrices()
	}
}

// balance distributes the demand over the sets so that no shape could move to a set with a
// lower load: in turn, each demand fills the least loaded of its sets to an equal level.
func (sc *scarcity) balance() {
	supply := 0.0
	for g := range sc.sets {
		sc.sets[g].load = 0
		supply += float64(sc.sets[g].supply)
	}
	scale := supply / sc.total
	for i := range sc.demands {
		d := &sc.demands[i]
		sum := 0.0
		for _, g := range d.sets {
			sum += float64(sc.sets[g].supply)
		}
		for k, g := range d.sets {
			// load holds the sum of flows until the rounds end.
			d.flow[k] = d.amount * scale * float64(sc.sets[g].supply) / sum
			sc.sets[g].load += d.flow[k]
		}
	}
	for range maxRounds {
		most := 0.0
		for i := range sc.demands {
			if d := &sc.demands[i]; len(d.sets) > 1 {
				most = max(most, sc.redistribute(d, d.amount*scale))
			}
		}
		if most < settled {
			break
		}
	}
	for g := range sc.sets {
		sc.sets[g].load /= float64(sc.sets[g].supply)
	}
}

// redistribute moves one demand over its sets, given the flows of all others. It returns the
// largest change of a flow, relative to the set's supply.
func (sc *scarcity) redistribute(d *demand, amount float64) (most float64) {
	order := sc.order[:0]
	for k, g := range d.sets {
		s := &sc.sets[g]
		s.load -= d.flow[k]
		x := s.load / float64(s.supply)
		order = append(order, k)
		for j := k; j > 0; j-- {
			o := &sc.sets[d.sets[order[j-1]]]
			if o.load/float64(o.supply) <= x {
				break
			}
			order[j], order[j-1] = order[j-1], order[j]
		}
	}
	sc.order = order
	level, supply, load := 0.0, 0.0, 0.0
	for j, k := range order {
		s := &sc.sets[d.sets[k]]
		if j > 0 && level <= s.load/float64(s.supply) {
			break
		}
		supply += float64(s.supply)
		load += s.load
		level = (amount + load) / supply
	}
	for k, g := range d.sets {
		s := &sc.sets[g]
		flow := max(0, level*float64(s.supply)-s.load)
		most = max(most, math.Abs(flow-d.flow[k])/float64(s.supply))
		d.flow[k] = flow
		s.load += flow
	}
	return most
}

// setPrices computes the price of each set from the loads: none for the least loaded, and
// nearly priceScale for one with many times the least load.
func (sc *scarcity) setPrices() {
	least := math.Inf(1)
	for g := range sc.sets {
		if len(sc.sets[g].users) > 0 {
			least = min(least, sc.sets[g].load)
		}
	}
	for g := range sc.sets {
		s := &sc.sets[g]
		if s.price, s.need = 0, 0; s.load <= least*(1+evenLoad) {
			continue
		}
		s.price = priceScale * (1 - least/s.load)
		var cpu, gpu float64
		for i := range sc.demands {
			d := &sc.demands[i]
			if slices.ContainsFunc(d.sets, func(h int) bool { return sc.sets[h].load < s.load*(1-evenLoad) }) {
				continue
			}
			c, u := sc.value.means(d.shapes)
			cpu, gpu = cpu+c, gpu+u
		}
		if gpu > 0 {
			s.need = cpu / gpu
		}
	}
}

// uniform returns the set of a kind whose devices are all of one set. ok is false for the
// other kinds; the set is nil for a kind without devices.
func (sc *scarcity) uniform(k *cluster.Kind) (s *deviceSet, ok bool) {
	if k.Index >= len(sc.of) || len(sc.of[k.Index]) == 0 {
		return nil, true
	}
	sets := sc.of[k.Index]
	for _, g := range sets[1:] {
		if g != sets[0] {
			return nil, false
		}
	}
	return &sc.sets[sets[0]], true
}

// priceOf returns the price of free capacity of one machine: of the GPU share that has CPU for
// the jobs for which it is scarce.
func (s *deviceSet) priceOf(gpu, cpu int64) float64 {
	x := float64(gpu)
	if s.need > 0 {
		x = min(x, float64(cpu)/s.need)
	}
	return s.price * x
}

// priceOf returns the price of a machine's free capacity: of the GPU share that has CPU for the
// jobs for which it is scarce.
func (sc *scarcity) priceOf(s *remnant) float64 {
	if s.kind.Index >= len(sc.of) || sc.of[s.kind.Index] == nil {
		return 0
	}
	sets := sc.of[s.kind.Index]
	sum, need := 0.0, 0.0
	for _, h := range s.holes {
		g := &sc.sets[sets[h.variant()]]
		sum += g.price * float64(h.free())
		need += g.need * float64(h.free())
	}
	if need > float64(s.cpu) {
		sum *= float64(s.cpu) / need
	}
	return sum
}
