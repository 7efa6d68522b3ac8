package fit

import (
	"slices"
	"strings"

	"berth/placement/cluster"
)

// Pack is the rule that chooses among the machines that fit.
type Pack int

const (
	// BestFit chooses the machine with the smallest leftover; see score.
	BestFit Pack = iota
	// LeastFragmentation chooses the place with the least expected fragmentation cost: the
	// fall of the expected usable share of the cluster's free GPUs, given the mix of
	// requests. It acts as BestFit while the mix is unknown, and for work on machines
	// without GPUs.
	LeastFragmentation
)

// maxLooks bounds the number of costs that one plan reads. After that, which takes
// thousands of starts of many classes at once, BestFit places the remaining jobs. The bound
// counts reads instead of time, so that plans do not depend on the speed of the machine.
const maxLooks = 20_000

// looksPerScan is the number of groups passed over that take as long as one read of a cost.
const looksPerScan = 64

// Packer groups the machines by remnant for the rule LeastFragmentation, and holds the mix
// of requests. It groups no machine before the first plan with that rule. It is the
// cluster's Observer, which keeps the groups current.
type Packer struct {
	cluster *cluster.Cluster
	Mix     *Mix
	fleet   *fleet // nil: no plan has needed the groups yet
}

// newPacker returns a Packer with a Mix that learns.
func newPacker(c *cluster.Cluster) *Packer { return &Packer{cluster: c, Mix: NewMix()} }

// Use replaces the mix of requests. The kinds of machines then distinguish the attributes
// that its shapes read.
func (p *Packer) Use(m *Mix) {
	p.Mix, p.fleet = m, nil
	for _, a := range m.shapes {
		p.cluster.Observe(a.class)
	}
}

// Appraise prepares the groups for a plan. It returns false while the mix is unknown; then
// BestFit places.
func (p *Packer) Appraise() bool {
	if !p.Mix.refresh() {
		return false
	}
	p.cluster.Settle(nil) // a later rebuild of the kinds would drop the prices of this plan
	if p.fleet == nil {
		p.fleet = newFleet()
		for _, n := range p.cluster.Nodes {
			if n.Offered() {
				p.Enter(n)
			}
		}
	}
	p.fleet.begin(p.Mix, p.cluster)
	return true
}

// Enter moves a machine to the group of its remnant. Machines without devices have no
// group.
func (p *Packer) Enter(n *cluster.Node) {
	if p.fleet != nil {
		p.fleet.leave(n)
		if n.Kind.HasDevices() {
			p.fleet.enter(n)
		}
	}
}

// Leave removes a machine from its group.
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

// cheapest finds the place with the least expected fragmentation cost for one member.
func (r *Placer) cheapest(s Search) (cluster.Choice, bool) {
	if s.Class.Request.GPUs == 0 {
		// Machines without devices lose no usable share.
		s.plain = true
		if found, ok := s.best(); ok {
			return found, true
		}
		s.plain = false
	}
	if r.packer.fleet.scarcity != nil {
		r.packer.fleet.scarcity.refresh()
	}
	b := cheapestPlace{Search: &s, least: never}
	if near, all := r.near(&s); all {
		// In a full cluster few machines fit, and a tree search finds them at once;
		// otherwise all groups are compared.
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

// cheapestPlace is the cheapest place found so far for one member.
type cheapestPlace struct {
	*Search
	group *group  // nil: no place yet
	least float32 // cost of the place, in thousandths of a GPU
	hole  hole    // for a share of a GPU: the free part to use
	at    cluster.Choice
}

// offer compares a place in a group with the cheapest one. The lower cost wins, then the
// fuller group, then the lower machine id, so that the result does not depend on the order
// of groups.
func (b *cheapestPlace) offer(f *fleet, g *group, devices uint64, loss float32, where hole) {
	if loss > b.least || loss == never {
		return
	}
	if f.scarcity != nil {
		if loss, where = f.total(g, b.Class, devices, loss, where); loss > b.least {
			return
		}
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

// Bounds of a list of fitting groups, and of the machines in these groups, that is cheaper
// to compare than all groups. In a full cluster few machines fit.
const (
	maxNear     = 16
	maxNearness = 64
)

// nearby is a group with a machine that fits.
type nearby struct {
	group   *group
	devices uint64 // bitmap of the device variants that the class may use
}

// near lists the groups of all machines that fit; all is false if they exceed maxNear or
// maxNearness.
func (r *Placer) near(s *Search) (list []nearby, all bool) {
	list, all = r.nearby[:0], true
	machines := 0
	for _, need := range Needs(s.Class) {
		for _, m := range s.Matches() {
			s.visit()
			m.Kind.Walk(need, false, func(n *cluster.Node) bool {
				s.visit()
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

// chooseAmong offers the listed groups.
func (r *Placer) chooseAmong(b *cheapestPlace, near []nearby) {
	f := r.packer.fleet
	row := f.costs[b.Class] // a few costs are computed faster than a row is created
	r.looks += len(near)
	for _, x := range near {
		g := x.group
		if int(g.slot) >= len(row) {
			loss, where := f.price(g, b.Class, x.devices)
			b.offer(f, g, x.devices, loss, where)
			continue
		}
		k := &row[g.slot]
		if k.stamp != g.stamp {
			k.stamp, k.plan = g.stamp, 0
			k.loss, k.hole = f.price(g, b.Class, x.devices)
		}
		b.offer(f, g, x.devices, k.loss, k.hole)
	}
}

// chooseFromAll offers all groups of the kinds that the class may use.
func (r *Placer) chooseFromAll(b *cheapestPlace) {
	f := r.packer.fleet
	row := f.row(b.Class)
	look := func(m cluster.Match, list []listed) {
		r.scanned += len(list)
		r.Visits += 1 + len(list)
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
			// Each plan counts a cost once, whether computed now or kept.
			if k.plan != f.plan {
				k.plan = f.plan
				r.looks++
			}
			b.offer(f, x.group, m.Devices, k.loss, k.hole)
		}
	}
	for _, m := range b.Matches() {
		groups := f.groupsOf(m.Kind)
		look(m, groups.free)
		// Only jobs without GPUs fit on machines without a free device.
		if b.Class.Request.GPUs == 0 {
			look(m, groups.full)
		}
	}
}

// spent reports whether the plan has reached maxLooks.
func (r *Placer) spent() bool {
	return r.looks+r.packer.fleet.uncached+r.scanned/looksPerScan > maxLooks
}

// first returns the first machine of a group, by id, that the member may use; nil if none
// has room. Machines of a group differ only in names, disk and tenants.
func (s *Search) first(g *group) *cluster.Node {
	for i := range g.machines.Len() {
		n, _ := g.machines.At(i)
		if s.Allows(n) && s.Class.Capacity.Fits(n.Free) && s.Class.MayEnter(n) {
			return n
		}
	}
	return nil
}

// any reports whether any machine has room for a member.
func (s *Search) any() bool {
	for _, need := range Needs(s.Class) {
		for _, m := range s.Matches() {
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

// devicesAt returns the devices for one member, as Devices does. For a share it is the
// first device whose free part equals where.
func devicesAt(c *cluster.Class, n *cluster.Node, allowed uint64, where hole) ([]int, bool) {
	if c.Request.GPUs != 1 || c.Request.GPUMilli == cluster.Whole {
		return Devices(c, n, allowed)
	}
	for i, free := range n.FreeMilli {
		if free > 0 && newHole(n.Variants[i], free, n.SharerOf(i)) == where {
			return []int{i}, true
		}
	}
	return nil, false
}
