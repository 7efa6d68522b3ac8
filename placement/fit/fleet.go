package fit

import (
	"cmp"
	"encoding/binary"
	"math"
	"strings"

	"berth/placement/cluster"
)

// fleet is the machines with devices, those with equal remnants in one group:
// what a job costs there is worked out once for all of them, when the job's
// class first looks. What it keeps makes plans faster and never different.
type fleet struct {
	mix     int // version of the mix that value rests on
	value   *value
	groups  map[string]*group
	slots   int     // that groups have, dead ones included
	free    []int32 // slots of no group
	dead    int     // groups without machines, kept since they often come back
	stamp   uint32
	costs   map[*cluster.Class][]cost // by slot
	entries int                       // in costs
	spare   [][]cost                  // rows of no class
	plan    uint32                    // number of the present plan
	places  []*peer                   // by Node.Index; nil: the machine is in no group
	lists   []grouped                 // by Kind.Index
	key     []byte
	holes   []hole
	after   []hole
}

// peer is a machine in its group.
type peer struct {
	group *group // nil: it is in none
	leaf  cluster.Leaf[*cluster.Node]
}

// grouped lists the groups of one kind that have machines.
type grouped struct {
	free []listed // some device is free
	full []listed // no device is free
}

// of returns the group of a machine; nil if it is in none.
func (f *fleet) of(n *cluster.Node) *group {
	if n.Index >= len(f.places) || f.places[n.Index] == nil {
		return nil
	}
	return f.places[n.Index].group
}

// place returns the entry of a machine.
func (f *fleet) place(n *cluster.Node) *peer {
	if n.Index >= len(f.places) {
		f.places = append(f.places, make([]*peer, n.Index+1-len(f.places))...)
	}
	if f.places[n.Index] == nil {
		f.places[n.Index] = &peer{}
	}
	return f.places[n.Index]
}

// group is the machines with one remnant.
type group struct {
	remnant
	key      string
	slot     int32
	stamp    uint32 // of this group under this value: costs with another are of an earlier one
	gpu      int64  // left
	usable   float64
	valued   bool
	machines cluster.Tree[*cluster.Node] // by id
	index    int                         // in its list, while there are machines
}

// listed is a group in a list, with what most looks need of it.
type listed struct {
	*group
	slot  int32
	stamp uint32
}

// cost is what one more job of a class costs in a group.
type cost struct {
	stamp uint32
	plan  uint32 // the last one that looked
	loss  float32
	hole  hole // for a share: where it does
}

// never is the loss where a job does not fit.
const never = math.MaxFloat32

// Bounds of what a fleet keeps, looked at between plans.
const (
	maxEntries = 2 << 20
	maxDead    = 2048
	minDead    = 64
)

func newFleet() *fleet {
	return &fleet{groups: map[string]*group{}, costs: map[*cluster.Class][]cost{}}
}

// begin prepares for a plan.
func (f *fleet) begin(m *Mix, cpu, gpu int64) {
	f.plan++
	if f.value == nil || f.mix != m.version {
		f.mix, f.value = m.version, newValue(m.estimate, cpu, gpu)
		f.forget()
	} else if was := f.value.scarce; was != f.value.weigh(cpu, gpu) {
		f.forget() // machines came or went
	}
	if f.entries > maxEntries {
		f.empty()
	}
	if f.dead > f.mayKeep() {
		f.bury()
	}
}

// mayKeep is how many groups without machines are kept: a few for each that has
// some, so that a small cluster stays small in memory whatever passes through.
func (f *fleet) mayKeep() int {
	return min(maxDead, minDead+4*(len(f.groups)-f.dead))
}

// forget drops what was worked out by another value.
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

// clear empties the fleet: the kinds are made anew.
func (f *fleet) clear() {
	f.groups, f.slots, f.free, f.dead = map[string]*group{}, 0, nil, 0
	f.places, f.lists = nil, nil
	f.empty()
	if f.value != nil {
		clear(f.value.devices)
	}
}

// bury drops the groups without machines.
func (f *fleet) bury() {
	for key, g := range f.groups {
		if g.machines.Len() == 0 {
			delete(f.groups, key)
			f.free = append(f.free, g.slot)
		}
	}
	f.dead = 0
}

// enter puts a machine into its group.
func (f *fleet) enter(n *cluster.Node) {
	s := remnantOf(n, f.holes)
	f.holes = s.holes
	f.key = binary.AppendUvarint(f.key[:0], uint64(n.Kind.Number))
	f.key = binary.AppendVarint(f.key, s.cpu)
	f.key = binary.AppendVarint(f.key, s.memory)
	for _, h := range s.holes {
		f.key = binary.BigEndian.AppendUint16(f.key, uint16(h))
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
}

// open makes the group of a remnant, without machines.
func (f *fleet) open(s remnant) *group {
	slot := int32(f.slots)
	if last := len(f.free) - 1; last >= 0 {
		slot, f.free = f.free[last], f.free[:last]
	} else {
		f.slots++
	}
	f.stamp++
	s.holes = append([]hole(nil), s.holes...)
	g := &group{remnant: s, key: string(f.key), slot: slot, stamp: f.stamp, gpu: s.left()}
	g.machines.Compare = func(a, b *cluster.Node) int { return strings.Compare(string(a.ID), string(b.ID)) }
	f.groups[g.key] = g
	f.dead++
	return g
}

// leave takes a machine out of its group, if it is in one.
func (f *fleet) leave(n *cluster.Node) {
	g := f.of(n)
	if g == nil {
		return
	}
	p := f.places[n.Index]
	g.machines.Remove(&p.leaf)
	p.group = nil
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

// list is where the group is listed while it has machines.
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

// empty drops all costs. Their rows are kept for others.
func (f *fleet) empty() {
	for _, row := range f.costs {
		f.spare = append(f.spare, row)
	}
	clear(f.costs)
	f.entries = 0
}

// row returns the costs of a class, by slot.
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

// blank returns a row without costs.
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

// price works out what one more job of the class costs in the group.
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
		if h.free() < c.Request.GPUMilli || devices>>h.variant()&1 == 0 || i > 0 && h == g.holes[i-1] {
			continue
		}
		to.holes = g.with(f.after, i, c.Request.GPUMilli)
		f.after = to.holes
		if l := f.loss(g, &to); l < least {
			least, best = l, h
		}
	}
	return least, best
}

// loss is rounded so that places that are equally good compare equal.
func (f *fleet) loss(g *group, to *remnant) float32 {
	return float32(math.Round((g.usable-f.value.usable(to))*1000) / 1000)
}

// without returns the holes after count whole devices were taken, those that
// wholeDevices takes; nil if there are fewer.
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

// with returns the holes after milli of the one at i was taken.
func (s *remnant) with(into []hole, i int, milli int64) []hole {
	into = append(into[:0], s.holes...)
	left := into[i] - hole(milli)
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
