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
	// changing is the demand that may become bound to any GPUs, in multiples of the demand that is
	// bound now. It is spread over all sets by the GPUs that the cluster has.
	changing = 3
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
// Conditions change: jobs that are bound to one model today may be bound to another one tomorrow.
// So each set has some demand that nobody has asked for yet, and no model is used up first.
//
// Prices are a function of the mix, the machines and the free capacity, rounded by quantize. They
// never depend on earlier prices: kept prices equal recomputed ones.
type scarcity struct {
	market
	value   *value
	sets    []deviceSet // sorted by users
	of      [][]int32   // by Kind.Index, by variant: index of the set; nil: the kind has no machine
	bound   []bool      // by shape: a condition of the request excludes some device
	total   float64     // demand of all shapes, each counted once
	fixed   float64     // demand of the bound shapes, each counted once
	blocks  []*blocks   // fewest GPUs first; none where CPU runs out before GPUs
	quantum int64       // least step of a supply, in thousandths of a GPU
	stale   bool        // free capacity has changed since the last balance
	wholes  []int64     // buffer of countWholes
}

// deviceSet is the set of all devices that the same shapes may use.
type deviceSet struct {
	key    string  // the users, encoded
	users  []int   // indexes of shapes, ascending
	perCPU float64 // usable thousandths of a GPU for each thousandth of a core
	owned  int64   // share of all devices, in thousandths of a GPU
	free   int64   // free share of the devices, in thousandths of a GPU
	cpu    int64   // free thousandths of a core on the machines with such devices
	price  float64 // of each free thousandth of a GPU that has CPU; 0: not scarce
	need   float64 // CPU per thousandth of a GPU of the jobs for which the set is scarce
}

// newScarcity computes the device sets of a cluster under a mix, without free capacity. It returns
// nil if all shapes may use the same devices: then nothing can be scarce.
func newScarcity(c *cluster.Cluster, v *value) *scarcity {
	sc := &scarcity{value: v, of: make([][]int32, len(c.Kinds)), stale: true, bound: make([]bool, len(v.shapes))}
	sizes := make([][]machineSize, len(c.Kinds))
	kinds := 0
	for _, n := range c.Nodes {
		if !priced(n) {
			continue
		}
		if len(sizes[n.Kind.Index]) == 0 {
			kinds++
		}
		sizes[n.Kind.Index] = withSize(sizes[n.Kind.Index], n)
	}
	if kinds*len(v.shapes) > maxMatches {
		return nil
	}
	at := map[string]int{}
	for _, k := range c.Kinds {
		if len(sizes[k.Index]) > 0 {
			sc.addKind(k, sizes[k.Index], at)
		}
	}
	sc.sortSets()
	sc.addDemands()
	if len(sc.demands) < 2 || len(sc.sets) > maxSets {
		return nil
	}
	sc.quantum = max(1, c.Owned.GPUMilli>>11)
	sc.size(len(sc.sets))
	for _, n := range c.Nodes {
		if priced(n) {
			sc.addOwned(n)
		}
	}
	if !v.scarce {
		sc.addBlocks()
	}
	return sc
}

// priced reports whether the GPUs of a machine belong to a set.
func priced(n *cluster.Node) bool { return n.Placeable() && n.Kind != nil && len(n.GPUs) > 0 }

// machineSize is the capacity of an empty machine: devices, thousandths of a core, and MiB.
type machineSize struct{ gpus, cpu, memory int64 }

// withSize adds the size of a machine to a list, which contains no size that another one exceeds.
func withSize(list []machineSize, n *cluster.Node) []machineSize {
	x := machineSize{int64(len(n.GPUs)), n.Total.CPUMilli, n.Total.MemoryMiB}
	exceeds := func(a, b machineSize) bool { return a.gpus >= b.gpus && a.cpu >= b.cpu && a.memory >= b.memory }
	if slices.ContainsFunc(list, func(y machineSize) bool { return exceeds(y, x) }) {
		return list
	}
	return append(slices.DeleteFunc(list, func(y machineSize) bool { return exceeds(x, y) }), x)
}

