package cluster

import (
	"slices"

	"berth"
)

// Cluster holds all machines and all running jobs. It groups machines into kinds by the
// attributes that defined classes read, and keeps each kind ordered by free capacity. A
// Cluster is not safe for concurrent use.
type Cluster struct {
	Nodes  map[berth.MachineID]*Node
	spare  []int // indexes of removed nodes
	Extent int   // one more than the highest index of a node

	Classes  map[string]*Class
	BySize   []*Class // the classes, smallest request first
	byNumber []*Class // the classes, by Class.Number

	Running  map[berth.JobID]*Holder
	Stopping map[berth.JobID]*Holder        // the running jobs that were ordered to stop
	Yielding int                            // number of running jobs that give way to every other job
	on       map[berth.MachineID]*Occupants // of machines with a row, an occupant or both
	stamp    int                            // of the latest change to occupants

	tenancy *Tenancy   // nil: tenants share devices
	pools   *poolRules // nil: no pool has rules

	untrusted map[berth.TenantID]bool // tenants whose jobs need machines that meet the security floors

	Windows []Window                    // the next window of each machine that has one, by machine
	windows map[berth.MachineID]*Window // the same, by machine

	profile  Profile
	Kinds    []*Kind          // only grows, until the profile changes
	byKey    map[string]*Kind // by Profile.key
	stale    bool             // the profile has changed; Settle rebuilds the kinds
	numbers  int              // kinds created so far
	key      []byte           // buffer
	variants []Variant        // buffer

	plans int            // plans and epochs so far
	Shape int            // version of the set of machines, regardless of their free capacity
	Owned berth.Capacity // total of the placeable machines

	Observer Observer // nil until a packing rule needs one
}

// Observer is notified of placeable machines and of changes to their free capacity.
type Observer interface {
	Enter(*Node) // a machine was added, or its free capacity changed
	Leave(*Node) // a machine was removed, or is about to change
	Reset()      // every kind was rebuilt; Enter follows for each machine
}

// New returns an empty cluster.
func New() *Cluster {
	return &Cluster{
		Nodes:    map[berth.MachineID]*Node{},
		Classes:  map[string]*Class{},
		Running:  map[berth.JobID]*Holder{},
		Stopping: map[berth.JobID]*Holder{},
		on:       map[berth.MachineID]*Occupants{},
		byKey:    map[string]*Kind{},
		Shape:    1,
	}
}

// NextPlan returns a number that no plan or epoch had before.
func (s *Cluster) NextPlan() int {
	s.plans++
	return s.plans
}

// Upsert adds a machine or replaces its row.
func (s *Cluster) Upsert(m Machine) {
	n := s.Nodes[m.ID]
	if n == nil {
		n = &Node{On: s.occupantsOf(m.ID), Index: s.index(), tenancy: s.tenancy}
		n.Leaf.Item, n.Leaf.Weight = n, WeightOf(string(m.ID))
		n.Window = s.windows[m.ID]
		s.Nodes[m.ID] = n
	} else {
		s.withdraw(n)
		s.disown(n)
	}
	// Most updates change the used capacity alone, and keep the kind. Shape versions cached
	// answers about empty machines, so only the other updates change it.
	if n.Kind == nil || !n.sameKind(&m) || n.Total != m.Total || n.Placeable() != m.Placeable() {
		n.Kind = nil
		s.Shape++
	}
	n.Machine, n.oneTenant = m, s.pools.oneTenant(m.Pool)
	n.Recount()
	s.offer(n)
	if n.Placeable() {
		s.Owned = s.Owned.Add(n.Total)
	}
}

// index returns an index for a new node. It reuses the indexes of removed machines, so
// that caches by index grow no larger than the largest size of the cluster.
func (s *Cluster) index() int {
	if last := len(s.spare) - 1; last >= 0 {
		i := s.spare[last]
		s.spare = s.spare[:last]
		return i
	}
	s.Extent++
	return s.Extent - 1
}

// Remove removes a machine. An unknown one is no error.
func (s *Cluster) Remove(id berth.MachineID) {
	n := s.Nodes[id]
	if n == nil {
		return
	}
	s.withdraw(n)
	s.disown(n)
	n.leave()
	s.Shape++
	delete(s.Nodes, id)
	s.spare = append(s.spare, n.Index)
	if len(n.On.List) == 0 {
		delete(s.on, id)
	}
}

// disown subtracts a machine from Owned. It reads the old row, so it comes before a change.
func (s *Cluster) disown(n *Node) {
	if n.Placeable() {
		s.Owned = s.Owned.Sub(n.Total)
	}
}

// change applies f to a machine and recomputes its free capacity. An unknown
// machine is no error.
func (s *Cluster) change(id berth.MachineID, f func(*Node)) {
	n := s.Nodes[id]
	if n == nil {
		return
	}
	s.withdraw(n)
	f(n)
	n.Recount()
	s.offer(n)
}

// Assume subtracts a grant from its machine's free capacity before the machine's row
// includes it.
func (s *Cluster) Assume(g berth.Grant) {
	s.change(g.Machine, func(n *Node) { n.assumed = append(n.assumed, g) })
}

