package placement

import (
	"slices"
	"strings"
)

// Pack is the rule by which packing chooses among the machines that fit.
type Pack int

const (
	// BestFit takes the machine with the smallest leftover.
	BestFit Pack = iota
	// Worth takes the place where the expected usable share of the cluster's free
	// GPUs falls least, given the mix of requests. While too little is known of that,
	// and for work on machines without GPUs, it is BestFit.
	Worth
)

// maxLooks bounds how many costs one plan looks at. Once they are spent, which
// takes thousands of starts of many classes at once, BestFit places the rest.
const maxLooks = 20_000

// looksPerScan is how many groups passed over cost as much as one look.
const looksPerScan = 64

// packer keeps the machines grouped by remnant for the rule Worth, once a plan
// has asked for it, and the distribution of requests that the rule weighs by.
type packer struct {
	cluster *cluster
	mix     *Mix
	fleet   *fleet // nil: no plan has asked for it
}

func newPacker(c *cluster) *packer { return &packer{cluster: c, mix: NewMix()} }

// use replaces the distribution of requests.
func (p *packer) use(m *Mix) {
	p.mix, p.fleet = m, nil
	for _, a := range m.shapes {
		p.cluster.observe(a.class)
	}
}

// appraise readies the fleet for a plan; false while the mix is not known.
func (p *packer) appraise() bool {
	if !p.mix.refresh() {
		return false
	}
	if p.fleet == nil {
		p.fleet = newFleet()
		for _, n := range p.cluster.nodes {
			if n.offered() {
				p.enter(n)
			}
		}
	}
	p.fleet.begin(p.mix, p.cluster.owned.CPUMilli, p.cluster.owned.GPUMilli)
	return true
}

// enter groups a machine by its remnant. Machines without devices have no group.
func (p *packer) enter(n *node) {
	if p.fleet != nil {
		p.fleet.leave(n)
		if n.kind.hasDevices() {
			p.fleet.enter(n)
		}
	}
}

// leave takes a machine out of its group.
func (p *packer) leave(n *node) {
	if p.fleet != nil {
		p.fleet.leave(n)
	}
}

// reset drops every group.
func (p *packer) reset() {
	if p.fleet != nil {
		p.fleet.clear()
	}
}

// cheapest finds the place for one member where the usable share falls least.
func (r *placer) cheapest(s search) (choice, bool) {
	if s.class.request.GPUs == 0 {
		// Machines without devices lose no usable share.
		s.plain = true
		if found, ok := s.best(); ok {
			return found, true
		}
		s.plain = false
	}
	b := cheapestPlace{search: &s, least: never}
	if near, all := r.near(&s); all {
		r.chooseAmong(&b, near)
	} else {
		r.chooseFromAll(&b)
	}
	if b.group == nil {
		return choice{}, false
	}
	devices, ok := s.class.devicesAt(b.at.node, b.at.allowed, b.hole)
	if !ok {
		panic("placement: group of " + string(b.at.node.ID) + " has room that the machine lacks")
	}
	b.at.grant = s.class.grant(b.at.node, devices)
	return b.at, true
}

// cheapestPlace is the cheapest place so far for one member.
type cheapestPlace struct {
	*search
	group *group // nil: there is none
	least float32
	hole  hole
	at    choice
}

// offer takes a place in a group if it is cheaper, or as cheap and better.
func (b *cheapestPlace) offer(g *group, devices uint64, loss float32, where hole) {
	if loss > b.least || loss == never {
		return
	}
	order := -1
	if b.group != nil && loss == b.least {
		if order = compareGroups(g, b.group); order > 0 {
			return
		}
	}
	n := b.first(g)
	if n == nil || order == 0 && strings.Compare(string(n.ID), string(b.at.node.ID)) > 0 {
		return
	}
	b.group, b.least, b.hole = g, loss, where
	b.at = choice{node: n, allowed: devices}
}

// Up to how many groups, and machines in them, a look for those that fit is worth
// it. In a full cluster they are few.
const (
	maxNear     = 16
	maxNearness = 64
)

// nearby is a group with machines that fit.
type nearby struct {
	group   *group
	devices uint64 // that may be used of its kind
}

// near lists the groups of all machines that fit; all is false if there are too
// many.
func (r *placer) near(s *search) (list []nearby, all bool) {
	list, all = r.nearby[:0], true
	machines := 0
	for _, need := range s.class.needs() {
		for _, m := range s.class.matches {
			m.kind.walk(need, false, func(n *node) bool {
				g := r.packer.fleet.of(n)
				if g == nil || !s.allows(n) || !s.class.fits(n, m.devices) {
					return true
				}
				if !slices.ContainsFunc(list, func(x nearby) bool { return x.group == g }) {
					list = append(list, nearby{g, m.devices})
				}
				machines++
				all = len(list) <= maxNear && machines <= maxNearness
				return all
			})
			if !all {
				return nil, false
			}
		}
	}
	r.nearby = list
	return list, true
}

// chooseAmong looks at the groups listed.
func (r *placer) chooseAmong(b *cheapestPlace, near []nearby) {
	f := r.packer.fleet
	row := f.costs[b.class] // a few costs are worked out sooner than a row is made for them
	r.looks += len(near)
	for _, x := range near {
		g := x.group
		if int(g.slot) >= len(row) {
			loss, where := f.price(g, b.class, x.devices)
			b.offer(g, x.devices, loss, where)
			continue
		}
		k := &row[g.slot]
		if k.stamp != g.stamp {
			k.stamp, k.plan = g.stamp, 0
			k.loss, k.hole = f.price(g, b.class, x.devices)
		}
		b.offer(g, x.devices, k.loss, k.hole)
	}
}

// chooseFromAll looks at all groups.
func (r *placer) chooseFromAll(b *cheapestPlace) {
	f := r.packer.fleet
	row := f.row(b.class)
	look := func(m match, list []listed) {
		r.scanned += len(list)
		for i := range list {
			x := &list[i]
			k := &row[x.slot]
			if k.stamp != x.stamp {
				k.stamp, k.plan = x.stamp, 0
				k.loss, k.hole = f.price(x.group, b.class, m.devices)
			}
			if k.loss == never {
				continue
			}
			if k.plan != f.plan {
				k.plan = f.plan
				r.looks++
			}
			b.offer(x.group, m.devices, k.loss, k.hole)
		}
	}
	for _, m := range b.class.matches {
		groups := f.groupsOf(m.kind)
		look(m, groups.free)
		if b.class.request.GPUs == 0 {
			look(m, groups.full)
		}
	}
}

// spent reports whether the plan has looked at as many costs as it may.
func (r *placer) spent() bool { return r.looks+r.scanned/looksPerScan > maxLooks }

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
