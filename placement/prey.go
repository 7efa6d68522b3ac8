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
	levels      []level // by band
	tenants     tenantSet
	known       bool
	by          lureRule
	from, until time.Duration // from the origin of ages: it holds for
}

// lureRule is what a lure rests on besides the holders.
type lureRule struct {
	order      Order
	bandWidth  int
	minRuntime time.Duration
	sortings   int // accounts are numbered anew with each
}

// level is what those of a band and all lower ones bring together. Like prey it
// is told shortly.
type level struct {
	band  int32
	all   glance
	least float32    // cost of the cheapest
	unit  [3]float32 // least cost of a unit of CPU, memory and GPU
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
	if l.known && l.by == rule && l.from <= r.clock && r.clock < l.until {
		return l
	}
	*l = lure{known: true, by: rule, from: r.clock, levels: l.levels[:0]}
	l.until = r.clock + lureLasts + time.Duration(n.leaf.weight%64)*4*time.Second // not all at once
	if r.policy.Order == SRSF {
		l.until = r.clock // ranks may fall as well
	}
	levels := r.levels[:0]
	for i := range n.on.list {
		x := &n.on.list[i]
		if x.ripe(r) {
			l.tenants.put(x.tally.account)
			levels = x.join(levels, r.policy.band(int(x.priority)), x.price(r))
		} else if t := x.started + r.policy.MinRuntime; x.bait && t < l.until {
			l.until = t
		}
	}
	r.levels = levels
	l.levels = append(l.levels, levels...)
	l.sum()
	return l
}

// join adds the holder to the level of its band.
func (x *stint) join(levels []level, band int, cost float64) []level {
	told, i := min(short(int64(band)), noBand-1), 0
	for i < len(levels) && levels[i].band < told {
		i++
	}
	if i == len(levels) || levels[i].band != told {
		none := float32(math.Inf(1))
		levels = slices.Insert(levels, i, level{band: told, least: none, unit: [3]float32{none, none, none}})
	}
	l := &levels[i]
	l.all = l.all.plus(glanceOf(x.gives))
	l.least = min(l.least, floor32(cost))
	for j, amount := range [3]int64{x.gives.CPUMilli, x.gives.MemoryMiB, x.gives.GPUMilli} {
		if amount > 0 {
			l.unit[j] = min(l.unit[j], floor32(cost/float64(amount)))
		}
	}
	return levels
}

// sum adds to each level those below it.
func (l *lure) sum() {
	for i := 1; i < len(l.levels); i++ {
		x, below := &l.levels[i], &l.levels[i-1]
		x.all = x.all.plus(below.all)
		x.least = min(x.least, below.least)
		for j := range x.unit {
			x.unit[j] = min(x.unit[j], below.unit[j])
		}
	}
}

// prey is a machine as claims see it at a glance, in a list of its kind. Amounts
// and costs are short, so that many are read quickly: costs are rounded down.
type prey struct {
	plan  int     // in which something of the machine has changed since
	most  glance  // room, with all that anybody on it would give up
	room  glance  // free
	low   glance  // what those of the lowest band bring
	band  int32   // that band; noBand: nobody on it could be displaced
	next  int32   // the band above; noBand: there is none
	least float32 // cost of the cheapest of the lowest band
	unit  [3]float32
	moved bool // the ranking of the herd does not go by this yet
}

// noBand is above all bands.
const noBand = math.MaxInt32

// smell makes the entry of a machine.
func (r *run) smell(n *node) {
	l, x := r.lure(n), n.prey
	h := &n.listed.herd
	if !x.moved {
		h.smelled = append(h.smelled, int32(n.place))
	}
	*x = prey{room: glanceOf(n.free), band: noBand, next: noBand, moved: true}
	if last := len(l.levels) - 1; last >= 0 {
		low := &l.levels[0]
		x.most, x.low = x.room.plus(l.levels[last].all), low.all
		x.band, x.least, x.unit = low.band, low.least, low.unit
		if last > 0 {
			x.next = l.levels[1].band
		}
	}
	if n.touched == r.number {
		x.plan = r.number
		n.outdate()
	}
	h.expire[n.place] = l.until
}

// floor32 is a cost rounded down, by more than what products of it are rounded.
func floor32(x float64) float32 { return float32(x * (1 - 1e-6)) }

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
	match, place int32 // of the class's kinds, and in the list of that
	band         int32
	cost         float32
	rough        bool // run.bound tells more
}

func (p *prospect) bound() bound { return bound{int(p.band), float64(p.cost)} }

// clearing is what claims find free on a machine: what is held for reservations
// included, and what those that stop leave behind if machines are looked at so.
func (r *run) clearing(n *node) berth.Capacity {
	room := n.free.Add(n.keptRoom())
	if r.overlaid {
		room = room.Add(n.leftBehind())
	}
	return room
}

// cost is below what victims of the lowest band cost that make room for so much.
func (x *prey) cost(want, room glance) float32 { return costs(x.least, &x.unit, want, room) }

// costs is below what those cost that make room for so much, by what they cost at
// least and by what a unit of theirs does.
func costs(least float32, unit *[3]float32, want, room glance) float32 {
	for j, lack := range [3]int64{int64(want.cpu) - int64(room.cpu), int64(want.memory) - int64(room.memory), int64(want.gpu) - int64(room.gpu)} {
		if lack > 0 {
			least = max(least, float32(lack)*unit[j])
		}
	}
	return least
}

// bound works out below what victims on a machine are that make room for so
// much; false if all of them together do not.
func (r *run) bound(n *node, want glance, p *prospect) bool {
	free := n.free
	if n.touched == r.number { // else nothing is held or left behind
		free = r.clearing(n)
	}
	room := glanceOf(free)
	for i := range n.lure.levels {
		if l := &n.lure.levels[i]; want.within(room.plus(l.all)) {
			p.band, p.cost, p.rough = l.band, costs(l.least, &l.unit, want, room), false
			return true
		}
	}
	return false
}
