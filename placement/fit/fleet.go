package fit

import (
	"cmp"
	"encoding/binary"
	"math"
	"strings"

	"berth/placement/cluster"
)

// fleet groups the machines with devices by equal remnants. The cost of one more job is
// computed once per class and group, when the class first reads it, and is kept from plan
// to plan. The fleet only makes plans faster; it never changes a plan.
//
// A cost is valid while its stamp equals that of its group, so that invalidation of all
// costs of a group is one assignment.
type fleet struct {
	mix      int // version of the mix that value was computed from
	value    *value
	scarcity *scarcity                 // prices of scarce devices; nil: nothing can be scarce
	groups   map[string]*group         // by remnant; see group.key
	slots    int                       // length of a full row of costs: the slots of groups and free
	free     []int32                   // slots without a group
	dead     int                       // groups without machines, kept since remnants often recur
	stamp    uint32                    // latest stamp given to a group
	costs    map[*cluster.Class][]cost // by group.slot
	entries  int                       // total length of costs
	spare    [][]cost                  // unused rows, for reuse
	plan     uint32                    // number of plans so far
	shape    int                       // Cluster.Shape of the device sets
	places   []*peer                   // by Node.Index; nil: the machine has never been in a group
	lists    []grouped                 // groups with machines, by Kind.Index
	key      []byte                    // buffer of enter
	uncached int                       // costs that this plan computed and did not keep; see leastTotal
	holes    []hole                    // buffer of enter
	after    []hole                    // buffer of price
}

// peer is the membership of a machine in a group.
type peer struct {
	group *group // nil: the machine is in no group
	leaf  cluster.Leaf[*cluster.Node]
}

// grouped lists the groups of one kind that have machines.
type grouped struct {
	free []listed // groups with a device that has free capacity
	full []listed // groups with no free device capacity
}

// of returns the group of a machine; nil for a machine without one.
func (f *fleet) of(n *cluster.Node) *group {
	if n.Index >= len(f.places) || f.places[n.Index] == nil {
		return nil
	}
	return f.places[n.Index].group
}

// place returns the membership of a machine, and creates an empty one.
func (f *fleet) place(n *cluster.Node) *peer {
	if n.Index >= len(f.places) {
		f.places = append(f.places, make([]*peer, n.Index+1-len(f.places))...)
	}
	if f.places[n.Index] == nil {
		f.places[n.Index] = &peer{}
	}
	return f.places[n.Index]
}

// group is the set of machines with one remnant.
type group struct {
	remnant
	key      string
	slot     int32                       // position of its costs in the row of each class
	stamp    uint32                      // of the group under the present value; older costs differ
	gpu      int64                       // free GPU share, in thousandths of a GPU
	wholes   int64                       // free devices
	usable   float64                     // expected usable share, in thousandths of a GPU
	valued   bool                        // usable is computed
	machines cluster.Tree[*cluster.Node] // by id
	index    int                         // position in its list, while it has machines
}

// listed is a group in a list, with copies of the fields that most reads need, close
// together in memory.
type listed struct {
	*group
	slot  int32
	stamp uint32
}

// cost is the expected fragmentation cost of one more member of a class in a group.
type cost struct {
	stamp uint32  // of the group when the cost was computed
	plan  uint32  // plan that last read the cost; each plan counts a cost once
	loss  float32 // fall of the usable share, in thousandths of a GPU; never: no room
	hole  hole    // for a share: the free part that gives the least loss
}

// never is the loss where a member does not fit.
const never = math.MaxFloat32

// Bounds of the fleet's memory, enforced between plans.
const (
	maxEntries = 2 << 20 // costs, 16 bytes each
	maxDead    = 2048    // groups without machines, at most
	minDead    = 64      // groups without machines, in a cluster of any size
)

// newFleet returns a fleet without machines.
func newFleet() *fleet {
	return &fleet{groups: map[string]*group{}, costs: map[*cluster.Class][]cost{}}
}

// begin prepares the fleet for a plan. It recomputes the value if the mix has a new
// estimate, and drops old costs if CPU has become scarce or is no longer.
func (f *fleet) begin(m *Mix, c *cluster.Cluster) {
	f.plan++
	f.uncached = 0
	cpu, gpu := c.Owned.CPUMilli, c.Owned.GPUMilli
	switch {
	case f.value == nil || f.mix != m.version:
		f.mix, f.value = m.version, newValue(m.estimate, cpu, gpu)
		f.forget()
		f.openScarcity(c)
	case f.shape != c.Shape: // machines came or left
		if was := f.value.scarce; was != f.value.weigh(cpu, gpu) {
			f.forget()
		}
		f.openScarcity(c)
	}
	if f.entries > maxEntries {
		f.empty()
	}
	if f.dead > f.mayKeep() {
		f.bury()
	}
}

