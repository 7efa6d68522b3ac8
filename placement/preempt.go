package placement

import (
	"cmp"
	"container/heap"
	"slices"
	"time"

	"berth"
)

// maxClaims bounds for how many blocked jobs a plan looks for victims.
const maxClaims = 32

// maxHopes bounds for how many others it looks to tell when they may.
const maxHopes = 64

// claim makes room for a blocked job by telling others to stop. It takes whole
// gangs, those whose work is lost least, and spares all that need not go.
func (r *run) claim(x *seat, e *entry) bool {
	if !r.policy.Preempt || r.claims == 0 || r.waited(e) < r.policy.PreemptAfter {
		return false
	}
	r.claims--
	own := r.ownRoom(e)
	r.lift(own) // it needs no victims for the room that is kept for its repair
	best := r.offer(x, e)
	if best == nil {
		r.restore(own)
		return false
	}
	if len(own) > 0 { // it is in what the claim takes
		r.marks[e.ID] = slices.DeleteFunc(r.marks[e.ID], func(m mark) bool { return m.Repair && m.victim == nil })
		r.widen() // what it leaves of its own is anybody's
	}
	r.enact(e, best)
	return true
}

// hope notes when a blocked job will have waited long enough to displace others,
// if it could then, as things are now. Only estimates go by it.
func (r *run) hope(x *seat, e *entry) {
	left := r.policy.PreemptAfter - r.waited(e)
	if !r.planner.Estimate || !r.policy.Preempt || left <= 0 || r.hoped >= maxHopes {
		return
	}
	r.hoped++
	if r.offer(x, e) != nil {
		r.hopes[e.ID] = r.now.Add(left)
	}
}

// offer finds who would have to go for a job; nil if that would not do, or if
// those who stop already make room enough.
func (r *run) offer(x *seat, e *entry) *sacrifice {
	r.end = time.Time{} // it starts when its victims have stopped: what is held may be needed before it ends
	r.target(x, e)
	var best *sacrifice
	for _, group := range r.groups(e.class) {
		mark := len(r.taken)
		s := r.sacrifice(x, e, group)
		r.undo(mark)
		if s != nil && len(s.victims) == 0 {
			return nil
		}
		if s != nil && (best == nil || s.cost() < best.cost()) {
			best = s
		}
	}
	return best
}

// waited is for how long the job could have started.
func (r *run) waited(e *entry) time.Duration {
	since := e.SubmittedAt
	if e.EligibleAt.After(since) {
		since = e.EligibleAt
	}
	return max(0, r.now.Sub(since))
}

// sacrifice is places for all members of a job and who gives way for them.
type sacrifice struct {
	ranks   []choice
	victims []victim
}

func (s *sacrifice) cost() float64 {
	sum := 0.0
	for _, v := range s.victims {
		sum += v.cost
	}
	return sum
}

// sacrifice places all members, displacing where there is no room. What it
// takes and gives is the caller's to undo.
func (r *run) sacrifice(x *seat, e *entry, group string) *sacrifice {
	s := &sacrifice{}
	c := e.class
	defer c.open()()
	single := c.members() == 1
	switch {
	case !single:
		for _, n := range r.leavings() {
			r.giveLeavings(n)
		}
	case r.inLeavings(c, group):
		return s // it just had no place: what is left behind is all there can be
	}
	for range c.members() {
		found, ok := choice{}, false
		if !single {
			found, ok = r.find(c, nil, group)
		}
		if !ok {
			r.overlaid = single
			victims, any := r.cheapestVictims(e.class, group, s)
			r.overlaid = false
			if !any {
				return nil
			}
			s.victims = append(s.victims, victims...)
			r.clear(victims, single)
			if found, ok = r.find(c, nil, group); !ok {
				return nil
			}
		}
		r.take(found)
		s.ranks = append(s.ranks, found)
	}
	s.reprieve(r)
	return s
}

// unpromised is what a holder gives back on a machine when it stops, less what is
// earmarked of it.
func (r *run) unpromised(n *node, h *holder) berth.Grant {
	var a amount
	for _, g := range h.Ranks {
		if g.Machine == n.ID {
			a = a.plus(n, g, 1)
		}
	}
	for _, m := range r.promises[h.Job] {
		if m.Machine == n.ID {
			a = a.plus(n, berth.Grant{Capacity: m.Capacity, GPUs: m.GPUs}, -1)
		}
	}
	return a.grant(n)
}

