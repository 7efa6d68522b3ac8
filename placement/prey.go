package placement

import (
	"math"
	"slices"
	"time"

	"berth"
)

// lure is what displacing those on a machine would bring and cost at least. It
// outlasts the plan, so that a claim looks at few machines closely; it makes
// plans faster and never different.
type lure struct {
	known       bool
	by          lureRule
	from, until time.Time // it holds for
	levels      []level   // by band
	tenants     tenantSet
}

// lureRule is what a lure rests on besides the holders.
type lureRule struct {
	order      Order
	bandWidth  int
	minRuntime time.Duration
	sortings   int // accounts are numbered anew with each
}

// level is what those of a band and all lower ones bring together.
type level struct {
	band  int
	all   berth.Capacity
	least float64    // cost of the cheapest
	unit  [3]float64 // least cost of a unit of CPU, memory and GPU
}

// tenantSet has, at least, those that were put into it, by their accounts.
type tenantSet [4]uint64

func (t *tenantSet) put(a *account) { t[a.index>>6&3] |= 1 << (a.index & 63) }

func (t *tenantSet) meets(o *tenantSet) bool {
	return t[0]&o[0]|t[1]&o[1]|t[2]&o[2]|t[3]&o[3] != 0
}

// Costs grow as time goes by, so that a lure goes on bounding them from below.
// After a while the bound is a poor one.
const lureLasts = 4 * time.Minute

// lure of a machine, worked out when who holds room of it has changed.
func (r *run) lure(n *node) *lure {
	l := &n.lure
	rule := lureRule{r.policy.Order, r.policy.BandWidth, r.policy.MinRuntime, r.snapshot.sortings}
	if l.known && l.by == rule && !r.now.Before(l.from) && r.now.Before(l.until) {
		return l
	}
	*l = lure{known: true, by: rule, from: r.now, levels: l.levels[:0]}
	l.until = r.now.Add(lureLasts + time.Duration(n.leaf.weight%64)*4*time.Second) // not all at once
	if r.policy.Order == SRSF {
		l.until = r.now // ranks may fall as well
	}
	for _, h := range r.snapshot.on[n.ID] {
		if r.ripe(h) {
			l.put(n, h, r.policy.band(h.Priority), r.price(h))
		} else if t := h.StartedAt.Add(r.policy.MinRuntime); h.Preemptible && !h.Stopping && t.Before(l.until) {
			l.until = t
		}
	}
	l.sum()
	return l
}

// put adds a holder to the level of its band; sum has to follow.
func (l *lure) put(n *node, h *holder, band int, cost float64) {
	l.tenants.put(h.account)
	i, found := slices.BinarySearchFunc(l.levels, band, func(x level, band int) int { return x.band - band })
	if !found {
		l.levels = slices.Insert(l.levels, i, level{band: band, least: math.Inf(1), unit: [3]float64{math.Inf(1), math.Inf(1), math.Inf(1)}})
	}
	x := &l.levels[i]
	var local berth.Capacity
	for j := range h.Ranks {
		if h.Ranks[j].Machine == n.ID {
			local = local.Add(h.Ranks[j].Capacity)
		}
	}
	x.all = x.all.Add(local)
	x.least = min(x.least, cost)
	for j, amount := range [3]int64{local.CPUMilli, local.MemoryMiB, local.GPUMilli} {
		if amount > 0 {
			x.unit[j] = min(x.unit[j], cost/float64(amount))
		}
	}
}

// sum adds to each level those below it.
func (l *lure) sum() {
	for i := 1; i < len(l.levels); i++ {
		x, below := &l.levels[i], &l.levels[i-1]
		x.all = x.all.Add(below.all)
		x.least = min(x.least, below.least)
		for j := range x.unit {
			x.unit[j] = min(x.unit[j], below.unit[j])
		}
	}
}

// prey is a machine as claims see it at a glance, in a list of its kind.
type prey struct {
	node    *node
	room    berth.Capacity // free, what is held for reservations included
	low     level          // the first
	levels  []level
	tenants tenantSet
	plan    int // in which something of the machine has changed since
}

// prey lists the machines of a kind on which somebody could be displaced.
func (r *run) prey(k *kind) []prey {
	if k.preyAt == r.number {
		return k.prey
	}
	k.prey, k.preyAt = k.prey[:0], r.number
	for _, n := range k.all(r.number) {
		l := r.lure(n)
		if len(l.levels) == 0 {
			n.prey = nil
			continue
		}
		x := prey{node: n, room: n.free.Add(n.keptRoom()), low: l.levels[0], levels: l.levels, tenants: l.tenants}
		if n.touched == r.number {
			x.plan = r.number
		}
		k.prey = append(k.prey, x)
	}
	for i := range k.prey {
		k.prey[i].node.prey = &k.prey[i]
	}
	return k.prey
}

// keptRoom is what of the machine is free and held for reservations.
func (n *node) keptRoom() berth.Capacity {
	if n.kept == nil {
		return berth.Capacity{}
	}
	return n.kept.held.Capacity
}

// bound is below what sets of victims are like: its highest band, then its cost.
type bound struct {
	band int
	cost float64
}

// worst is above every bound.
var worst = bound{math.MaxInt, math.Inf(1)}

func (b bound) less(o bound) bool { return b.band < o.band || b.band == o.band && b.cost < o.cost }

// prospect is a machine on which victims may be found, none below the bound.
type prospect struct {
	prey    *prey
	devices uint64
	bound   bound
}

// prospects lists the machines where the present claim may find victims that
// make room for one of the class; first is where the bound is least, -1 if there
// are none.
func (r *run) prospects(c *class) (list []prospect, first int) {
	list, first = r.found[:0], -1
	low := worst
	t := &r.aim
	for _, m := range c.matches {
		all := r.prey(m.kind)
		for i := range all {
			x := &all[i]
			if x.low.band > t.band && !t.borrowers || x.low.band >= t.band && !x.tenants.meets(&t.peers) {
				continue
			}
			room := x.room
			if x.plan == r.number {
				room = x.node.free.Add(x.node.keptRoom())
			}
			b, ok := x.bound(c.capacity, room)
			if !ok {
				continue
			}
			if b.less(low) {
				low, first = b, len(list)
			}
			list = append(list, prospect{x, m.devices, b})
		}
	}
	r.found = list
	return list, first
}

// bound is below whatever victims make room for so much; ok is false if all of
// them together do not.
func (x *prey) bound(want, room berth.Capacity) (b bound, ok bool) {
	l := &x.low
	for i := 1; !want.Fits(room.Add(l.all)); i++ {
		if i >= len(x.levels) {
			return b, false
		}
		l = &x.levels[i]
	}
	cost := l.least
	for j, lack := range [3]int64{want.CPUMilli - room.CPUMilli, want.MemoryMiB - room.MemoryMiB, want.GPUMilli - room.GPUMilli} {
		if lack > 0 {
			cost = max(cost, float64(lack)*l.unit[j])
		}
	}
	return bound{l.band, cost * (1 - 1e-9)}, true // sums are rounded
}
