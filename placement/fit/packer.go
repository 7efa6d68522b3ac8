package fit

import (
	"slices"
	"strings"

	"berth/placement/cluster"
)

// Pack is the rule that chooses among the machines that fit.
type Pack int

const (
	// BestFit takes the machine with the smallest leftover.
	BestFit Pack = iota
	// LeastFragmentation takes the place where the expected usable share of the cluster's free
	// GPUs falls least, given the mix of requests. While too little is known of that,
	// and for work on machines without GPUs, it is BestFit.
	LeastFragmentation
)

// maxLooks bounds how many costs one plan looks at. Once they are spent, which
// takes thousands of starts of many classes at once, BestFit places the rest.
const maxLooks = 20_000

// looksPerScan is how many groups passed over cost as much as one look.
const looksPerScan = 64

// Packer groups the machines by remnant for the rule LeastFragmentation, and holds the
// mix of requests that the rule weighs by. It groups no machine before the first plan with
// that rule.
type Packer struct {
	cluster *cluster.Cluster
	Mix     *Mix
	fleet   *fleet // nil: no plan has asked for it
}

func newPacker(c *cluster.Cluster) *Packer { return &Packer{cluster: c, Mix: NewMix()} }

// Use replaces the distribution of requests.
func (p *Packer) Use(m *Mix) {
	p.Mix, p.fleet = m, nil
	for _, a := range m.shapes {
		p.cluster.Observe(a.class)
	}
}

// Appraise prepares the groups for a plan; false while the mix is not known.
func (p *Packer) Appraise() bool {
	if !p.Mix.refresh() {
		return false
	}
	if p.fleet == nil {
		p.fleet = newFleet()
		for _, n := range p.cluster.Nodes {
			if n.Offered() {
				p.Enter(n)
			}
		}
	}
	p.fleet.begin(p.Mix, p.cluster.Owned.CPUMilli, p.cluster.Owned.GPUMilli)
	return true
}

// Enter groups a machine by its remnant. Machines without devices have no group.
func (p *Packer) Enter(n *cluster.Node) {
	if p.fleet != nil {
		p.fleet.leave(n)
		if n.Kind.HasDevices() {
			p.fleet.enter(n)
		}
	}
}

// Leave takes a machine out of its group.
func (p *Packer) Leave(n *cluster.Node) {
	if p.fleet != nil {
		p.fleet.leave(n)
	}
}

// Reset drops every group.
func (p *Packer) Reset() {
	if p.fleet != nil {
		p.fleet.clear()
	}
}

// cheapest finds the place for one member where the usable share falls least.
func (r *Placer) cheapest(s Search) (cluster.Choice, bool) {
	if s.Class.Request.GPUs == 0 {
		// Machines without devices lose no usable share.
		s.plain = true
		if found, ok := s.best(); ok {
			return found, true
		}
		s.plain = false
	}
	b := cheapestPlace{Search: &s, least: never}
	if near, all := r.near(&s); all {
		r.chooseAmong(&b, near)
	} else {
		r.chooseFromAll(&b)
	}
	if b.group == nil {
		return cluster.Choice{}, false
	}
	devices, ok := devicesAt(s.Class, b.at.Node, b.at.Allowed, b.hole)
	if !ok {
		panic("placement: group of " + string(b.at.Node.ID) + " has room that the machine lacks")
	}
	b.at.Grant = Grant(s.Class, b.at.Node, devices)
	return b.at, true
}

// cheapestPlace is the cheapest place so far for one member.
type cheapestPlace struct {
	*Search
	group *group // nil: there is none
	least float32
	hole  hole
	at    cluster.Choice
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
	if n == nil || order == 0 && strings.Compare(string(n.ID), string(b.at.Node.ID)) > 0 {
		return
	}
	b.group, b.least, b.hole = g, loss, where
	b.at = cluster.Choice{Node: n, Allowed: devices}
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
func (r *Placer) near(s *Search) (list []nearby, all bool) {
	list, all = r.nearby[:0], true
	machines := 0
	for _, need := range Needs(s.Class) {
		for _, m := range s.Class.Matches {
			m.Kind.Walk(need, false, func(n *cluster.Node) bool {
				g := r.packer.fleet.of(n)
				if g == nil || !s.Allows(n) || !Fits(s.Class, n, m.Devices) {
					return true
				}
				if !slices.ContainsFunc(list, func(x nearby) bool { return x.group == g }) {
					list = append(list, nearby{g, m.Devices})
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
func (r *Placer) chooseAmong(b *cheapestPlace, near []nearby) {
	f := r.packer.fleet
	row := f.costs[b.Class] // a few costs are worked out sooner than a row is made for them
	r.looks += len(near)
	for _, x := range near {
		g := x.group
		if int(g.slot) >= len(row) {
			loss, where := f.price(g, b.Class, x.devices)
			b.offer(g, x.devices, loss, where)
			continue
		}
		k := &row[g.slot]
		if k.stamp != g.stamp {
			k.stamp, k.plan = g.stamp, 0
			k.loss, k.hole = f.price(g, b.Class, x.devices)
		}
		b.offer(g, x.devices, k.loss, k.hole)
	}
}

// chooseFromAll looks at all groups.
func (r *Placer) chooseFromAll(b *cheapestPlace) {
	f := r.packer.fleet
	row := f.row(b.Class)
	look := func(m cluster.Match, list []listed) {
		r.scanned += len(list)
		for i := range list {
			x := &list[i]
			k := &row[x.slot]
			if k.stamp != x.stamp {
				k.stamp, k.plan = x.stamp, 0
				k.loss, k.hole = f.price(x.group, b.Class, m.Devices)
			}
			if k.loss == never {
				continue
			}
			if k.plan != f.plan {
				k.plan = f.plan
				r.looks++
			}
			b.offer(x.group, m.Devices, k.loss, k.hole)
		}
	}
	for _, m := range b.Class.Matches {
		groups := f.groupsOf(m.Kind)
		look(m, groups.free)
		if b.Class.Request.GPUs == 0 {
			look(m, groups.full)
		}
	}
}

// spent reports whether the plan has looked at as many costs as it may.
func (r *Placer) spent() bool { return r.looks+r.scanned/looksPerScan > maxLooks }

// first returns the first machine of a group that may be used: they are alike
// but for their names and disks.
func (s *Search) first(g *group) *cluster.Node {
	for i := range g.machines.Len() {
		n, _ := g.machines.At(i)
		if s.Allows(n) && s.Class.Capacity.Fits(n.Free) {
			return n
		}
	}
	return nil
}

// any reports whether any machine fits.
func (s *Search) any() bool {
	for _, need := range Needs(s.Class) {
		for _, m := range s.Class.Matches {
			found := false
			m.Kind.Walk(need, false, func(n *cluster.Node) bool {
				if s.Allows(n) {
					_, found = Devices(s.Class, n, m.Devices)
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
func devicesAt(c *cluster.Class, n *cluster.Node, allowed uint64, where hole) ([]int, bool) {
	if c.Request.GPUs != 1 || c.Request.GPUMilli == cluster.Whole {
		return Devices(c, n, allowed)
	}
	for i, free := range n.FreeMilli {
		if free > 0 && newHole(n.Variants[i], free) == where {
			return []int{i}, true
		}
	}
	return nil, false
}