// openScarcity recomputes the device sets, with the free capacity of all groups.
func (f *fleet) openScarcity(c *cluster.Cluster) {
	f.shape, f.scarcity = c.Shape, newScarcity(c, f.value)
	if f.scarcity == nil {
		return
	}
	for _, g := range f.groups {
		if n := g.machines.Len(); n > 0 {
			f.scarcity.add(&g.remnant, int64(n))
		}
	}
}

// mayKeep returns the number of groups without machines to keep: a few for each group with
// machines, so that a small cluster never needs much memory.
func (f *fleet) mayKeep() int {
	return min(maxDead, minDead+4*(len(f.groups)-f.dead))
}

// forget drops the costs and usable shares of an earlier value: every group gets a new
// stamp.
func (f *fleet) forget() {
	f.empty()
	for _, g := range f.groups {
		f.stamp++
		g.stamp, g.valued = f.stamp, false
		if g.machines.Len() > 0 {
			(*f.list(g))[g.index].stamp = f.stamp
		}
	}
}

// clear empties the fleet while the cluster rebuilds its kinds. An enter for each machine
// follows.
func (f *fleet) clear() {
	f.groups, f.slots, f.free, f.dead = map[string]*group{}, 0, nil, 0
	f.places, f.lists = nil, nil
	f.scarcity, f.shape = nil, 0
	f.empty()
	if f.value != nil {
		clear(f.value.devices)
	}
}

// bury drops the groups without machines, and frees their slots.
func (f *fleet) bury() {
	for key, g := range f.groups {
		if g.machines.Len() == 0 {
			delete(f.groups, key)
			f.free = append(f.free, g.slot)
		}
	}
	f.dead = 0
}

// enter puts a machine into the group of its remnant. The machine must be in no group.
func (f *fleet) enter(n *cluster.Node) {
	s := remnantOf(n, f.holes)
	f.holes = s.holes
	f.key = binary.AppendUvarint(f.key[:0], uint64(n.Kind.Number))
	f.key = binary.AppendVarint(f.key, s.cpu)
	f.key = binary.AppendVarint(f.key, s.memory)
	for _, h := range s.holes {
		f.key = binary.BigEndian.AppendUint32(f.key, uint32(h))
	}
	g := f.groups[string(f.key)]
	if g == nil {
		g = f.open(s)
	}
	if g.machines.Len() == 0 {
		f.dead--
		list := f.list(g)
		g.index = len(*list)
		*list = append(*list, listed{g, g.slot, g.stamp})
	}
	p := f.place(n)
	p.group = g
	p.leaf.Item, p.leaf.Weight = n, n.Leaf.Weight
	g.machines.Insert(&p.leaf)
	if f.scarcity != nil {
		f.scarcity.add(&g.remnant, 1)
	}
}

// open creates the group of a remnant, without machines. f.key must be the remnant's key.
func (f *fleet) open(s remnant) *group {
	slot := int32(f.slots)
	if last := len(f.free) - 1; last >= 0 {
		slot, f.free = f.free[last], f.free[:last]
	} else {
		f.slots++
	}
	f.stamp++
	// A copy: the remnant's holes are in a buffer of the fleet.
	s.holes = append([]hole(nil), s.holes...)
	g := &group{remnant: s, key: string(f.key), slot: slot, stamp: f.stamp, gpu: s.left(),
		wholes: wholes(s.holes, ^uint64(0))}
	g.machines.Compare = func(a, b *cluster.Node) int { return strings.Compare(string(a.ID), string(b.ID)) }
	f.groups[g.key] = g
	f.dead++
	return g
}

// leave removes a machine from its group. A machine without a group is no error.
func (f *fleet) leave(n *cluster.Node) {
	g := f.of(n)
	if g == nil {
		return
	}
	p := f.places[n.Index]
	g.machines.Remove(&p.leaf)
	p.group = nil
	if f.scarcity != nil {
		f.scarcity.add(&g.remnant, -1)
	}
	if g.machines.Len() > 0 {
		return
	}
	f.dead++
	list := f.list(g)
	end := len(*list) - 1
	last := (*list)[end]
	(*list)[g.index], last.index = last, g.index
	(*list)[end], *list = listed{}, (*list)[:end]
}

// list returns the list of a group: by its kind, and by whether any device has free
// capacity.
func (f *fleet) list(g *group) *[]listed {
	i := g.kind.Index
	if i >= len(f.lists) {
		f.lists = append(f.lists, make([]grouped, i+1-len(f.lists))...)
	}
	if len(g.holes) == 0 {
		return &f.lists[i].full
	}
	return &f.lists[i].free
}

