package placement

import "strings"

// Pack is the rule by which packing chooses among the machines that fit.
type Pack int

const (
	// BestFit takes the machine with the smallest leftover.
	BestFit Pack = iota
	// Worth takes the place where the worth of what the cluster has left falls
	// least, given what jobs usually ask for. While too little is known of that,
	// and for work on machines without GPUs, it is BestFit.
	Worth
)

// maxLooks bounds how many costs one plan looks at. Once they are spent, which
// takes thousands of starts of many classes at once, BestFit places the rest.
const maxLooks = 20_000

// looksPerScan is how many groups passed over cost as much as one look.
const looksPerScan = 64

// appraise readies the fleet for a plan; false while the mix is not known.
func (s *Snapshot) appraise() bool {
	if !s.mix.refresh() {
		return false
	}
	if s.fleet == nil {
		s.fleet = newFleet()
		for _, n := range s.nodes {
			if n.leaf.size > 0 {
				s.regroup(n)
			}
		}
	}
	s.fleet.begin(s.mix, s.owned.CPUMilli, s.owned.GPUMilli)
	return true
}

// regroup puts a machine whose room has changed where it belongs.
func (s *Snapshot) regroup(n *node) {
	if s.fleet == nil {
		return
	}
	s.fleet.leave(n)
	if n.kind.hasDevices() {
		s.fleet.enter(n)
	}
}

// cheapest finds the place for one member where the worth falls least.
func (r *run) cheapest(s search) (choice, bool) {
	if s.class.request.GPUs == 0 {
		// Machines without devices lose no worth.
		s.plain = true
		if found, ok := s.best(); ok {
			return found, true
		}
		s.plain = false
	}
	if !s.any() {
		return choice{}, false
	}
	f := r.snapshot.fleet
	row := f.row(s.class)
	var best *group
	var at choice
	var where hole
	least := float32(never)
	for _, m := range s.class.matches {
		r.scanned += len(m.kind.groups)
		for _, g := range m.kind.groups {
			k := &row[g.slot]
			if k.stamp != g.stamp {
				k.stamp, k.plan = g.stamp, 0
				k.loss, k.hole = f.price(g, s.class, m.devices)
			}
			if k.loss == never {
				continue
			}
			if k.plan != f.plan {
				k.plan = f.plan
				r.looks++
			}
			if k.loss > least {
				continue
			}
			order := -1
			if k.loss == least {
				if order = compareGroups(g, best); order > 0 {
					continue
				}
			}
			n := s.first(g)
			if n == nil || order == 0 && strings.Compare(string(n.ID), string(at.node.ID)) > 0 {
				continue
			}
			best, least, where = g, k.loss, k.hole
			at = choice{node: n, allowed: m.devices}
		}
	}
	if best == nil {
		return choice{}, false
	}
	devices, ok := s.class.devicesAt(at.node, at.allowed, where)
	if !ok {
		panic("placement: group of " + string(at.node.ID) + " has room that the machine lacks")
	}
	at.grant = s.class.grant(at.node, devices)
	return at, true
}

// spent reports whether the plan has looked at as many costs as it may.
func (r *run) spent() bool { return r.looks+r.scanned/looksPerScan > maxLooks }

// first returns the first machine of a group that may be used: they are alike
// but for their names and disks.
func (s *search) first(g *group) *node {
	for i := range g.machines.len() {
		n, _ := g.machines.at(i)
		if s.allows(n) && s.class.capacity.Fits(n.free) {
			return n
		}
	}
	return nil
}

// any reports whether any machine fits.
func (s *search) any() bool {
	for _, need := range s.class.needs() {
		for _, m := range s.class.matches {
			found := false
			m.kind.walk(need, false, func(n *node) bool {
				if s.allows(n) {
					_, found = s.class.fit(n, m.devices)
				}
				return !found
			})
			if found {
				return true
			}
		}
	}
	return false
}

// devicesAt picks the devices for one member: for a share, the first with that
// hole.
func (c *class) devicesAt(n *node, allowed uint64, where hole) ([]int, bool) {
	if c.request.GPUs != 1 || c.request.GPUMilli == whole {
		return c.fit(n, allowed)
	}
	for i, free := range n.gpus {
		if free > 0 && newHole(n.variants[i], free) == where {
			return []int{i}, true
		}
	}
	return nil, false
}
