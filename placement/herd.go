package placement

import (
	"slices"
	"strings"
	"time"
)

// herd is what is kept of the machines of a kind from plan to plan, so that each
// plan looks only at those that have changed. The lists are by machine id.
type herd struct {
	members   []*node // that may be given work
	unlisted  bool    // others do
	stale     []*node // whose entries are to be made anew
	touched   []*node // by the plan touchedAt
	freshAt   int     // the plan for which that was done
	touchedAt int

	views    []view
	seen     []int32             // places of views made since they were ranked
	byTime   [1 + viewed]ranking // by view.soonest; only those that were asked for
	viewsFor time.Duration       // Policy.AssumeRun; negative: there are none
	prey     []prey
	expire   []time.Duration // of prey, from the origin of ages until it is to be made anew
	smelled  []int32         // places of prey made since it was ranked
	byCost   ranking         // of those on whom anybody could be displaced
	preyFor  lureRule
	preyAt   time.Time // of the plan that asked last; zero: there is none
}

// note takes in that a machine of the kind has changed.
func (k *kind) note(n *node) {
	if n.listed != k {
		k.unlisted = true
		n.leave()
		return
	}
	n.outdate()
}

// outdate notes that the entries of a machine are to be made anew.
func (n *node) outdate() {
	if n.listed != nil && !n.stale {
		n.stale = true
		n.listed.stale = append(n.listed.stale, n)
	}
}

// touches lists a machine among those that the plan has touched.
func (h *herd) touches(n *node, plan int) {
	if h.touchedAt != plan {
		h.touched, h.touchedAt = h.touched[:0], plan
	}
	h.touched = append(h.touched, n)
}

// leave takes a machine off the list that it is in.
func (n *node) leave() {
	if n.listed != nil {
		n.listed.unlisted = true
	}
	n.listed, n.view, n.prey, n.stale = nil, nil, nil, false
}

// enlist lists the machines anew.
func (k *kind) enlist() {
	for _, n := range k.members {
		if n.listed == k {
			n.leave()
		}
	}
	list := k.members[:0]
	var c cursor[*node]
	for c.begin(&k.tree); ; c.next() {
		n, ok := c.at()
		if !ok {
			break
		}
		list = append(list, n)
	}
	slices.SortFunc(list, func(a, b *node) int { return strings.Compare(string(a.ID), string(b.ID)) })
	k.muster(list)
}

// muster takes the list of its machines, which is by id.
func (k *kind) muster(list []*node) {
	h := &k.herd
	for i, n := range list {
		n.leave()
		n.listed, n.place = k, i
	}
	h.members, h.stale, h.unlisted = list, h.stale[:0], false
	h.viewsFor, h.preyAt = -1, time.Time{}
}

// refresh makes the entries anew of machines that have changed. Those that the
// plan itself has changed already are looked at closely in this plan, and their
// entries made in the next.
func (r *run) refresh(k *kind) {
	h := &k.herd
	if h.freshAt == r.number {
		return
	}
	h.freshAt = r.number
	if h.unlisted || len(h.members) != k.tree.len() {
		k.enlist()
	}
	later := h.stale[:0]
	for _, n := range h.stale {
		if n.listed != k || !n.stale {
			continue
		}
		if !h.preyAt.IsZero() {
			r.smell(n) // who holds room of it has changed
		}
		if n.touched == r.number {
			later = append(later, n)
			continue
		}
		n.stale = false
		if h.viewsFor >= 0 {
			r.see(n)
		}
	}
	clear(h.stale[len(later):])
	h.stale = later
}

// views lists the machines of a kind as reservations see them.
func (r *run) views(k *kind) []view {
	r.refresh(k)
	h := &k.herd
	if h.viewsFor == r.policy.AssumeRun {
		return h.views
	}
	h.viewsFor = r.policy.AssumeRun
	h.seen, h.byTime = h.seen[:0], [1 + viewed]ranking{}
	h.views = slices.Grow(h.views[:0], len(h.members))[:len(h.members)]
	for i, n := range h.members {
		n.view = &h.views[i]
		*n.view = view{}
		if n.touched == r.number {
			n.view.plan = r.number
			n.outdate()
			continue
		}
		if r.policy.Preempt {
			r.lure(n) // while those who hold room of it are at hand
		}
		r.see(n)
	}
	return h.views
}

// byTime ranks the machines of a kind by when they may have so many devices for
// those who have no room there now.
func (r *run) byTime(k *kind, devices int32) (views []view, rank ranking) {
	views = r.views(k)
	h := &k.herd
	if len(h.seen) > 0 {
		for i := range h.byTime {
			if len(h.byTime[i]) > 0 {
				fresh := r.ranks[:0]
				for _, place := range h.seen {
					fresh = append(fresh, standing{timeKey(views[place].soonest(int32(i))), place})
				}
				h.byTime[i].renew(fresh, func(place int32) bool { return !views[place].moved })
				r.ranks = fresh
			}
		}
		for _, place := range h.seen {
			views[place].moved = false
		}
		h.seen = h.seen[:0]
	}
	if devices > viewed {
		devices = 0
	}
	x := &h.byTime[devices]
	if len(*x) == 0 {
		for i := range views {
			*x = append(*x, standing{timeKey(views[i].soonest(devices)), int32(i)})
		}
		slices.SortFunc(*x, compareStandings)
	}
	return views, *x
}

// prey lists the machines of a kind as claims see them.
func (r *run) prey(k *kind) []prey {
	r.refresh(k)
	h := &k.herd
	rule := lureRule{r.policy.Order, r.policy.BandWidth, r.policy.MinRuntime, r.snapshot.sortings}
	switch {
	case h.preyAt.Equal(r.now) && h.preyFor == rule:
	case h.preyAt.IsZero(), h.preyFor != rule, r.now.Before(h.preyAt):
		h.preyFor = rule
		h.prey = slices.Grow(h.prey[:0], len(h.members))[:len(h.members)]
		h.expire = slices.Grow(h.expire[:0], len(h.members))[:len(h.members)]
		h.smelled, h.byCost = h.smelled[:0], h.byCost[:0]
		clear(h.prey)
		for i, n := range h.members {
			n.prey = &h.prey[i]
			r.smell(n)
		}
	default:
		for i, t := range h.expire {
			if t <= r.clock {
				r.smell(h.members[i])
			}
		}
	}
	h.preyAt = r.now
	r.rankPrey(h)
	return h.prey
}

// rankPrey puts the entries that were made since where they belong.
func (r *run) rankPrey(h *herd) {
	if len(h.smelled) == 0 {
		return
	}
	fresh := r.ranks[:0]
	for _, i := range h.smelled {
		if x := &h.prey[i]; x.band != noBand {
			fresh = append(fresh, standing{costKey(x.band, x.least), i})
		}
	}
	h.byCost.renew(fresh, func(i int32) bool { return !h.prey[i].moved })
	for _, i := range h.smelled {
		h.prey[i].moved = false
	}
	h.smelled, r.ranks = h.smelled[:0], fresh
}
