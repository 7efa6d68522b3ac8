package preempt

import (
	"cmp"
	"math"
	"slices"

	"berth"
	"berth/placement/backfill"
	"berth/placement/cluster"
	"berth/placement/fit"
)

// victim is a holder that may be preempted, with the reason and the cost; see Search.cost.
type victim struct {
	*cluster.Holder
	why  Reason
	band int
	cost float64
}

// candidates returns the preemption candidates of a machine, by band, cost and id. The list
// is computed once per plan.
func (r *Search) candidates(n *cluster.Node) []victim {
	b := r.index.candidatesOf(n)
	if b.plan == r.Number {
		return b.list
	}
	b.plan, b.list = r.Number, b.list[:0]
	for i := range n.On.List {
		if x := &n.On.List[i]; r.isCandidate(x) {
			b.list = append(b.list, victim{Holder: x.Holder, band: r.policy.Band(int(x.Priority)),
				cost: r.cost(x.Holder)})
		}
	}
	slices.SortFunc(b.list, func(x, y victim) int {
		return cmp.Or(cmp.Compare(x.band, y.band), cmp.Compare(x.cost, y.cost), cluster.CompareIDs(x.Job, y.Job))
	})
	return b.list
}

// victimSearch is the search for the machine on which room for one more member costs least.
type victimSearch struct {
	fit.Search
	run   *Search
	spare *displacement  // its victims stop already, and are not counted again
	want  cluster.Glance // request of the member

	band, highest int32 // of the blocked job, and of any victim that it may preempt

	where *cluster.Node // best machine so far; nil: none
	best  []victim      // its victims
	found bound         // bound of best
}

// cheapestVictims finds the machine on which room for one more member costs least, and
// returns its victims; false if no machine has enough.
//
// The search is branch and bound over rankings by a lower bound that does not depend on the
// job. First it lists the prospects up to the least certain bound and tries the best of
// them, so that a good solution prunes the others. Then it reads on in each ranking until
// the bound alone rules out the rest.
func (r *Search) cheapestVictims(c *cluster.Class, group string, s *displacement) ([]victim, bool) {
	h := victimSearch{Search: r.placer.SearchFor(c, group), run: r, spare: s, want: cluster.GlanceOf(c.Capacity),
		best: r.best[:0], found: worst}
	h.band = min(cluster.Short(int64(r.rights.band)), noBand-1)
	h.highest = h.band
	if r.rights.borrowers {
		h.highest = noBand - 1
	}
	list, first := h.prospects()
	if first >= 0 {
		h.try(&list[first])
	}
	for i := range list {
		if i != first {
			h.try(&list[i])
		}
	}
	for j, m := range h.Matches() {
		b := r.bounds(m.Kind)
		touched := m.Kind.TouchedBy(r.Number)
		for _, x := range b.byCost[r.passed[j]:] {
			if h.found.less(keyBound(x.Key)) {
				break
			}
			if p, ok := h.prospect(int32(j), x.Place, b, touched, h.found); ok {
				h.try(&p)
			}
		}
	}
	r.best = h.best
	return slices.Clone(h.best), h.where != nil
}

// prospects returns the machines that may have victims, in each ranking up to the least
// bound found so far. first is the index of the prospect with that bound; -1 if there is
// none. prospects sets Search.passed to the length of each ranking that was read.
func (h *victimSearch) prospects() (list []prospect, first int) {
	r := h.run
	list, first = r.found[:0], -1
	r.passed = r.passed[:0]
	low := worst
	for j, m := range h.Matches() {
		b, i := r.bounds(m.Kind), 0
		touched := m.Kind.TouchedBy(r.Number)
		for ; i < len(b.byCost); i++ {
			x := b.byCost[i]
			if low.less(keyBound(x.Key)) {
				break
			}
			p, ok := h.prospect(int32(j), x.Place, b, touched, low)
			if !ok {
				continue
			}
			if b := p.bound(); !p.rough && b.less(low) {
				low, first = b, len(list)
			}
			list = append(list, p)
		}
		r.passed = append(r.passed, i)
	}
	r.found = list
	return list, first
}

// prospect returns a machine with its bound; ok is false if victims on the machine cannot
// be enough or are not allowed. Where even a rough bound is no less than low, prospect
// saves the computation of a tighter one.
func (h *victimSearch) prospect(
	match, place int32, b *kindBounds, touched cluster.Bitset, low bound,
) (p prospect, ok bool) {
	r, x, isTouched := h.run, &b.entries[place], touched.Has(int(place))
	if x.band > h.highest || !isTouched && !h.want.Within(x.most) {
		return p, false
	}
	n := b.kind.Members[place]
	// Victims in the job's own band or above require a right over their tenant.
	if x.band >= h.band && !r.index.of(n).tenants.meets(&r.rights.peers) {
		return p, false
	}
	p = prospect{match: match, place: place, band: x.band}
	room := x.room
	// The entry does not reflect changes by this plan.
	if isTouched {
		room = cluster.GlanceOf(r.available(n))
	}
	if h.want.Within(room.Plus(x.low)) {
		p.cost = x.cost(h.want, room)
		return p, true
	}
	p.band, p.rough = x.next, true
	if p.band == noBand || p.band > h.highest {
		return p, false
	}
	return p, low.less(p.bound()) || r.lowerBound(n, h.want, &p)
}