// fitsAny reports whether a member of the shape fits on an empty machine of some size.
func (s *shape) fitsAny(sizes []machineSize) bool {
	return slices.ContainsFunc(sizes, func(x machineSize) bool {
		return s.gpus <= x.gpus && s.cpu <= x.cpu && s.memory <= x.memory
	})
}

// addOwned adds the devices of a machine to the cluster's.
func (sc *scarcity) addOwned(n *cluster.Node) {
	for _, v := range n.Variants {
		if v < cluster.MaxVariants {
			sc.sets[sc.of[n.Kind.Index][v]].owned += cluster.Whole
		}
	}
}

// addKind adds the devices of a kind to their sets. sizes are the sizes of its machines, and at is
// the position of each set by key.
func (sc *scarcity) addKind(k *cluster.Kind, sizes []machineSize, at map[string]int) {
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
			if devices[i]>>variant&1 != 0 && sc.value.shapes[i].fitsAny(sizes) {
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
	for i, sets := range may {
		if len(sets) == 0 {
			continue
		}
		amount := sc.value.shapes[i].p * float64(sc.value.shapes[i].class.Capacity.GPUMilli)
		sc.total += amount
		if sc.bound[i] {
			sc.fixed += amount
			amount *= boundWeight
		}
		sc.ask(i, sets, amount)
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
	sc.addFreeBlocks(s, sets, sign)
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
		changed = sc.supplied(&sc.supply[g], x) || changed
	}
	for _, b := range sc.blocks {
		for g := range b.free {
			changed = sc.supplied(&b.supply[g], b.free[g]) || changed
		}
	}
	if changed {
		sc.balanceAll()
	}
}

// supplied sets a supply to the quantized x, and reports whether it has changed.
func (sc *scarcity) supplied(supply *int64, x int64) bool {
	was := *supply
	*supply = sc.quantize(max(0, x))
	return *supply != was
}

// balanceAll distributes the demand over the sets, and over the blocks, and sets all prices. The
// demand is scaled to the supply.
func (sc *scarcity) balanceAll() {
	supply, owned := 0.0, 0.0
	for g := range sc.sets {
		supply += float64(sc.supply[g])
		owned += float64(sc.sets[g].owned)
	}
	scale := supply / sc.total
	for g := range sc.sets {
		sc.base[g] = changing * boundWeight * sc.fixed * scale * float64(sc.sets[g].owned) / owned
	}
	sc.balance(scale)
	sc.setPrices()
	for _, b := range sc.blocks {
		b.balance(scale)
		b.setPrices()
	}
}

// setPrices computes the price of each set from the loads: none for the least loaded, and
// nearly priceScale for one with many times the least load.
func (sc *scarcity) setPrices() {
	least := math.Inf(1)
	for g := range sc.sets {
		if len(sc.sets[g].users) > 0 {
			least = min(least, sc.load[g])
		}
	}
	for g := range sc.sets {
		s := &sc.sets[g]
		if s.price, s.need = 0, 0; sc.load[g] <= least*(1+evenLoad) {
			continue
		}
		s.price = priceScale * (1 - least/sc.load[g])
		var cpu, gpu float64
		for i := range sc.demands {
			d := &sc.demands[i]
			if slices.ContainsFunc(d.sets, func(h int) bool { return sc.load[h] < sc.load[g]*(1-evenLoad) }) {
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

// uniform returns the index of the set of a kind whose devices are all of one set. ok is false for
// the other kinds; the index is -1 for a kind without devices.
func (sc *scarcity) uniform(k *cluster.Kind) (set int, ok bool) {
	if k.Index >= len(sc.of) || len(sc.of[k.Index]) == 0 {
		return -1, true
	}
	sets := sc.of[k.Index]
	for _, g := range sets[1:] {
		if g != sets[0] {
			return -1, false
		}
	}
	return int(sets[0]), true
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
// jobs for which it is scarce, and of its blocks.
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
	return sum + sc.priceOfBlocks(s, sets)
}
