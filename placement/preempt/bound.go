package preempt

import (
	"math"
	"slices"
	"time"

	"berth"
	"berth/placement/cluster"
	"berth/placement/queue"
)

// Index caches, per machine, the most capacity that preemption could free and the least
// that it would cost. It outlives plans, prunes the search for victims and never changes
// a plan. The zero value is empty.
type Index struct {
	machines   []preemptionBound // by Node.Index
	candidates []candidateList   // by Node.Index
	kinds      []*kindBounds     // by Kind.Index
	changed    []*cluster.Node   // buffers
	ranks      []cluster.Standing
	levels     []level
}

// preemptionBound is the bound of one machine, by band.
type preemptionBound struct {
	stamp       int     // of the occupants; 0: not computed
	levels      []level // by band
	tenants     tenantSet
	by          boundRule
	from, until time.Duration // the bound is valid from one to the other, since origin
}

// candidateList is the occupants of a machine that some job could displace.
type candidateList struct {
	plan int
	list []victim // by band, by cost
}

// boundRule is the part of the policy that a bound depends on.
type boundRule struct {
	order      queue.Order
	bandWidth  int
	minRuntime time.Duration
	sortings   int // a sorting numbers the accounts again
}

// kindBounds is the bounds of one kind, by place in its roster.
type kindBounds struct {
	kind       *cluster.Kind
	generation int
	rule       boundRule
	at         time.Time       // of the plan that asked last
	freshAt    int             // the plan that read the feed
	entries    []entryBound    // by place
	expire     []time.Duration // of entries, since origin
	renewed    []int32         // places of entries that the ranking does not go by yet
	byCost     cluster.Ranking // of machines with a candidate
}

// of returns the bound of a machine, valid or not.
func (x *Index) of(n *cluster.Node) *preemptionBound {
	if n.Index >= len(x.machines) {
		x.machines = append(x.machines, make([]preemptionBound, n.Index+1-len(x.machines))...)
	}
	return &x.machines[n.Index]
}

// candidatesOf returns the entry for the candidates of a machine.
func (x *Index) candidatesOf(n *cluster.Node) *candidateList {
	if n.Index >= len(x.candidates) {
		x.candidates = append(x.candidates, make([]candidateList, n.Index+1-len(x.candidates))...)
	}
	return &x.candidates[n.Index]
}

// ofKind returns the bounds of a kind.
func (x *Index) ofKind(k *cluster.Kind) *kindBounds {
	if k.Index >= len(x.kinds) {
		x.kinds = append(x.kinds, make([]*kindBounds, k.Index+1-len(x.kinds))...)
	}
	if b := x.kinds[k.Index]; b == nil || b.kind != k {
		x.kinds[k.Index] = &kindBounds{kind: k, generation: -1}
	}
	return x.kinds[k.Index]
}

// level is the capacity that the candidates of one band and all lower ones occupy
// together, and the least that displacing some of them costs. Numbers are short,
// so that many levels are read quickly.
type level struct {
	band  int32
	all   cluster.Glance
	least float32    // cost of the cheapest candidate
	unit  [3]float32 // least cost of a unit of CPU, memory and GPU
}

// tenantSet is a superset of the accounts that were put into it.
type tenantSet [4]uint64

func (t *tenantSet) put(account int) { t[account>>6&3] |= 1 << (account & 63) }

func (t *tenantSet) meets(o *tenantSet) bool {
	return t[0]&o[0]|t[1]&o[1]|t[2]&o[2]|t[3]&o[3] != 0
}

// boundLasts is the life of a bound. Costs grow with time, so that an old bound is
// still a lower one, but a poor one.
const boundLasts = 4 * time.Minute

// rule is the part of the policy that bounds depend on now.
func (r *Search) rule() boundRule {
	return boundRule{r.policy.Order, r.policy.BandWidth, r.policy.MinRuntime, r.queue.Sortings}
}

