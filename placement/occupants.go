package placement

import (
	"math"
	"slices"
	"time"

	"berth"
)

// owner is the account of a tenant, as far as occupants know it.
type owner struct {
	account int // its index, which the queue renews with each sorting
}

// holder is a running job in the cluster.
type holder struct {
	owner    *owner
	capacity berth.Capacity // of all members
	stopped  int            // the plan that ordered it to stop
	machines []berth.MachineID
	Running
}

// occupants is every running job on one machine. It exists while the machine or
// an occupant does.
type occupants struct {
	list  []occupant
	stamp int // changes with the list, and no other list ever has it
}

// occupant is a running job on one machine: the fields that plans read of many,
// together in memory. It is immutable.
type occupant struct {
	holder      *holder
	preemptible bool // it may be ordered to stop
	priority    int32
	owner       *owner
	frees       berth.Capacity // on this machine, at its end
	devices     int            // grants of devices on this machine
	gpus        float64        // of all members, see gpusOf
	started     time.Duration  // since origin, as are the times below
	since       time.Duration  // its start or its last checkpoint
	restart     time.Duration  // Running.RestartCost
	ends        time.Duration  // by its limits; unknown: it has none
}

// unknown is after all other times.
const unknown time.Duration = math.MaxInt64

// occupantsOf returns the occupants of a machine, known or not.
func (s *cluster) occupantsOf(id berth.MachineID) *occupants {
	on := s.on[id]
	if on == nil {
		s.stamp++
		on = &occupants{stamp: s.stamp}
		s.on[id] = on
	}
	return on
}

// occupy adds a running job, which is unknown so far.
func (s *cluster) occupy(r Running, by *owner) *holder {
	h := &holder{Running: r, owner: by}
	for _, g := range r.Ranks {
		h.capacity = h.capacity.Add(g.Capacity)
		if !slices.Contains(h.machines, g.Machine) {
			h.machines = append(h.machines, g.Machine)
		}
	}
	for _, m := range h.machines {
		on := s.occupantsOf(m)
		on.list = append(on.list, h.on(m))
		s.occupantsChanged(m, on)
	}
	s.running[r.Job] = h
	if h.Stopping {
		s.stopping[r.Job] = h
	}
	return h
}

// vacate removes a running job; nil if it is unknown.
func (s *cluster) vacate(id berth.JobID) *holder {
	h := s.running[id]
	if h == nil {
		return nil
	}
	delete(s.running, id)
	delete(s.stopping, id)
	for _, m := range h.machines {
		on := s.on[m]
		on.list = slices.DeleteFunc(on.list, func(x occupant) bool { return x.holder == h })
		if len(on.list) == 0 && s.nodes[m] == nil {
			delete(s.on, m)
		}
		s.occupantsChanged(m, on)
	}
	return h
}

// occupantsChanged makes every cache of a machine's occupants stale.
func (s *cluster) occupantsChanged(id berth.MachineID, on *occupants) {
	s.stamp++
	on.stamp = s.stamp
	if n := s.nodes[id]; n != nil {
		n.outdate()
	}
}

// on returns the job as an occupant of one of its machines.
func (h *holder) on(m berth.MachineID) occupant {
	x := occupant{
		holder: h, owner: h.owner, preemptible: h.Preemptible && !h.Stopping, priority: short(int64(h.Priority)),
		gpus: gpusOf(h.capacity), started: sinceOrigin(h.StartedAt), restart: h.RestartCost, ends: unknown,
	}
	x.since = max(x.started, sinceOrigin(h.Checkpoint))
	if at, ok := h.ends(0); ok {
		x.ends = sinceOrigin(at)
	}
	for i := range h.Ranks {
		if g := &h.Ranks[i]; g.Machine == m {
			x.frees, x.devices = x.frees.Add(g.Capacity), x.devices+len(g.GPUs)
		}
	}
	return x
}

// leaves returns the time at which the occupant's capacity should be free, unless
// a plan orders it to stop; unknown if nothing limits its run time.
func (x *occupant) leaves(assume time.Duration) time.Duration {
	if x.ends == unknown && assume > 0 {
		return x.started + assume
	}
	return x.ends
}

// lost is holder.lost by a time since origin.
func (x *occupant) lost(now time.Duration) time.Duration { return lost(now-x.since, x.restart, x.gpus) }

// ends returns the time at which the holder's capacity should be free; a past
// time means any moment. A job without limits runs for assume; ok is false if
// that is zero.
func (h *holder) ends(assume time.Duration) (at time.Time, ok bool) {
	switch {
	case h.Stopping:
		return h.StopBy, true
	case h.TimeLimit > 0:
		return h.StartedAt.Add(h.TimeLimit), true
	case h.Remaining > 0:
		return h.StartedAt.Add(h.Remaining), true
	case assume > 0:
		return h.StartedAt.Add(assume), true
	}
	return time.Time{}, false
}

// lost is the GPU time that stopping the holder now would lose: its run time
// since the last verified checkpoint, on all its GPUs, and its restart.
func (h *holder) lost(now time.Time) time.Duration {
	since := h.StartedAt
	if h.Checkpoint.After(since) {
		since = h.Checkpoint
	}
	return lost(now.Sub(since), h.RestartCost, gpusOf(h.capacity))
}

// lost is the GPU time of a run and a restart on that many GPUs.
func lost(ran, restart time.Duration, gpus float64) time.Duration {
	ran = min(max(0, ran), maxLost)
	return time.Duration(min(float64(ran+restart)*gpus, float64(maxLost)))
}

// maxLost is the highest loss that is distinguished.
const maxLost = 100 * 365 * 24 * time.Hour

// gpusOf is a capacity in GPUs. Work without GPUs counts its cores instead.
func gpusOf(c berth.Capacity) float64 {
	if c.GPUMilli > 0 {
		return float64(c.GPUMilli) / 1000
	}
	return float64(c.CPUMilli) / 1000 / coresPerGPU
}

// coresPerGPU is the number of cores that weigh as much as one GPU.
const coresPerGPU = 16

// compareIDs orders job ids.
func compareIDs(a, b berth.JobID) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}