// try searches the victims on one machine, unless its bound rules the machine out, and
// keeps the best. Machines with equal victims are ordered by id, so that the result does
// not depend on the order of the search.
func (h *victimSearch) try(p *prospect) {
	r, m := h.run, &h.Matches()[p.match]
	n := m.Kind.Members[p.place]
	if h.found.less(p.bound()) || p.rough && (!r.lowerBound(n, h.want, p) || h.found.less(p.bound())) || !h.Allows(n) {
		return
	}
	list := r.victimsOn(n, m.Devices, h.Class, h.spare, h.found.band)
	if list == nil {
		return
	}
	if d := compareVictims(list, h.best); h.where == nil || d < 0 || d == 0 && n.ID < h.where.ID {
		h.best, h.where = append(h.best[:0], list...), n
		h.found.band, h.found.cost = weighVictims(list)
	}
}

// compareVictims orders sets of victims: by their highest band, their cost, and their
// number.
func compareVictims(a, b []victim) int {
	ba, ca := weighVictims(a)
	bb, cb := weighVictims(b)
	return cmp.Or(cmp.Compare(ba, bb), cmp.Compare(ca, cb), cmp.Compare(len(a), len(b)))
}

// weighVictims returns the highest band and the total cost of a set of victims.
func weighVictims(list []victim) (band int, cost float64) {
	band = math.MinInt
	for _, v := range list {
		band, cost = max(band, v.band), cost+v.cost
	}
	return band, cost
}

// victimsOn returns the cheapest victims on one machine that make room for a member. It
// takes candidates by band and cost until the member fits, then spares the unnecessary
// ones. The result is nil if all allowed candidates together do not free enough, or only
// with one of a band above highest. On a machine of a reserved start only jobs that give
// way are allowed, see leavesBefore. The list is valid until the next call.
func (r *Search) victimsOn(n *cluster.Node, allowed uint64, c *cluster.Class, s *displacement, highest int) []victim {
	firm := r.ledger.IsFirm(n)
	if firm && !leavesBefore(r, n) {
		return nil
	}
	draft := r.ledger.Sketch(n) // without held capacity, which the job may not use: see choose
	if r.overlaid && !firm {
		draft.AddAll(r.releasedOn(n))
	}
	list := r.picked[:0]
	defer func() { r.picked = list[:0] }()
	for _, v := range r.candidates(n) {
		if v.band > highest {
			return nil // the rest of the candidates are of no lower band
		}
		if slices.ContainsFunc(s.victims, func(o victim) bool { return o.Holder == v.Holder }) {
			continue
		}
		why, ok := r.may(v)
		if !ok || firm && !cluster.GivesWay(v.Priority) || r.dependedOn(v.Holder) {
			continue
		}
		v.why = why
		list = append(list, v)
		for i := range v.Ranks {
			if v.Ranks[i].Machine == n.ID {
				draft.Add(v.Ranks[i])
			}
		}
		if fit.Fits(c, draft, allowed) {
			list = spareVictims(draft, c, allowed, list)
			return list
		}
	}
	return nil
}

// leavesBefore reports whether the blocked job leaves a machine before the first reserved start there, even if the job
// starts as late as its nominations allow. Such a start counts on jobs that give way as ended, so the blocked job may
// take their capacity until then. It may not take the capacity of other jobs: the start relies on their ends.
func leavesBefore(r *Search, n *cluster.Node) bool {
	list := r.reservations.On(n)
	i := slices.IndexFunc(list, func(x backfill.Reservation) bool { return x.Firm })
	if i < 0 {
		return true
	}
	e, at := r.rights.entry, list[i].At
	return e.TimeLimit > 0 && !r.placer.Over.After(at) && !r.reservations.Leaves(r.placer.Latest, e).After(at)
}

// dependedOn reports whether a reserved start depends on a gang on any of its machines. A
// gang stops as a whole, and the blocked job may take its capacity on another machine than
// the one searched.
func (r *Search) dependedOn(h *cluster.Holder) bool {
	return len(h.Machines) > 1 && slices.ContainsFunc(h.Machines, func(id berth.MachineID) bool {
		n := r.cluster.Nodes[id]
		return n != nil && r.ledger.IsFirm(n)
	})
}

// spareVictims drops the victims that the member does not need, the most expensive first.
func spareVictims(draft *cluster.Node, c *cluster.Class, allowed uint64, list []victim) []victim {
	for i := len(list) - 2; i >= 0; i-- { // the last one was needed
		for _, g := range list[i].Ranks {
			if g.Machine == draft.ID {
				draft.Owe(g)
			}
		}
		if fit.Fits(c, draft, allowed) {
			list = slices.Delete(list, i, i+1)
			continue
		}
		for _, g := range list[i].Ranks {
			if g.Machine == draft.ID {
				draft.Add(g)
			}
		}
	}
	return list
}