// boundOf returns the bound of a machine, and computes it if its occupants have
// changed or it is too old.
func (r *Search) boundOf(n *cluster.Node) *preemptionBound {
	l := r.index.of(n)
	rule := r.rule()
	if l.stamp == n.On.Stamp && l.by == rule && l.from <= r.Clock && r.Clock < l.until {
		return l
	}
	*l = preemptionBound{stamp: n.On.Stamp, by: rule, from: r.Clock, levels: l.levels[:0]}
	// Machines expire at different times, so that no plan renews all.
	l.until = r.Clock + boundLasts + time.Duration(n.Leaf.Weight%64)*4*time.Second
	if r.policy.Order == queue.SRSF {
		l.until = r.Clock // ranks may also fall
	}
	levels := r.index.levels[:0]
	for i := range n.On.List {
		x := &n.On.List[i]
		if r.isCandidate(x) {
			l.tenants.put(x.Owner.Account)
			levels = join(x, levels, r.policy.Band(int(x.Priority)), r.costOf(x))
		} else if t := x.Started + r.policy.MinRuntime; x.Preemptible && t < l.until {
			l.until = t
		}
	}
	r.index.levels = levels
	l.levels = append(l.levels, levels...)
	l.sum()
	return l
}

// isCandidate reports whether any job may displace the occupant.
func (r *Search) isCandidate(x *cluster.Occupant) bool {
	return x.Preemptible && r.Clock-x.Started >= r.policy.MinRuntime
}

// costOf is the cost of displacing an occupant; see cost.
func (r *Search) costOf(x *cluster.Occupant) float64 {
	if r.policy.Order == queue.SRSF {
		return r.cost(x.Holder)
	}
	return x.Lost(r.Clock).Seconds()
}

// join adds the occupant to the level of its band.
func join(x *cluster.Occupant, levels []level, band int, cost float64) []level {
	short, i := min(cluster.Short(int64(band)), noBand-1), 0
	for i < len(levels) && levels[i].band < short {
		i++
	}
	if i == len(levels) || levels[i].band != short {
		none := float32(math.Inf(1))
		levels = slices.Insert(levels, i, level{band: short, least: none, unit: [3]float32{none, none, none}})
	}
	l := &levels[i]
	l.all = l.all.Plus(cluster.GlanceOf(x.Frees))
	l.least = min(l.least, floor32(cost))
	for j, amount := range [3]int64{x.Frees.CPUMilli, x.Frees.MemoryMiB, x.Frees.GPUMilli} {
		if amount > 0 {
			l.unit[j] = min(l.unit[j], floor32(cost/float64(amount)))
		}
	}
	return levels
}

// sum adds to each level those below it.
func (l *preemptionBound) sum() {
	for i := 1; i < len(l.levels); i++ {
		x, below := &l.levels[i], &l.levels[i-1]
		x.all = x.all.Plus(below.all)
		x.least = min(x.least, below.least)
		for j := range x.unit {
			x.unit[j] = min(x.unit[j], below.unit[j])
		}
	}
}

// entryBound is the bound of one machine as searches read it, in a list of its
// kind. Amounts and costs are short, so that many are read quickly; costs are
// rounded down.
type entryBound struct {
	most  cluster.Glance // free capacity, with all that the candidates would free
	room  cluster.Glance // free capacity
	low   cluster.Glance // capacity that the candidates of the lowest band would free
	band  int32          // that band; noBand: there is no candidate
	next  int32          // the band above; noBand: there is none
	least float32        // cost of the cheapest candidate of the lowest band
	unit  [3]float32
	moved bool // the ranking does not go by this yet
}

// noBand is above all bands.
const noBand = math.MaxInt32

// refreshBound recomputes the entry of one machine.
func (r *Search) refreshBound(b *kindBounds, n *cluster.Node) {
	l, x := r.boundOf(n), &b.entries[n.Place]
	if !x.moved {
		b.renewed = append(b.renewed, int32(n.Place))
	}
	*x = entryBound{room: cluster.GlanceOf(n.Free), band: noBand, next: noBand, moved: true}
	if last := len(l.levels) - 1; last >= 0 {
		low := &l.levels[0]
		x.most, x.low = x.room.Plus(l.levels[last].all), low.all
		x.band, x.least, x.unit = low.band, low.least, low.unit
		if last > 0 {
			x.next = l.levels[1].band
		}
	}
	if n.Touched == r.Number {
		n.OutdateFor(cluster.BoundFeed)
	}
	b.expire[n.Place] = l.until
}

