package preempt

import (
	"slices"

	"berth"
	"berth/placement/cluster"
	"berth/placement/fit"
)

// releasedNodes returns the machines on which stopping jobs release more than is nominated.
// The list is computed at the first call of a plan; preemptions renew it.
func (r *Search) releasedNodes() []*cluster.Node {
	if !r.releasedKnown {
		r.releasedKnown = true
		for _, h := range r.cluster.Stopping {
			r.release(h)
		}
		for _, h := range r.stops {
			r.release(h)
		}
	}
	return r.releasing
}

// release records the capacity that a stopping holder releases beyond its nominations. All
// nominations of that capacity must exist already.
func (r *Search) release(h *cluster.Holder) {
	for _, id := range h.Machines {
		if n := r.cluster.Nodes[id]; n != nil {
			addReleased(r, n, h, false)
		}
	}
}

// addReleased records the capacity that a stopping holder releases on one machine. listed reports that
// the machine is among the releasing ones already.
func addReleased(r *Search, n *cluster.Node, h *cluster.Holder, listed bool) {
	g, pairs := r.nominations.unpromised(n, h), passedOn(r.nominations, r.queue, n, h)
	if g.Capacity == (berth.Capacity{}) && len(g.GPUs) == 0 && len(pairs) == 0 {
		return
	}
	if len(r.released) == 0 {
		r.released = make([][]berth.Grant, r.cluster.Extent)
	}
	if len(r.released[n.Index]) == 0 && !listed {
		r.ledger.Touch(n) // the indexed bound counts free capacity alone: see available
		r.releasing = append(r.releasing, n)
	}
	r.released[n.Index] = append(append(r.released[n.Index], g), pairs...)
}

// renewReleased recomputes the released capacity of machines on which further jobs stop, or other parts of the capacity
// are nominated. A machine may be listed twice.
func renewReleased(r *Search, machines []berth.MachineID) {
	if !r.releasedKnown {
		return
	}
	done := map[berth.MachineID]bool{}
	for _, id := range machines {
		if n := r.cluster.Nodes[id]; n != nil && !done[id] {
			done[id] = true
			renewReleasedOn(r, n)
		}
	}
}

// renewReleasedOn recomputes the released capacity of one machine.
func renewReleasedOn(r *Search, n *cluster.Node) {
	had := len(r.releasedOn(n)) > 0
	if had {
		r.released[n.Index] = nil
	}
	for _, h := range r.nominations.stopping(n, nil) {
		addReleased(r, n, h, had)
	}
	if had && len(r.released[n.Index]) == 0 {
		r.releasing = slices.DeleteFunc(r.releasing, func(o *cluster.Node) bool { return o == n })
	}
}

// releasedOn returns the capacity that stopping jobs release on a machine.
func (r *Search) releasedOn(n *cluster.Node) []berth.Grant {
	if len(r.released) == 0 {
		return nil
	}
	return r.released[n.Index]
}

// findReleased returns a place for one member of a class without a place, once stopping
// jobs have released their capacity. Machines of reserved starts do not count: these starts
// depend on that capacity. ok is false if no machine has room. With first set, the place is
// on the first machine by id; otherwise on any, as the machines have no fixed order.
func (r *Search) findReleased(c *cluster.Class, group string, first bool) (found cluster.Choice, ok bool) {
	s := r.placer.SearchFor(c, group)
	for _, n := range r.releasedNodes() {
		m, may := c.MatchOf(n.Kind)
		if !may || !n.Offered() || !s.Allows(n) || r.ledger.IsFirm(n) || ok && n.ID > found.Node.ID {
			continue
		}
		draft := r.ledger.Sketch(n)
		draft.AddAll(r.releasedOn(n))
		if h := r.ledger.HoldOn(n); h != nil && !r.placer.End.IsZero() && !r.placer.End.After(h.Until) {
			h.Lift(draft)
		}
		devices, fits := fit.Devices(c, draft, m.Devices)
		if !fits {
			continue
		}
		found, ok = cluster.Choice{Node: n, Allowed: m.Devices, Grant: fit.Grant(c, n, devices)}, true
		if !first {
			break
		}
	}
	return found, ok
}

// clear adds the victims' capacity to the ledger, machine by machine. If released is set,
// it also adds the other released capacity of these machines.
func (r *Search) clear(victims []victim, released bool) {
	for i, v := range victims {
		for _, id := range v.Machines {
			n := r.cluster.Nodes[id]
			if n == nil || slices.ContainsFunc(victims[:i],
				func(o victim) bool { return slices.Contains(o.Machines, id) }) {
				continue
			}
			var list []berth.Grant
			// Earlier victims hold nothing here, or this machine would be done already.
			for _, o := range victims[i:] {
				for _, g := range o.Ranks {
					if g.Machine == id {
						list = append(list, g)
					}
				}
			}
			if released && !r.ledger.IsFirm(n) {
				list = append(list, r.releasedOn(n)...)
			}
			r.ledger.Give(n, list...)
		}
	}
}

// giveReleased adds the released capacity of a machine to the ledger, unless a reserved
// start depends on that machine.
func (r *Search) giveReleased(n *cluster.Node) {
	if !r.ledger.IsFirm(n) {
		r.ledger.Give(n, r.releasedOn(n)...)
	}
}
