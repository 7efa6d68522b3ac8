package placement

import (
	"slices"

	"berth"
)

// cluster is every machine and every job that occupies one. It groups machines
// into kinds by the attributes that defined classes read, and keeps each kind
// ordered by free capacity. It is not safe for concurrent use.
type cluster struct {
	nodes  map[berth.MachineID]*node
	spare  []int // indexes of removed nodes
	extent int   // one more than the highest index of a node

	classes map[string]*class
	roster  []*class // the classes, smallest request first
	byIndex []*class // the classes, by class.number

	running  map[berth.JobID]*holder
	stopping map[berth.JobID]*holder // the running jobs that were ordered to stop
	on       map[berth.MachineID]*occupants
	stamp    int // of the latest change to occupants

	profile  profile
	kinds    []*kind // only grows, until the profile changes
	byKey    map[string]*kind
	stale    bool // the profile has changed; settle rebuilds the kinds
	numbers  int  // kinds created so far
	key      []byte
	variants []variant

	plans int            // plans and epochs so far
	shape int            // version of the set of machines, whatever is free on them
	owned berth.Capacity // total of the placeable machines

	observer observer // nil until a packing rule needs one
}

// observer follows where placeable machines are and how much is free on them.
type observer interface {
	enter(*node) // a machine was added, or its free capacity changed
	leave(*node) // a machine was removed, or is about to change
	reset()      // every kind was rebuilt; enter follows for each machine
}

// newCluster returns an empty cluster.
func newCluster() *cluster {
	return &cluster{
		nodes:    map[berth.MachineID]*node{},
		classes:  map[string]*class{},
		running:  map[berth.JobID]*holder{},
		stopping: map[berth.JobID]*holder{},
		on:       map[berth.MachineID]*occupants{},
		byKey:    map[string]*kind{},
		shape:    1,
	}
}

// nextPlan returns a number that no plan or epoch had before.
func (s *cluster) nextPlan() int {
	s.plans++
	return s.plans
}

// upsert adds a machine or replaces its row.
func (s *cluster) upsert(m Machine) {
	n := s.nodes[m.ID]
	if n == nil {
		n = &node{on: s.occupantsOf(m.ID), index: s.index()}
		n.leaf.item, n.leaf.weight = n, weightOf(string(m.ID))
		s.nodes[m.ID] = n
	} else {
		s.withdraw(n)
		s.disown(n)
	}
	if n.kind == nil || !n.sameKind(&m) || n.Total != m.Total || n.Placeable() != m.Placeable() {
		n.kind = nil
		s.shape++
	}
	n.Machine = m
	n.recount()
	s.offer(n)
	if n.Placeable() {
		s.owned = s.owned.Add(n.Total)
	}
}

// index returns the lowest index that is free for a node.
func (s *cluster) index() int {
	if last := len(s.spare) - 1; last >= 0 {
		i := s.spare[last]
		s.spare = s.spare[:last]
		return i
	}
	s.extent++
	return s.extent - 1
}

// remove removes a machine. An unknown one is no error.
func (s *cluster) remove(id berth.MachineID) {
	n := s.nodes[id]
	if n == nil {
		return
	}
	s.withdraw(n)
	s.disown(n)
	n.leave()
	s.shape++
	delete(s.nodes, id)
	s.spare = append(s.spare, n.index)
	if len(n.on.list) == 0 {
		delete(s.on, id)
	}
}

func (s *cluster) disown(n *node) {
	if n.Placeable() {
		s.owned = s.owned.Sub(n.Total)
	}
}

// change applies f to a machine and recomputes its free capacity. An unknown
// machine is no error.
func (s *cluster) change(id berth.MachineID, f func(*node)) {
	n := s.nodes[id]
	if n == nil {
		return
	}
	s.withdraw(n)
	f(n)
	n.recount()
	s.offer(n)
}

// assume counts a grant against its machine before its row says so.
func (s *cluster) assume(g berth.Grant) {
	s.change(g.Machine, func(n *node) { n.assumed = append(n.assumed, g) })
}

// unassume ends the effect of assume.
func (s *cluster) unassume(g berth.Grant) {
	s.change(g.Machine, func(n *node) {
		i := slices.IndexFunc(n.assumed, func(o berth.Grant) bool { return sameGrant(o, g) })
		if i >= 0 {
			n.assumed = slices.Delete(n.assumed, i, i+1)
		}
	})
}