// groupsOf returns the groups of a kind.
func (f *fleet) groupsOf(k *cluster.Kind) grouped {
	if k.Index >= len(f.lists) {
		return grouped{}
	}
	return f.lists[k.Index]
}

// empty drops all costs, and keeps their rows for other classes.
func (f *fleet) empty() {
	for _, row := range f.costs {
		f.spare = append(f.spare, row)
	}
	clear(f.costs)
	f.entries = 0
}

// row returns the costs of a class, by slot, long enough for all groups. It grows by a
// quarter more than needed.
func (f *fleet) row(c *cluster.Class) []cost {
	row := f.costs[c]
	if len(row) < f.slots {
		grown := f.blank(f.slots + f.slots/4)
		copy(grown, row)
		f.entries += len(grown) - len(row)
		row = grown
		f.costs[c] = row
	}
	return row
}

// blank returns an empty row of costs, from the spare ones if possible. A stamp of 0 is
// never valid.
func (f *fleet) blank(size int) []cost {
	for last := len(f.spare) - 1; last >= 0; last = len(f.spare) - 1 {
		row := f.spare[last]
		f.spare[last], f.spare = nil, f.spare[:last]
		if cap(row) >= size {
			clear(row[:size])
			return row[:size]
		}
	}
	return make([]cost, size)
}

// price computes the cost of one more member of the class in the group: the loss of usable
// share, and for a share of a GPU the free part in which that loss is least. devices is a
// bitmap of the variants that the class may use.
func (f *fleet) price(g *group, c *cluster.Class, devices uint64) (float32, hole) {
	if c.Capacity.CPUMilli > g.cpu || c.Capacity.MemoryMiB > g.memory {
		return never, 0
	}
	if !g.valued {
		g.usable, g.valued = f.value.usable(&g.remnant), true
	}
	to := remnant{g.kind, g.cpu - c.Capacity.CPUMilli, g.memory - c.Capacity.MemoryMiB, nil}
	switch r := c.Request; {
	case r.GPUs == 0:
		to.holes = g.holes
		return f.loss(g, &to), 0
	case r.GPUMilli == cluster.Whole:
		if to.holes = g.without(f.after, r.GPUs, devices); to.holes == nil {
			return never, 0
		}
		f.after = to.holes
		return f.loss(g, &to), 0
	}
	least, best := float32(never), hole(0)
	for i, h := range g.holes {
		// Equal free parts follow each other and cost the same: the first of them is
		// enough.
		if h.free() < c.Request.GPUMilli || devices>>h.variant()&1 == 0 || i > 0 && h == g.holes[i-1] || !h.admits(c) {
			continue
		}
		to.holes = g.with(f.after, i, c)
		f.after = to.holes
		if l := f.loss(g, &to); l < least {
			least, best = l, h
		}
	}
	return least, best
}

// loss returns the fall of the usable share from the group's remnant to another one. It is
// rounded to a millionth of a GPU, so that equally good places compare equal.
func (f *fleet) loss(g *group, to *remnant) float32 {
	return float32(math.Round((g.usable-f.value.usable(to))*1000) / 1000)
}

// without returns the holes that remain after count whole devices were taken, as
// wholeDevices takes devices: holes fall by variant, so the search from the end finds the
// smallest memory first. The result is nil if the machine has fewer such devices.
func (s *remnant) without(into []hole, count int, devices uint64) []hole {
	into = append(into[:0], s.holes...)
	if into == nil {
		return nil
	}
	for i := len(into) - 1; i >= 0 && count > 0; i-- {
		if into[i].free() == cluster.Whole && devices>>into[i].variant()&1 != 0 {
			into = append(into[:i], into[i+1:]...)
			count--
		}
	}
	if count > 0 {
		return nil
	}
	return into
}

// with returns the holes that remain after a share of the class was taken from the one at i,
// again in falling order.
func (s *remnant) with(into []hole, i int, c *cluster.Class) []hole {
	into = append(into[:0], s.holes...)
	left := newHole(into[i].variant(), into[i].free()-c.Request.GPUMilli, c.Sharer)
	if left.free() == 0 {
		return append(into[:i], into[i+1:]...)
	}
	for ; i+1 < len(into) && into[i+1] > left; i++ {
		into[i] = into[i+1]
	}
	into[i] = left
	return into
}

// compareGroups orders groups of equal cost: the fuller one first.
func compareGroups(a, b *group) int {
	return cmp.Or(cmp.Compare(a.gpu, b.gpu), cmp.Compare(a.cpu, b.cpu), cmp.Compare(a.memory, b.memory))
}
