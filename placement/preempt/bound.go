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
// cost. It outlives plans, only prunes the search for victims, and never changes a plan.
//
// The bounds do not depend on the blocked job, so that one index serves all searches: they
// assume that the job may preempt every candidate. The zero value is empty.
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
	stamp       int           // Occupants.Stamp when the bound was computed; 0: never
	levels      []level       // lowest band first
	tenants     tenantSet     // accounts of the candidates
	by          boundRule     // policy when the bound was computed
	from, until time.Duration // interval of validity, as time since the origin of ages
}

// candidateList holds the preemption candidates of a machine: the occupants that some job
// could preempt.
type candidateList struct {
	plan int      // number of the plan that computed the list
	list []victim // by band, then by cost
}

// boundRule is the part of the policy that a bound depends on.
type boundRule struct {
	order      queue.Order
	bandWidth  int
	minRuntime time.Duration
	sortings   int // Queue.Sortings: each sorting renumbers the accounts
}

// kindBounds holds the bounds of one kind, by place in its roster.
type kindBounds struct {
	kind       *cluster.Kind
	generation int // of the roster
	rule       boundRule
	at         time.Time       // time of the plan that last read the bounds
	freshAt    int             // number of the plan that last read the feed of changes
	entries    []entryBound    // by place
	expire     []time.Duration // end of validity of each entry, since the origin of ages
	renewed    []int32         // places of entries that byCost does not reflect yet
	byCost     cluster.Ranking // machines with candidates, by the bound of the lowest band
}

// of returns the bound of a machine, which may be invalid.
func (x *Index) of(n *cluster.Node) *preemptionBound {
	if n.Index >= len(x.machines) {
		x.machines = append(x.machines, make([]preemptionBound, n.Index+1-len(x.machines))...)
	}
	return &x.machines[n.Index]
}

// candidatesOf returns the candidate list of a machine, which may be of an earlier plan.
func (x *Index) candidatesOf(n *cluster.Node) *candidateList {
	if n.Index >= len(x.candidates) {
		x.candidates = append(x.candidates, make([]candidateList, n.Index+1-len(x.candidates))...)
	}
	return &x.candidates[n.Index]
}

// ofKind returns the bounds of a kind, which may be out of date.
func (x *Index) ofKind(k *cluster.Kind) *kindBounds {
	if k.Index >= len(x.kinds) {
		x.kinds = append(x.kinds, make([]*kindBounds, k.Index+1-len(x.kinds))...)
	}
	if b := x.kinds[k.Index]; b == nil || b.kind != k {
		x.kinds[k.Index] = &kindBounds{kind: k, generation: -1}
	}
	return x.kinds[k.Index]
}

// level bounds preemption among the candidates of one band and all lower bands: the sum of
// the capacity that they occupy, and the least cost. Numbers have 32 bits, so that many
// levels are read quickly.
type level struct {
	band  int32
	all   cluster.Glance
	least float32    // cost of the cheapest candidate, rounded down
	unit  [3]float32 // least cost per thousandth of a core, MiB, and thousandth of a GPU
}

// tenantSet is a bitmap of accounts, by index modulo 256. It may contain other accounts
// with the same index modulo 256, but never misses one; so it is safe for pruning.
type tenantSet [4]uint64

// put adds an account.
func (t *tenantSet) put(account int) { t[account>>6&3] |= 1 << (account & 63) }

// meets reports whether the sets may have a common account.
func (t *tenantSet) meets(o *tenantSet) bool {
	return t[0]&o[0]|t[1]&o[1]|t[2]&o[2]|t[3]&o[3] != 0
}

// boundLasts is the life of a bound. Costs grow with time, so an old bound is still a lower
// bound, but a loose one.
const boundLasts = 4 * time.Minute

// rule returns the part of the present policy that bounds depend on.
func (r *Search) rule() boundRule {
	return boundRule{r.policy.Order, r.policy.BandWidth, r.policy.MinRuntime, r.queue.Sortings}
}

// boundOf returns the bound of a machine. It recomputes the bound if the occupants or the
// policy have changed, or if the bound has expired.
func (r *Search) boundOf(n *cluster.Node) *preemptionBound {
	l := r.index.of(n)
	rule := r.rule()
	if l.stamp == n.On.Stamp && l.by == rule && l.from <= r.Clock && r.Clock < l.until {
		return l
	}
	*l = preemptionBound{stamp: n.On.Stamp, by: rule, from: r.Clock, levels: l.levels[:0]}
	// Machines expire at different times, spread over about 4 minutes, so that no plan
	// recomputes all bounds.
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
			// The bound expires when the next occupant reaches MinRuntime and becomes a
			// candidate.
		} else if t := x.Started + r.policy.MinRuntime; x.Preemptible && t < l.until {
			l.until = t
		}
	}
	r.index.levels = levels
	l.levels = append(l.levels, levels...)
	l.sum()
	return l
}

// isCandidate reports whether some job could preempt the occupant: a preemptible job that
// is not stopping and has run for MinRuntime, or gives way to every other job.
func (r *Search) isCandidate(x *cluster.Occupant) bool {
	return x.Preemptible && (r.Clock-x.Started >= r.policy.MinRuntime || cluster.GivesWay(int(x.Priority)))
}

