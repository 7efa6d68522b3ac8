package placement

import (
	"math"
	"time"

	"berth"
)

// stints is who holds room of one machine.
type stints struct{ list []stint }

// stint is a holder on one machine: what plans read of many, told together so
// that a look at a machine reads its holders one after the other. It never
// changes.
type stint struct {
	holder   *holder
	bait     bool  // it may be told to stop
	priority int32 // Running.Priority
	tally    *tally
	gives    berth.Capacity // back, on this machine
	devices  int            // of which it has a part there
	gpus     float64        // that all it has counts as
	started  time.Duration  // from the origin of ages
	since    time.Duration  // when it started, or its last checkpoint
	restart  time.Duration  // Running.RestartCost
	ends     time.Duration  // by what is known of it; unknown: nothing
}

// unknown is after all other times.
const unknown time.Duration = math.MaxInt64

// stintsOn is who holds room of a machine, whether there is one or not.
func (s *Snapshot) stintsOn(id berth.MachineID) *stints {
	on := s.on[id]
	if on == nil {
		on = &stints{}
		s.on[id] = on
	}
	return on
}

// stint of the holder on a machine.
func (h *holder) stint(on berth.MachineID) stint {
	x := stint{
		holder: h, tally: h.tally, bait: h.Preemptible && !h.Stopping, priority: short(int64(h.Priority)), gpus: gpusOf(h.capacity),
		started: sinceOrigin(h.StartedAt), restart: h.RestartCost, ends: unknown,
	}
	x.since = max(x.started, sinceOrigin(h.Checkpoint))
	if at, ok := h.ends(0); ok {
		x.ends = sinceOrigin(at)
	}
	for i := range h.Ranks {
		if g := &h.Ranks[i]; g.Machine == on {
			x.gives, x.devices = x.gives.Add(g.Capacity), x.devices+len(g.GPUs)
		}
	}
	return x
}

// ripe reports whether the holder may be displaced by anyone.
func (x *stint) ripe(r *run) bool { return x.bait && r.clock-x.started >= r.policy.MinRuntime }

// price is run.price.
func (x *stint) price(r *run) float64 {
	if r.policy.Order == SRSF {
		return r.price(x.holder)
	}
	return lost(r.clock-x.since, x.restart, x.gpus).Seconds()
}

// leaves is when the holder's room should be free, unless the plan tells it to
// stop; unknown: that is not known.
func (x *stint) leaves(assume time.Duration) time.Duration {
	if x.ends == unknown && assume > 0 {
		return x.started + assume
	}
	return x.ends
}
