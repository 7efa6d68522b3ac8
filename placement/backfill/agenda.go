package backfill

import (
	"slices"
	"time"

	"berth"
	"berth/placement/cluster"
)

// Index caches the times at which occupants release capacity, by machine and by kind.
// The cache is kept from plan to plan; it makes plans faster and never changes them. The
// zero value is empty.
type Index struct {
	agendas []agenda           // by Node.Index
	kinds   []*forKind         // by Kind.Index
	changed []*cluster.Node    // buffer
	ends    []uint64           // buffer
	ranks   []cluster.Standing // buffer
}

// agenda lists the releases of one machine. It is valid for one version of the
// occupants and one assumption about jobs without limits.
type agenda struct {
	stamp   int // of the occupants; 0: not valid
	assume  time.Duration
	list    []release   // by time
	devices []time.Time // the ends of the grants of devices, by time
}

// release is capacity of a machine that becomes free at a time.
type release struct {
	at    time.Time
	grant *berth.Grant
	by    *cluster.Holder // nil: by a reservation that ends
}

// of returns the entry of a machine.
func (x *Index) of(n *cluster.Node) *agenda {
	if n.Index >= len(x.agendas) {
		x.agendas = slices.Grow(x.agendas, n.Index+1-len(x.agendas))[:n.Index+1]
	}
	return &x.agendas[n.Index]
}

// drop makes the agenda of a machine stale.
func (x *Index) drop(n *cluster.Node) { x.of(n).stamp = 0 }

// agenda lists the releases of a machine by time; past times mean now. Occupants
// without a known or assumed end are not in it.
func (r *Reservations) agenda(n *cluster.Node) []release { return r.agendaOf(n).list }

// agendaOf returns the agenda of a machine and recomputes a stale one. Its list includes the
// jobs that this plan has started, so that the plan's own starts release capacity, too.
func (r *Reservations) agendaOf(n *cluster.Node) *agenda {
	a := r.index.of(n)
	if a.stamp == n.On.Stamp && a.assume == r.policy.AssumeRun {
		return a
	}
	a.stamp, a.assume = n.On.Stamp, r.policy.AssumeRun
	a.list, a.devices = slices.Grow(a.list[:0], len(n.On.List)), a.devices[:0]
	add := func(h *cluster.Holder) {
		at, ok := r.Ends(h)
		if !ok {
			return
		}
		for i := range h.Ranks {
			if g := &h.Ranks[i]; g.Machine == n.ID {
				a.list = append(a.list, release{at, g, h})
			}
		}
	}
	for i := range n.On.List {
		add(n.On.List[i].Holder)
	}
	for _, h := range r.fresh[n] {
		add(h)
	}
	slices.SortFunc(a.list, func(a, b release) int {
		if c := a.at.Compare(b.at); c != 0 {
			return c
		}
		return cluster.CompareIDs(a.by.Job, b.by.Job)
	})
	for _, x := range a.list {
		for range x.grant.GPUs {
			a.devices = append(a.devices, x.at)
		}
	}
	return a
}