// bounds lists the machines of a kind for the search of victims.
func (r *Search) bounds(k *cluster.Kind) *kindBounds {
	k.Refresh(r.Number)
	b, rule := r.index.ofKind(k), r.rule()
	switch {
	case b.generation != k.Generation, b.rule != rule, r.Now.Before(b.at):
		r.index.changed = k.Changes(cluster.BoundFeed, r.index.changed)
		b.generation, b.rule, b.freshAt = k.Generation, rule, r.Number
		b.entries = slices.Grow(b.entries[:0], len(k.Members))[:len(k.Members)]
		b.expire = slices.Grow(b.expire[:0], len(k.Members))[:len(k.Members)]
		b.renewed, b.byCost = b.renewed[:0], b.byCost[:0]
		clear(b.entries)
		for _, n := range k.Members {
			r.refreshBound(b, n)
		}
	case b.freshAt != r.Number:
		b.freshAt = r.Number
		r.index.changed = k.Changes(cluster.BoundFeed, r.index.changed)
		for _, n := range r.index.changed {
			r.refreshBound(b, n)
		}
		if b.at.Equal(r.Now) {
			break
		}
		for i, t := range b.expire {
			if t <= r.Clock {
				r.refreshBound(b, k.Members[i])
			}
		}
	}
	b.at = r.Now
	r.rankBounds(b)
	return b
}

// rankBounds puts the entries that were renewed into the ranking.
func (r *Search) rankBounds(b *kindBounds) {
	if len(b.renewed) == 0 {
		return
	}
	fresh := r.index.ranks[:0]
	for _, i := range b.renewed {
		if x := &b.entries[i]; x.band != noBand {
			fresh = append(fresh, cluster.Standing{Key: costKey(x.band, x.least), Place: i})
		}
	}
	b.byCost.Renew(fresh, func(i int32) bool { return !b.entries[i].moved })
	for _, i := range b.renewed {
		b.entries[i].moved = false
	}
	b.renewed, r.index.ranks = b.renewed[:0], fresh
}

// floor32 is a cost rounded down, by more than what products of it are rounded.
func floor32(x float64) float32 { return float32(x * (1 - 1e-6)) }

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
	rough        bool // lowerBound is closer
}

func (p *prospect) bound() bound { return bound{int(p.band), float64(p.cost)} }

// available is the capacity that a victim search may count on: free, held for
// reservations, and released by jobs that stop while released is set.
func (r *Search) available(n *cluster.Node) berth.Capacity {
	room := r.ledger.WithHeld(n)
	if r.overlaid {
		for _, g := range r.releasedOn(n) {
			room = room.Add(g.Capacity)
		}
	}
	return room
}

// cost is a lower bound of the cost of candidates of the lowest band that free as
// much as is wanted.
func (x *entryBound) cost(want, room cluster.Glance) float32 {
	return costs(x.least, &x.unit, want, room)
}

// costs is below what those cost that make room for so much, by what they cost at
// least and by what a unit of theirs does.
func costs(least float32, unit *[3]float32, want, room cluster.Glance) float32 {
	for j, lack := range [3]int64{int64(want.CPU) - int64(room.CPU), int64(want.Memory) - int64(room.Memory),
		int64(want.GPU) - int64(room.GPU)} {
		if lack > 0 {
			least = max(least, float32(lack)*unit[j])
		}
	}
	return least
}

// lowerBound computes a lower bound of the victims on a machine that free as much
// as is wanted; false if all candidates together do not.
func (r *Search) lowerBound(n *cluster.Node, want cluster.Glance, p *prospect) bool {
	free := n.Free
	if n.Touched == r.Number { // otherwise nothing is held or released there
		free = r.available(n)
	}
	room := cluster.GlanceOf(free)
	levels := r.index.of(n).levels
	for i := range levels {
		if l := &levels[i]; want.Within(room.Plus(l.all)) {
			p.band, p.cost, p.rough = l.band, costs(l.least, &l.unit, want, room), false
			return true
		}
	}
	return false
}

// costKey orders by band, then by cost.
func costKey(band int32, cost float32) uint64 {
	return uint64(uint32(band)^1<<31)<<32 | uint64(math.Float32bits(max(0, cost)))
}

// keyBound is the band and the cost that a key was made of.
func keyBound(key uint64) bound {
	return bound{int(int32(uint32(key>>32) ^ 1<<31)), float64(math.Float32frombits(uint32(key)))}
}
