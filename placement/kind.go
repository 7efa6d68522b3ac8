package placement

import (
	"encoding/binary"
	"maps"
	"slices"
	"strings"

	"berth"
)

// profile is which attributes of machines any class looks at. Machines that
// agree in them are of one kind, so that a label nobody asks for, such as a
// host name, does not make a kind of each machine.
type profile struct {
	id, cpus, memory, index, allLabels, network bool
	labels                                      []string // sorted
}

func (p *profile) addLabel(key string) {
	if i, found := slices.BinarySearch(p.labels, key); !found {
		p.labels = slices.Insert(p.labels, i, key)
	}
}

// merge adds what o looks at and reports whether that is news.
func (p *profile) merge(o profile) bool {
	was, labels := *p, len(p.labels)
	p.id = p.id || o.id
	p.cpus = p.cpus || o.cpus
	p.memory = p.memory || o.memory
	p.index = p.index || o.index
	p.allLabels = p.allLabels || o.allLabels
	p.network = p.network || o.network
	for _, k := range o.labels {
		p.addLabel(k)
	}
	return p.id != was.id || p.cpus != was.cpus || p.memory != was.memory || p.index != was.index ||
		p.allLabels != was.allLabels || p.network != was.network || len(p.labels) != labels
}

// key spells out, after what is in b, what machines of one kind have in common.
// The variants are those of the machine.
func (p *profile) key(b []byte, m *Machine, variants []variant) []byte {
	field := func(s string) {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	number := func(n int64) { b = binary.AppendVarint(b, n) }
	field(m.Pool)
	field(m.Region)
	field(m.Site)
	if m.Fences {
		number(1)
	} else {
		number(0)
	}
	if p.network {
		field(m.Network)
	}
	if p.id {
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

// variant is a sort of device within a kind. index is -1 unless some class
// looks at it.
type variant struct {
	model  string
	memory int64
	index  int
}

func (p *profile) variant(d Device) variant {
	v := variant{d.Model, d.MemoryMiB, -1}
	if p.index {
		v.index = d.Index
	}
	return v
}

// variants lists the sorts of devices of a machine, smallest memory first, into
// list's memory.
func (p *profile) variants(list []variant, m *Machine) []variant {
	list = list[:0]
	for _, d := range m.GPUs {
		if v := p.variant(d); !slices.Contains(list, v) {
			list = append(list, v)
		}
	}
	if len(list) < 2 {
		return list
	}
	slices.SortFunc(list, func(a, b variant) int {
		switch {
		case a.memory != b.memory:
			return sign(a.memory - b.memory)
		case a.model != b.model:
			return strings.Compare(a.model, b.model)
		}
		return a.index - b.index
	})
	return list
}

// kind is a set of machines that no class can tell apart but by their room.
type kind struct {
	number    int      // of all there ever were in the snapshot
	index     int      // in cluster.kinds
	sample    *Machine // any one of them: what the classes look at is the same
	variants  []variant
	tree      tree[*node] // the placeable ones, from tight to roomy
	ordered   []*node     // see all
	orderedAt int
	roster
}

// hasDevices reports whether the machines have any.
func (k *kind) hasDevices() bool { return len(k.variants) > 0 }

func newKind(sample *Machine, variants []variant) *kind {
	return &kind{sample: sample, variants: variants, tree: tree[*node]{
		compare: compareNodes,
		gather: func(at, left, right *leaf[*node]) {
			n := at.item
			n.most = n.has
			if left != nil {
				n.most = n.most.max(left.item.most)
			}
			if right != nil {
				n.most = n.most.max(right.item.most)
			}
		},
	}}
}

// need is what one rank asks of a machine, as far as pruning can tell.
type need struct {
	berth.Capacity
	whole int   // devices
	part  int64 // of one device that is in use already
}

func (n need) within(r room) bool {
	return n.Capacity.Fits(r.Capacity) && n.whole <= r.whole && n.part <= r.part
}

// walk visits the machines that have room for n, from tight to roomy (or, to
// spread, the other way), until visit returns false.
func (k *kind) walk(n need, spread bool, visit func(*node) bool) {
	walk(k.tree.root, n, spread, visit)
}

func walk(l *leaf[*node], n need, spread bool, visit func(*node) bool) bool {
	if l == nil || !n.within(l.item.most) {
		return true
	}
	first, last := l.left, l.right
	if spread {
		first, last = last, first
	}
	return walk(first, n, spread, visit) &&
		(!n.within(l.item.has) || visit(l.item)) &&
		walk(last, n, spread, visit)
}

// all lists the placeable machines of a kind, in the order that they had when
// the plan first asked.
func (k *kind) all(plan int) []*node {
	if k.orderedAt == plan {
		return k.ordered
	}
	k.ordered, k.orderedAt = k.ordered[:0], plan
	var c cursor[*node]
	for c.begin(&k.tree); ; c.next() {
		n, ok := c.at()
		if !ok {
			return k.ordered
		}
		k.ordered = append(k.ordered, n)
	}
}
