package cluster

import (
	"math"
	"slices"
	"time"

	"berth"
)

// Running is a job that occupies machines. Its grants are part of the used capacity
// in the rows of the machines.
type Running struct {
	Job         berth.JobID
	Parent      berth.JobID // the array of which the job is an element; "": none
	Tenant      berth.TenantID
	Class       string // need not be defined
	LikeName    string // see queue.Job
	LikeData    string // see queue.Job
	Version     int64
	Attempt     int
	Priority    int
	Preemptible bool
	SubmittedAt time.Time
	Ranks       []berth.Grant // the grants that the job still holds; their epochs are ignored

	StartedAt time.Time     // when the job was given its capacity
	TimeLimit time.Duration // longest run from StartedAt; 0: no limit is known
	Remaining time.Duration // of work, known or declared, counted from StartedAt; 0: not known
	Done      time.Duration // run time of earlier attempts
	Unaged    time.Duration // see Job
	Expected  time.Duration // see Job

	Checkpoint   time.Time     // latest verified in this attempt; zero: preemption loses the whole run
	RestartCost  time.Duration // work that a start adds
	PreemptedFor []berth.JobID // jobs that have preempted this one, each at most once
	Stopping     bool          // the job was ordered to stop; its capacity will be free soon
	StopBy       time.Time     // latest time of this stop; zero: not known
}

// Owner identifies the account of a tenant for occupants. All occupants of a tenant share
// it, so that one write renumbers the account of all.
type Owner struct {
	Account int // the account's index, which the queue renews with each sorting
}

// DebugPriority is the priority of debug jobs, which hold failed attempts. It is below the priority of every other
// job.
const DebugPriority = -1000

// GivesWay reports whether a job of the priority gives way to every other job: it is stopped for any blocked job,
// and stops none itself.
func GivesWay(priority int) bool { return priority < 0 }

// Holder is a running job in the cluster.
type Holder struct {
	Owner    *Owner
	Capacity berth.Capacity // of all members
	Stopped  int            // the latest plan that ordered the job to stop
	Machines []berth.MachineID
	Running
}

// Occupants lists the running jobs on one machine. It exists while the machine or
// an occupant exists, in either order of arrival.
type Occupants struct {
	List  []Occupant
	Stamp int // version of the list, unique among all lists of the cluster
}

// Occupant is a running job on one machine. It repeats the fields that plans read of many
// jobs, so that these are together in memory. An Occupant is immutable.
type Occupant struct {
	Holder      *Holder
	Preemptible bool // and not stopping already
	Priority    int32
	Owner       *Owner
	Frees       berth.Capacity      // released on this machine at the job's end
	Devices     int                 // grants of devices on this machine
	gpus        float64             // of all members, see GPUsOf
	shares      []berth.DeviceShare // of devices of this machine; nil without a tenancy
	Started     time.Duration       // since origin, as are since and ends
	since       time.Duration       // the start or the last verified checkpoint, the later one
	restart     time.Duration       // Running.RestartCost
	ends        time.Duration       // by the job's limits; Unknown without any
}

// Unknown is the end of an occupant without a known end. It is after all other times.
const Unknown time.Duration = math.MaxInt64

// occupantsOf returns the occupants of a machine, which need not have a row yet.
func (s *Cluster) occupantsOf(id berth.MachineID) *Occupants {
	on := s.on[id]
	if on == nil {
		s.stamp++
		on = &Occupants{Stamp: s.stamp}
		s.on[id] = on
	}
	return on
}

// Occupy adds a running job. The job must be unknown so far.
func (s *Cluster) Occupy(r Running, by *Owner) *Holder {
	h := &Holder{Running: r, Owner: by}
	h.Ranks = slices.Clone(h.Ranks)
	for i := range h.Ranks {
		h.Ranks[i] = s.GrantTo(h.Ranks[i], h.Tenant)
	}
	for _, g := range r.Ranks {
		h.Capacity = h.Capacity.Add(g.Capacity)
		if !slices.Contains(h.Machines, g.Machine) {
			h.Machines = append(h.Machines, g.Machine)
		}
	}
	for _, m := range h.Machines {
		on := s.occupantsOf(m)
		on.List = append(on.List, h.on(m, s.tenancy != nil))
		s.occupantsChanged(m, on)
		s.recountUses(m, h)
	}
	s.Running[r.Job] = h
	if GivesWay(h.Priority) {
		s.Yielding++
	}
	if h.Stopping {
		s.Stopping[r.Job] = h
	}
	return h
}

// Vacate removes a running job and returns its holder, or nil for an unknown job.
func (s *Cluster) Vacate(id berth.JobID) *Holder {
	h := s.Running[id]
	if h == nil {
		return nil
	}
	delete(s.Running, id)
	delete(s.Stopping, id)
	if GivesWay(h.Priority) {
		s.Yielding--
	}
	for _, m := range h.Machines {
		on := s.on[m]
		on.List = slices.DeleteFunc(on.List, func(x Occupant) bool { return x.Holder == h })
		if len(on.List) == 0 && s.Nodes[m] == nil {
			delete(s.on, m)
		}
		s.occupantsChanged(m, on)
		s.recountUses(m, h)
	}
	return h
}

