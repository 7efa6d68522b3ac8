package placement

import (
	"slices"
	"time"

	"berth"
)

// releaseIndex caches when occupants give capacity back, by machine and by kind.
// It outlives plans, makes them faster and never changes them.
type releaseIndex struct {
	agendas []agenda   // by node.index
	kinds   []*forKind // by kind.index
	changed []*node    // buffer
	ends    []uint64   // buffer
	ranks   []standing
}

// agenda is the releases of one machine. It is valid for one version of the
// occupants and one assumption about jobs without limits.
type agenda struct {
	stamp   int // of the occupants; 0: not valid
	assume  time.Duration
	list    []release   // by time
	devices []time.Time // when one more grant of a device ends, by time
}

// release is capacity that a holder gives back on a machine.
type release struct {
	at    time.Time
	grant *berth.Grant
	by    *holder
}

// of returns the entry of a machine.
func (x *releaseIndex) of(n *node) *agenda {
	if n.index >= len(x.agendas) {
		x.agendas = slices.Grow(x.agendas, n.index+1-len(x.agendas))[:n.index+1]
	}
	return &x.agendas[n.index]
}

// drop makes the agenda of a machine stale.
func (x *releaseIndex) drop(n *node) { x.of(n).stamp = 0 }

// agenda lists the releases of a machine by time; past times mean now. Occupants
// without a known or assumed end are not in it.
func (r *reservations) agenda(n *node) []release { return r.agendaOf(n).list }

func (r *reservations) agendaOf(n *node) *agenda {
	a := r.index.of(n)
	if a.stamp == n.on.stamp && a.assume == r.policy.AssumeRun {
		return a
	}
	a.stamp, a.assume = n.on.stamp, r.policy.AssumeRun
	a.list, a.devices = slices.Grow(a.list[:0], len(n.on.list)), a.devices[:0]
	add := func(h *holder) {
		at, ok := r.ends(h)
		if !ok {
			return
		}
		for i := range h.Ranks {
			if g := &h.Ranks[i]; g.Machine == n.ID {
				a.list = append(a.list, release{at, g, h})
			}
		}
	}
	for i := range n.on.list {
		add(n.on.list[i].holder)
	}
	for _, h := range r.fresh[n] {
		add(h)
	}
	slices.SortFunc(a.list, func(a, b release) int {
		if c := a.at.Compare(b.at); c != 0 {
			return c
		}
		return compareIDs(a.by.Job, b.by.Job)
	})
	for _, x := range a.list {
		for range x.grant.GPUs {
			a.devices = append(a.devices, x.at)
		}
	}
	return a
}