// reprieve spares the dearest victims whose room is not used after all.
func (s *sacrifice) reprieve(r *run) {
	slices.SortStableFunc(s.victims, func(a, b victim) int {
		return cmp.Or(cmp.Compare(b.band, a.band), cmp.Compare(b.cost, a.cost), compareIDs(a.Job, b.Job))
	})
	s.victims = slices.DeleteFunc(s.victims, func(v victim) bool {
		for _, g := range v.Ranks {
			if n := r.snapshot.nodes[g.Machine]; n != nil && !n.holds(g, v.Ranks) {
				return false
			}
		}
		for _, g := range v.Ranks {
			if n := r.snapshot.nodes[g.Machine]; n != nil {
				r.take(choice{node: n, grant: g})
			}
		}
		return true
	})
}

// holds reports whether all that ranks take of the machine of g is free.
func (n *node) holds(g berth.Grant, ranks []berth.Grant) bool {
	var all amount
	for _, o := range ranks {
		if o.Machine == g.Machine {
			all = all.plus(n, o, 1)
		}
	}
	if !all.Fits(n.free) {
		return false
	}
	for i, x := range all.gpus {
		if x > 0 && x > n.gpus[i] && n.gpus[i] != sick {
			return false
		}
	}
	return true
}

// price is what displacing a holder costs: under order srsf, how near its end
// it is; else the work lost.
func (r *run) price(h *holder) float64 {
	if r.policy.Order == SRSF {
		return 1 / max(1e-9, r.policy.running(h, r.now))
	}
	return h.lost(r.now).Seconds()
}

// enact tells the victims to stop and keeps their room for the job.
func (r *run) enact(e *entry, s *sacrifice) {
	r.changed = true
	holders := make([]*holder, 0, len(s.victims))
	for _, v := range s.victims {
		holders = append(holders, v.holder)
		v.told = r.number
		r.stops = append(r.stops, v.holder)
		r.plan.Preempt = append(r.plan.Preempt, Preempt{v.Job, v.Version, v.Attempt, e.ID, v.why, v.lost(r.now)})
		r.discharge(v.holder)
		for _, id := range v.machines {
			if n := r.snapshot.nodes[id]; n != nil {
				n.agendaOK = false
				r.touch(n)
			}
		}
	}
	for _, c := range together(s.ranks) {
		for _, m := range earmarks(e, c.grant, c.node, holders) {
			if r.policy.EarmarkFor > 0 {
				m.ExpiresAt = r.now.Add(r.policy.EarmarkFor)
			}
			r.plan.Earmark = append(r.plan.Earmark, m)
			r.promises[m.Victim] = append(r.promises[m.Victim], m)
			g := berth.Grant{Machine: m.Machine, Epoch: c.node.Epoch, Capacity: m.Capacity, GPUs: m.GPUs}
			if m.Victim == "" {
				r.take(choice{node: c.node, grant: clamp(c.node, g)})
			} else {
				r.keep(c.node, reservation{at: r.now, grant: g, until: r.leaves(r.now, e)})
			}
		}
	}
	if r.leftKnown {
		for _, h := range holders {
			r.bequeath(h)
		}
	}
}

// together adds up what is granted on one machine.
func together(ranks []choice) []choice {
	var list []choice
	for _, c := range ranks {
		i := slices.IndexFunc(list, func(o choice) bool { return o.node == c.node })
		if i < 0 {
			c.grant.GPUs = slices.Clone(c.grant.GPUs)
			list = append(list, c)
			continue
		}
		g := &list[i].grant
		g.Capacity = g.Capacity.Add(c.grant.Capacity)
		for _, d := range c.grant.GPUs {
			if j := slices.IndexFunc(g.GPUs, func(o berth.DeviceShare) bool { return o.Index == d.Index }); j >= 0 {
				g.GPUs[j].Milli += d.Milli
			} else {
				g.GPUs = append(g.GPUs, d)
			}
		}
	}
	return list
}

// discharge takes a holder that stops off its accounts, as far as shares go.
func (r *run) discharge(h *holder) {
	for x := r.seatOf(h); x != &r.root; x = x.parent {
		x.held.add(berth.Capacity{}.Sub(h.capacity), h.Preemptible, -1)
		x.going.add(h.capacity, h.Preemptible, 1)
		if x.first != nil {
			r.weigh(x)
			heap.Fix(&x.parent.kids, x.index)
			r.lead(x.parent)
		}
	}
}