// costOf returns the cost of preempting an occupant, as cost does for its holder. The
// common case reads no holder.
func (r *Search) costOf(x *cluster.Occupant) float64 {
	if r.policy.Order == queue.SRSF {
		return r.cost(x.Holder)
	}
	return x.Lost(r.Clock).Seconds()
}

// join adds the occupant to the level of its band, and inserts the level if necessary. Sums
// over bands follow later; see sum.
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

// sum adds to each level the capacity of all lower levels, and takes the least of their
// costs.
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

// entryBound is a compact bound of one machine in the list of its kind, which searches read
// instead of the levels. Amounts and costs have 32 bits, so that many entries are read
// quickly; costs are rounded down.
type entryBound struct {
	most  cluster.Glance // free capacity, plus all that the candidates occupy
	room  cluster.Glance // free capacity
	low   cluster.Glance // capacity that the candidates of the lowest band occupy
	band  int32          // lowest band of a candidate; noBand: no candidate
	next  int32          // next higher band of a candidate; noBand: none
	least float32        // cost of the cheapest candidate of the lowest band
	unit  [3]float32     // least cost per unit of that band; see level
	moved bool           // the ranking does not reflect this entry yet
}

// noBand is above all bands.
const noBand = math.MaxInt32

// refreshBound recomputes one machine's entry in the index.
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
	// This plan has changed the machine's free capacity and will restore it: the next plan
	// must recompute the entry.
	if n.Touched == r.Number {
		n.OutdateFor(cluster.BoundFeed)
	}
	b.expire[n.Place] = l.until
}

// bounds returns the bounds of a kind. It recomputes all entries if the roster or the
// policy has changed, or if the clock went back. Otherwise, once per plan, it recomputes
// the entries of the machines that have changed before this plan's first call, and the
// expired ones. The searches of a plan do not read the entries of machines that the plan
// has changed since; see prospect.
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

// rankBounds moves the recomputed entries to their new places in the ranking.
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

// floor32 rounds a cost down to 32 bits. The margin of a millionth exceeds the rounding
// errors of later products, so that the result stays a lower bound.
func floor32(x float64) float32 { return float32(x * (1 - 1e-6)) }

// bound is a lower bound of a set of victims: their highest band, then their cost.
type bound struct {
	band int
	cost float64
}

// worst is above every bound.
var worst = bound{math.MaxInt, math.Inf(1)}

// less orders by band, then by cost.
func (b bound) less(o bound) bool { return b.band < o.band || b.band == o.band && b.cost < o.cost }

// prospect is a machine that may have victims, with a lower bound of their cost.
type prospect struct {
	match, place int32 // index in Class.Matches, and place in the roster of that kind
	band         int32
	cost         float32
	rough        bool // lowerBound would give a tighter bound
}

// bound returns the lower bound of the prospect.
func (p *prospect) bound() bound { return bound{int(p.band), float64(p.cost)} }

// available returns the capacity of a machine that a victim search may count on: free
// capacity and, while overlaid is set, capacity that stopping jobs release. Held capacity
// is not part of it: see choose.
func (r *Search) available(n *cluster.Node) berth.Capacity {
	room := n.Free
	if r.overlaid {
		for _, g := range r.releasedOn(n) {
			room = room.Add(g.Capacity)
		}
	}
	return room
}

// cost returns a lower bound of the cost of candidates of the lowest band that free enough
// capacity for want. room is the capacity that is available without preemption.
func (x *entryBound) cost(want, room cluster.Glance) float32 {
	return costs(x.least, &x.unit, want, room)
}

// costs returns a lower bound of the cost of victims that free the shortage between want
// and room. The victims cost at least as much as the cheapest candidate (least), and at
// least the shortage of each resource times its least cost per unit.
func costs(least float32, unit *[3]float32, want, room cluster.Glance) float32 {
	for j, lack := range [3]int64{int64(want.CPU) - int64(room.CPU), int64(want.Memory) - int64(room.Memory),
		int64(want.GPU) - int64(room.GPU)} {
		if lack > 0 {
			least = max(least, float32(lack)*unit[j])
		}
	}
	return least
}

// lowerBound sets the bound of a prospect from the levels of its machine: from the lowest
// band that, with all lower bands, frees enough for want. It returns false if all
// candidates together do not.
func (r *Search) lowerBound(n *cluster.Node, want cluster.Glance, p *prospect) bool {
	free := n.Free
	if n.Touched == r.Number { // otherwise nothing is released there
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

// costKey returns a key that orders by band, then by cost: the bits of a non-negative float
// order as the float does.
func costKey(band int32, cost float32) uint64 {
	return uint64(uint32(band)^1<<31)<<32 | uint64(math.Float32bits(max(0, cost)))
}

// keyBound is the inverse of costKey.
func keyBound(key uint64) bound {
	return bound{int(int32(uint32(key>>32) ^ 1<<31)), float64(math.Float32frombits(uint32(key)))}
}