func sameGrant(a, b berth.Grant) bool {
	return a.Machine == b.Machine && a.Epoch == b.Epoch && a.Capacity == b.Capacity && slices.Equal(a.GPUs, b.GPUs)
}

// define adds a class, numbered after all others. Its name is unknown so far.
func (s *cluster) define(c *class) {
	s.classes[c.name] = c
	s.enroll(c)
	s.observe(c)
}

// enroll adds a class to the roster, which puts the smallest request first: if
// that has no place, many others have none either.
func (s *cluster) enroll(c *class) {
	i, _ := slices.BinarySearchFunc(s.roster, c, compareClasses)
	s.roster = slices.Insert(s.roster, i, c)
	c.number = len(s.byIndex)
	s.byIndex = append(s.byIndex, c)
}

// dismiss removes the class enrolled last.
func (s *cluster) dismiss(c *class) {
	s.roster = slices.DeleteFunc(s.roster, func(o *class) bool { return o == c })
	s.byIndex = s.byIndex[:c.number]
	c.number = unnumbered
}

// observe makes kinds distinguish the attributes that a class reads.
func (s *cluster) observe(c *class) {
	if s.profile.merge(c.reads) {
		s.stale = true
	}
}

// offer puts a node into the tree of its kind, if it is placeable.
func (s *cluster) offer(n *node) {
	if s.stale {
		return // settle rebuilds every tree before the next search
	}
	if n.kind == nil {
		s.assign(n)
	}
	if !n.Placeable() {
		n.leave()
		return
	}
	n.kind.tree.insert(&n.leaf)
	if s.observer != nil {
		s.observer.enter(n)
	}
	n.kind.note(n)
}

// withdraw removes a node from the tree of its kind, if it is in one.
func (s *cluster) withdraw(n *node) {
	if n.kind != nil && n.leaf.size > 0 {
		n.kind.tree.remove(&n.leaf)
	}
	n.leaf.size = 0
	if s.observer != nil {
		s.observer.leave(n)
	}
}

// assign finds or creates the kind of a node.
func (s *cluster) assign(n *node) {
	s.variants = s.profile.variants(s.variants, &n.Machine)
	s.key = s.profile.key(s.key[:0], &n.Machine, s.variants)
	k := s.byKey[string(s.key)]
	if k == nil {
		sample := n.Machine // a copy, since the row of the node changes
		k = newKind(&sample, slices.Clone(s.variants))
		s.numbers++
		k.number, k.index = s.numbers, len(s.kinds)
		s.byKey[string(s.key)] = k
		s.kinds = append(s.kinds, k)
	}
	n.kind = k
	n.variants = slices.Grow(n.variants[:0], len(n.GPUs))
	for _, d := range n.GPUs {
		n.variants = append(n.variants, slices.Index(k.variants, s.profile.variant(d)))
	}
}

// settle rebuilds the kinds if a class reads an attribute that no earlier class
// read. It then matches the class, unless nil, with the kinds that are new to it.
func (s *cluster) settle(c *class) {
	if s.stale {
		s.rebuild()
	}
	if c != nil {
		c.catchUp(s.kinds)
	}
}

// rebuild creates every kind and its tree from the machines.
func (s *cluster) rebuild() {
	s.stale = false
	s.kinds, s.byKey = nil, map[string]*kind{}
	for _, c := range s.classes {
		c.matches, c.seen = nil, 0
	}
	if s.observer != nil {
		s.observer.reset()
	}
	for _, id := range s.machineIDs() {
		n := s.nodes[id]
		n.kind, n.leaf.size = nil, 0
		s.assign(n)
		if !n.Placeable() {
			n.leave()
			continue
		}
		n.kind.members = append(n.kind.members, n)
		if s.observer != nil {
			s.observer.enter(n)
		}
	}
	for _, k := range s.kinds {
		k.list(k.members)
		leaves := make([]*leaf[*node], 0, len(k.members))
		for _, n := range k.members {
			leaves = append(leaves, &n.leaf)
		}
		k.tree.build(leaves)
	}
}

// machineIDs lists the machines by id, for work with a visible order.
func (s *cluster) machineIDs() []berth.MachineID {
	ids := make([]berth.MachineID, 0, len(s.nodes))
	for id := range s.nodes {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}
