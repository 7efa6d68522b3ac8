package preempt

import (
	"slices"

	"berth"
	"berth/placement/cluster"
	"berth/placement/fit"
)

// releasedNodes lists the machines on which stopping jobs release more than is
// nominated for others.
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

// release notes the capacity that a stopping holder releases. No nomination of it
// follows.
func (r *Search) release(h *cluster.Holder) {
	for _, id := range h.Machines {
		n := r.cluster.Nodes[id]
		if n == nil {
			continue
		}
		g := r.nominations.unpromised(n, h)
		if g.Capacity == (berth.Capacity{}) && len(g.GPUs) == 0 {
			continue
		}
		if len(r.released) == 0 {
			r.released = make([][]berth.Grant, r.cluster.Extent)
		}
		if len(r.released[n.Index]) == 0 {
			r.ledger.Touch(n) // entries of lists go by the free capacity alone
			r.releasing = append(r.releasing, n)
		}
		r.released[n.Index] = append(r.released[n.Index], g)
	}
}

// releasedOn lists the capacity that stopping jobs release on a machine.
func (r *Search) releasedOn(n *cluster.Node) []berth.Grant {
	if len(r.released) == 0 {
		return nil
	}
	return r.released[n.Index]
}

// fitsReleased reports whether one member of a class without a place fits into
// released capacity.
func (r *Search) fitsReleased(c *cluster.Class, group string) bool {
	s := fit.Search{Class: c, Group: group}
	for _, n := range r.releasedNodes() {
		i := slices.IndexFunc(c.Matches, func(m cluster.Match) bool { return m.Kind == n.Kind })
		if i < 0 || !n.Offered() || !s.Allows(n) || r.ledger.IsFirm(n) {
			continue
		}
		draft := r.ledger.Sketch(n)
		draft.AddAll(r.releasedOn(n))
		if h := r.ledger.HoldOn(n); h != nil && !r.placer.End.IsZero() && !r.placer.End.After(h.Until) {
			draft.Add(h.Grant)
		}
		if fit.Fits(c, draft, c.Matches[i].Devices) {
			return true
		}
	}
	return false
}

// clear gives the victims' capacity to the ledger, with the released capacity of
// their machines if released is set.
func (r *Search) clear(victims []victim, released bool) {
	for i, v := range victims {
		for _, id := range v.Machines {
			n := r.cluster.Nodes[id]
			if n == nil || slices.ContainsFunc(victims[:i],
				func(o victim) bool { return slices.Contains(o.Machines, id) }) {
				continue
			}
			var list []berth.Grant
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

// giveReleased gives the released capacity of a machine to the ledger, unless a
// reserved start depends on it.
func (r *Search) giveReleased(n *cluster.Node) {
	if !r.ledger.IsFirm(n) {
		r.ledger.Give(n, r.releasedOn(n)...)
	}
}