// Unassume reverts Assume.
func (s *Cluster) Unassume(g berth.Grant) {
	s.change(g.Machine, func(n *Node) {
		i := slices.IndexFunc(n.assumed, func(o berth.Grant) bool { return sameGrant(o, g) })
		if i >= 0 {
			n.assumed = slices.Delete(n.assumed, i, i+1)
		}
	})
}

func sameGrant(a, b berth.Grant) bool {
	return a.Machine == b.Machine && a.Epoch == b.Epoch && a.Capacity == b.Capacity && slices.Equal(a.GPUs, b.GPUs)
}

// Define adds a class with a new name. Its number is the next after all other classes.
func (s *Cluster) Define(c *Class) {
	s.Classes[c.Name] = c
	s.Enroll(c)
	s.Observe(c)
}

// Enroll numbers a class and adds it to BySize. BySize lists the smallest request first,
// since a failed search for a small request rules out many larger ones.
func (s *Cluster) Enroll(c *Class) {
	i, _ := slices.BinarySearchFunc(s.BySize, c, compareClasses)
	s.BySize = slices.Insert(s.BySize, i, c)
	c.Number = len(s.byNumber)
	s.byNumber = append(s.byNumber, c)
}

// Dismiss reverts Enroll, for the class that was enrolled last.
func (s *Cluster) Dismiss(c *Class) {
	s.BySize = slices.DeleteFunc(s.BySize, func(o *Class) bool { return o == c })
	s.byNumber = s.byNumber[:c.Number]
	c.Number = Unnumbered
}

// Observe makes kinds distinguish the machine attributes that a class reads.
func (s *Cluster) Observe(c *Class) {
	if s.profile.merge(c.Reads) {
		s.stale = true
	}
}

// offer inserts a placeable machine into the tree of its kind and notifies the observer
// and the followers. A machine that is not placeable leaves its roster.
func (s *Cluster) offer(n *Node) {
	if s.stale {
		return // Settle rebuilds every tree before the next search
	}
	if n.Kind == nil {
		s.assign(n)
	}
	if !n.Placeable() {
		n.leave()
		return
	}
	n.Kind.tree.Insert(&n.Leaf)
	if s.Observer != nil {
		s.Observer.Enter(n)
	}
	n.Kind.note(n)
}

// withdraw removes a machine from the tree of its kind, if present. It precedes every
// change, since the tree cannot find a machine again whose order has changed.
func (s *Cluster) withdraw(n *Node) {
	if n.Kind != nil && n.Leaf.size > 0 {
		n.Kind.tree.Remove(&n.Leaf)
	}
	n.Leaf.size = 0
	if s.Observer != nil {
		s.Observer.Leave(n)
	}
}

// assign finds or creates the kind of a node.
func (s *Cluster) assign(n *Node) {
	s.variants = s.profile.variants(s.variants, &n.Machine)
	s.key = s.profile.key(s.key[:0], &n.Machine, s.variants)
	k := s.byKey[string(s.key)]
	if k == nil {
		sample := n.Machine // a copy, since the row of the node changes
		k = newKind(&sample, slices.Clone(s.variants))
		s.numbers++
		k.Number, k.Index = s.numbers, len(s.Kinds)
		s.byKey[string(s.key)] = k
		s.Kinds = append(s.Kinds, k)
	}
	n.Kind = k
	n.Variants = slices.Grow(n.Variants[:0], len(n.GPUs))
	for _, d := range n.GPUs {
		n.Variants = append(n.Variants, slices.Index(k.Variants, s.profile.variant(d)))
	}
}

// Settle rebuilds the kinds if a class reads an attribute that no earlier class
// read. It then matches the class, unless nil, with the kinds that are new to it.
func (s *Cluster) Settle(c *Class) {
	if s.stale {
		s.rebuild()
	}
	if c != nil {
		c.catchUp(s.Kinds)
	}
}

// rebuild creates every kind and its tree from the machines.
func (s *Cluster) rebuild() {
	s.stale = false
	s.Kinds, s.byKey = nil, map[string]*Kind{}
	for _, c := range s.Classes { // the parts of a class are among them
		c.Matches, c.seen, c.gathered = nil, 0, nil
	}
	if s.Observer != nil {
		s.Observer.Reset()
	}
	for _, id := range s.MachineIDs() {
		n := s.Nodes[id]
		n.Kind, n.Leaf.size = nil, 0
		s.assign(n)
		if !n.Placeable() {
			n.leave()
			continue
		}
		n.Kind.Members = append(n.Kind.Members, n)
		if s.Observer != nil {
			s.Observer.Enter(n)
		}
	}
	for _, k := range s.Kinds {
		k.list(k.Members)
		leaves := make([]*Leaf[*Node], 0, len(k.Members))
		for _, n := range k.Members {
			leaves = append(leaves, &n.Leaf)
		}
		k.tree.Build(leaves)
	}
}

// MachineIDs lists the machines by id, for work with a visible order.
func (s *Cluster) MachineIDs() []berth.MachineID {
	ids := make([]berth.MachineID, 0, len(s.Nodes))
	for id := range s.Nodes {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}