// Owned returns the grant with the tenant in each share of a device.
func Owned(g berth.Grant, t berth.TenantID) berth.Grant {
	if len(g.GPUs) == 0 {
		return g
	}
	g.GPUs = slices.Clone(g.GPUs)
	for i := range g.GPUs {
		g.GPUs[i].Tenant = t
	}
	return g
}

// recountUses derives the owners of a machine and of its devices again after a holder came or left.
func (s *Cluster) recountUses(m berth.MachineID, h *Holder) {
	n := s.Nodes[m]
	if s.tenancy != nil && h.Capacity.GPUMilli > 0 || n != nil && n.oneTenant {
		s.change(m, func(*Node) {})
	}
}

// occupantsChanged makes every cache of a machine's occupants stale.
func (s *Cluster) occupantsChanged(id berth.MachineID, on *Occupants) {
	s.stamp++
	on.Stamp = s.stamp
	if n := s.Nodes[id]; n != nil {
		n.outdate()
	}
}

// on returns the job as an occupant of one of its machines.
func (h *Holder) on(m berth.MachineID, shares bool) Occupant {
	x := Occupant{
		Holder: h, Owner: h.Owner, Preemptible: h.Preemptible && !h.Stopping, Priority: Short(int64(h.Priority)),
		gpus: GPUsOf(h.Capacity), Started: SinceOrigin(h.StartedAt), restart: h.RestartCost, ends: Unknown,
	}
	x.since = max(x.Started, SinceOrigin(h.Checkpoint))
	if at, ok := h.Ends(0); ok {
		x.ends = SinceOrigin(at)
	}
	for i := range h.Ranks {
		if g := &h.Ranks[i]; g.Machine == m {
			x.Frees, x.Devices = x.Frees.Add(g.Capacity), x.Devices+len(g.GPUs)
			if shares {
				x.shares = append(x.shares, g.GPUs...)
			}
		}
	}
	return x
}

// Leaves returns the time, since the origin of ages, at which the occupant's capacity
// should be free if no plan orders the job to stop. A job without limits runs for assume;
// the result is Unknown if assume is 0.
func (x *Occupant) Leaves(assume time.Duration) time.Duration {
	if x.ends == Unknown && assume > 0 {
		return x.Started + assume
	}
	return x.ends
}

// Lost is Holder.Lost for a time since the origin of ages.
func (x *Occupant) Lost(now time.Duration) time.Duration { return lost(now-x.since, x.restart, x.gpus) }

// Ends returns the time at which the holder's capacity should be free; a past
// time means any moment. A job that stops at an unknown time ends by its limits: one of
// its members may be on a silent machine. A job that gives way to every other job ends at
// any moment, since the next job that needs its capacity stops it. A job without limits
// runs for assume; ok is false if assume is zero.
func (h *Holder) Ends(assume time.Duration) (at time.Time, ok bool) {
	switch {
	case h.Stopping && !h.StopBy.IsZero():
		return h.StopBy, true
	case GivesWay(h.Priority) && !h.Stopping:
		return h.StartedAt, true
	case h.TimeLimit > 0:
		return h.StartedAt.Add(h.TimeLimit), true
	case h.Remaining > 0:
		return h.StartedAt.Add(h.Remaining), true
	case assume > 0:
		return h.StartedAt.Add(assume), true
	}
	return time.Time{}, false
}

// Lost is the GPU time that stopping the holder now would lose: its run time
// since the last verified checkpoint, on all its GPUs, and its restart.
func (h *Holder) Lost(now time.Time) time.Duration {
	since := h.StartedAt
	if h.Checkpoint.After(since) {
		since = h.Checkpoint
	}
	return lost(now.Sub(since), h.RestartCost, GPUsOf(h.Capacity))
}

// lost is the GPU time of a run and a restart on that many GPUs.
func lost(ran, restart time.Duration, gpus float64) time.Duration {
	ran = min(max(0, ran), maxLost)
	return time.Duration(min(float64(ran+restart)*gpus, float64(maxLost)))
}

// maxLost is the highest loss that is distinguished.
const maxLost = 100 * 365 * 24 * time.Hour

// GPUsOf converts a capacity to a number of GPUs. Work without GPUs counts by its cores.
func GPUsOf(c berth.Capacity) float64 {
	if c.GPUMilli > 0 {
		return float64(c.GPUMilli) / 1000
	}
	return float64(c.CPUMilli) / 1000 / coresPerGPU
}

// coresPerGPU is the number of cores that weigh as much as one GPU.
const coresPerGPU = 16

// CompareIDs orders job ids.
func CompareIDs(a, b berth.JobID) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}
