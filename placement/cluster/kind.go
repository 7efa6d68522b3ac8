package cluster

import (
	"encoding/binary"
	"maps"
	"math"
	"slices"
	"strings"

	"berth"
)

// Profile is the set of machine attributes that defined classes read. Machines with
// equal values are of one kind. So a label that no request names, such as a host
// name, does not make a kind of each machine.
type Profile struct {
	ID, cpus, memory, index, allLabels, network, price, floors bool
	labels                                                     []string // sorted
}

func (p *Profile) addLabel(key string) {
	if i, found := slices.BinarySearch(p.labels, key); !found {
		p.labels = slices.Insert(p.labels, i, key)
	}
}

// merge adds the attributes of o to p and reports whether this changed p.
func (p *Profile) merge(o Profile) bool {
	was, labels := *p, len(p.labels)
	p.ID = p.ID || o.ID
	p.cpus = p.cpus || o.cpus
	p.memory = p.memory || o.memory
	p.index = p.index || o.index
	p.allLabels = p.allLabels || o.allLabels
	p.network = p.network || o.network
	p.price = p.price || o.price
	p.floors = p.floors || o.floors
	for _, k := range o.labels {
		p.addLabel(k)
	}
	return p.ID != was.ID || p.cpus != was.cpus || p.memory != was.memory || p.index != was.index ||
		p.allLabels != was.allLabels || p.network != was.network || p.price != was.price || p.floors != was.floors ||
		len(p.labels) != labels
}

// key appends to b the attributes that define the machine's kind: machines with equal
// keys are of one kind. The variants must be the result of p.variants for the machine.
// Strings carry their length, so that no two different lists have the same key.
func (p *Profile) key(b []byte, m *Machine, variants []Variant) []byte {
	field := func(s string) {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	number := func(n int64) { b = binary.AppendVarint(b, n) }
	// No taint contains a comma.
	for _, s := range []string{m.Pool, m.Region, m.Site, m.Market, strings.Join(m.Taints, ",")} {
		field(s)
	}
	if p.floors {
		if m.Unmet == "" {
			number(1)
		} else {
			number(0)
		}
	}
	if p.price {
		number(int64(math.Float64bits(m.Price)))
	}
	if m.Fences {
		number(1)
	} else {
		number(0)
	}
	if p.network {
		field(m.Network)
	}
	if p.ID {
		field(string(m.ID))
	}
	if p.cpus {
		number(m.Total.CPUMilli)
	}
	if p.memory {
		number(m.Total.MemoryMiB)
	}
	keys := p.labels
	if p.allLabels {
		keys = slices.Sorted(maps.Keys(m.Labels))
		number(int64(len(keys)))
	}
	for i, k := range keys {
		if v, ok := m.Labels[k]; ok {
			number(int64(i))
			field(k)
			field(v)
		}
	}
	number(-1)
	for _, v := range variants {
		field(v.model)
		number(v.memory)
		number(int64(v.index))
	}
	return b
}

// Variant is a model of device within a kind. Its index is -1 unless some class reads
// indexes.
type Variant struct {
	model  string
	memory int64
	index  int
}

// variant returns the variant of a device.
func (p *Profile) variant(d Device) Variant {
	v := Variant{d.Model, d.MemoryMiB, -1}
	if p.index {
		v.index = d.Index
	}
	return v
}

// variants lists the variants of a machine's devices, smallest memory first. It reuses
// the memory of list.
func (p *Profile) variants(list []Variant, m *Machine) []Variant {
	list = list[:0]
	for _, d := range m.GPUs {
		if v := p.variant(d); !slices.Contains(list, v) {
			list = append(list, v)
		}
	}
	if len(list) < 2 {
		return list
	}
	slices.SortFunc(list, func(a, b Variant) int {
		switch {
		case a.memory != b.memory:
			return Sign(a.memory - b.memory)
		case a.model != b.model:
			return strings.Compare(a.model, b.model)
		}
		return a.index - b.index
	})
	return list
}

// Kind is a set of machines that differ, for every class, in free capacity alone.
type Kind struct {
	Number    int      // unique among all kinds that the cluster ever had
	Index     int      // in Cluster.Kinds
	Sample    *Machine // a machine of the kind; classes read the same values from any other
	Variants  []Variant
	tree      Tree[*Node] // the placeable machines, from tight to roomy
	ordered   []*Node     // result of All, valid for the plan orderedAt
	orderedAt int
	roster
}

// HasDevices reports whether the machines of the kind have devices.
func (k *Kind) HasDevices() bool { return len(k.Variants) > 0 }

// newKind returns a kind without machines. Its tree keeps in each node the largest room of
// the subtree, by which searches skip subtrees.
func newKind(sample *Machine, variants []Variant) *Kind {
	return &Kind{Sample: sample, Variants: variants, tree: Tree[*Node]{
		Compare: compareNodes,
		gather: func(at, left, right *Leaf[*Node]) {
			n := at.Item
			n.most = n.Room
			if left != nil {
				n.most = n.most.max(left.Item.most)
			}
			if right != nil {
				n.most = n.most.max(right.Item.most)
			}
		},
	}}
}

// Need is the request of one member in the terms of Room.
type Need struct {
	berth.Capacity
	Whole  int    // number of unused devices
	Part   int64  // thousandths of one device that is partly in use
	Sharer Sharer // the only one of that device that counts; NoSharer: any
}

func (n Need) within(r Room) bool {
	return n.Capacity.Fits(r.Capacity) && n.Whole <= r.Whole && n.Part <= r.part &&
		(n.Sharer == NoSharer || n.Part == 0 || r.owners&ownerBit(n.Sharer) != 0)
}

// Walk visits the machines that have room for n, from tight to roomy (or, to
// spread, the other way), until visit returns false.
func (k *Kind) Walk(n Need, spread bool, visit func(*Node) bool) {
	walk(k.tree.root, n, spread, visit)
}

// walk visits the subtree of l; false if visit has ended the walk.
func walk(l *Leaf[*Node], n Need, spread bool, visit func(*Node) bool) bool {
	if l == nil || !n.within(l.Item.most) {
		return true
	}
	first, last := l.left, l.right
	if spread {
		first, last = last, first
	}
	return walk(first, n, spread, visit) &&
		(!n.within(l.Item.Room) || visit(l.Item)) &&
		walk(last, n, spread, visit)
}

// Each visits the placeable machines of a kind, from tight to roomy, until visit returns false.
func (k *Kind) Each(visit func(*Node) bool) {
	var c Cursor[*Node]
	for c.Begin(&k.tree); ; c.Next() {
		n, ok := c.At()
		if !ok || !visit(n) {
			return
		}
	}
}

// All lists the placeable machines of a kind, from tight to roomy at the time of the
// plan's first call.
func (k *Kind) All(plan int) []*Node {
	if k.orderedAt == plan {
		return k.ordered
	}
	k.ordered, k.orderedAt = k.ordered[:0], plan
	var c Cursor[*Node]
	for c.Begin(&k.tree); ; c.Next() {
		n, ok := c.At()
		if !ok {
			return k.ordered
		}
		k.ordered = append(k.ordered, n)
	}
}
