package placement

import (
	"slices"

	"berth"
)

// plant puts a node into the tree of its kind, if it may be given work.
func (s *Snapshot) plant(n *node) {
	if s.stale {
		return // everything is planted anew before the next search
	}
	if n.kind == nil {
		s.assign(n)
	}
	if n.Placeable() {
		n.kind.tree.insert(&n.leaf)
		s.regroup(n)
		n.kind.note(n)
	} else {
		n.leave()
	}
}

func (s *Snapshot) unplant(n *node) {
	if n.kind != nil && n.leaf.size > 0 {
		n.kind.tree.remove(&n.leaf)
	}
	n.leaf.size = 0
	if s.fleet != nil {
		s.fleet.leave(n)
	}
}

// assign finds the node's kind or makes it.
func (s *Snapshot) assign(n *node) {
	s.variants = s.profile.variants(s.variants, &n.Machine)
	s.key = s.profile.key(s.key[:0], &n.Machine, s.variants)
	k := s.byKey[string(s.key)]
	if k == nil {
		sample := n.Machine // a copy: the node's changes
		k = newKind(&sample, slices.Clone(s.variants))
		s.numbers++
		k.number = s.numbers
		s.byKey[string(s.key)] = k
		s.kinds = append(s.kinds, k)
	}
	n.kind = k
	n.variants = slices.Grow(n.variants[:0], len(n.GPUs))
	for _, d := range n.GPUs {
		n.variants = append(n.variants, slices.Index(k.variants, s.profile.variant(d)))
	}
}

// settle makes the kinds anew where a class looks at something that no class
// looked at before, and matches the class, if any, with the kinds it has not
// seen.
func (s *Snapshot) settle(c *class) {
	if s.stale {
		s.stale = false
		s.kinds, s.byKey = nil, map[string]*kind{}
		for _, other := range s.classes {
			other.matches, other.seen = nil, 0
		}
		if s.fleet != nil {
			s.fleet.clear()
		}
		for _, id := range s.machineIDs() {
			n := s.nodes[id]
			n.kind, n.leaf.size, n.group = nil, 0, nil
			s.assign(n)
			if !n.Placeable() {
				n.leave()
				continue
			}
			n.kind.members = append(n.kind.members, n)
			s.regroup(n)
		}
		for _, k := range s.kinds {
			k.muster(k.members)
			leaves := make([]*leaf[*node], 0, len(k.members))
			for _, n := range k.members {
				leaves = append(leaves, &n.leaf)
			}
			k.tree.build(leaves)
		}
	}
	if c != nil {
		c.catchUp(s.kinds)
	}
}

// machineIDs lists the machines in order, for work whose order shows.
func (s *Snapshot) machineIDs() []berth.MachineID {
	ids := make([]berth.MachineID, 0, len(s.nodes))
	for id := range s.nodes {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}
