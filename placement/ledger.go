package placement

import (
	"slices"
	"time"

	"berth"
)

// UpsertTenant brings in a tenant or its present row. Jobs of tenants that were
// never brought in share one account without limits.
func (s *Snapshot) UpsertTenant(t Tenant) {
	old, had := s.tenants[t.ID]
	s.tenants[t.ID] = t
	switch {
	case !had || old.Parent != t.Parent:
		s.unsorted = true
	case !s.unsorted:
		s.accounts[t.ID].Tenant = t
	}
}

// RemoveTenant takes a tenant out. An unknown one is no error.
func (s *Snapshot) RemoveTenant(id berth.TenantID) {
	if _, had := s.tenants[id]; had {
		delete(s.tenants, id)
		s.unsorted = true
	}
}

// Tenant returns a tenant by id.
func (s *Snapshot) Tenant(id berth.TenantID) (Tenant, bool) {
	t, ok := s.tenants[id]
	return t, ok
}

// UpsertRunning brings in a job that holds room, or how it holds it at present.
// The machines' rows must say the same of what is in use.
func (s *Snapshot) UpsertRunning(r Running) {
	s.RemoveRunning(r.Job)
	h := &holder{Running: r, tally: s.tally(r.Tenant)}
	for _, g := range r.Ranks {
		h.capacity = h.capacity.Add(g.Capacity)
		if !slices.Contains(h.machines, g.Machine) {
			h.machines = append(h.machines, g.Machine)
		}
	}
	for _, m := range h.machines {
		on := s.stintsOn(m)
		on.list = append(on.list, h.stint(m))
		s.rehung(m)
	}
	s.running[r.Job] = h
	s.sibling(r.Parent, 1)
	if h.Stopping {
		s.stopping[r.Job] = h
	}
	s.hold(h.tally, h.capacity, h.Preemptible, 1)
}

// RemoveRunning takes out a job that holds room no more. An unknown one is no
// error.
func (s *Snapshot) RemoveRunning(id berth.JobID) {
	h := s.running[id]
	if h == nil {
		return
	}
	delete(s.running, id)
	s.sibling(h.Parent, -1)
	delete(s.stopping, id)
	for _, m := range h.machines {
		on := s.on[m]
		on.list = slices.DeleteFunc(on.list, func(x stint) bool { return x.holder == h })
		if len(on.list) == 0 && s.nodes[m] == nil {
			delete(s.on, m)
		}
		s.rehung(m)
	}
	s.hold(h.tally, h.capacity, h.Preemptible, -1)
}

// rehung notes that others hold room of a machine.
func (s *Snapshot) rehung(id berth.MachineID) {
	if n := s.nodes[id]; n != nil {
		n.agendaOK, n.lure.known = false, false
		n.outdate()
	}
}

// Running returns a job that holds room, by id.
func (s *Snapshot) Running(id berth.JobID) (Running, bool) {
	if h := s.running[id]; h != nil {
		return h.Running, true
	}
	return Running{}, false
}

// EachRunning calls f with every job that holds room, in no order.
func (s *Snapshot) EachRunning(f func(Running)) {
	for _, h := range s.running {
		f(h.Running)
	}
}

// SetEarmarks replaces all earmarks.
func (s *Snapshot) SetEarmarks(list []Earmark) { s.earmarks = slices.Clone(list) }

// holder is a running job in the snapshot.
type holder struct {
	tally    *tally
	capacity berth.Capacity
	told     int // the plan that told it to stop
	machines []berth.MachineID
	Running
}

// ends is when the holder's room should be free; a time that is past means any
// moment. Where nothing is known of it, assume counts from its start; ok is false
// where nothing is assumed either.
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

// lost is the work that stopping the holder now would cost, in GPU time: what it
// ran since its last verified checkpoint, on all its GPUs, and its restart. Work
// without GPUs counts 16 cores as one.
func (h *holder) lost(now time.Time) time.Duration {
	since := h.StartedAt
	if h.Checkpoint.After(since) {
		since = h.Checkpoint
	}
	return lost(now.Sub(since), h.RestartCost, gpusOf(h.capacity))
}

// lost is the work of so many GPUs that have run for that long, and their
// restart.
func lost(ran, restart time.Duration, gpus float64) time.Duration {
	ran = min(max(0, ran), maxLost)
	return time.Duration(min(float64(ran+restart)*gpus, float64(maxLost)))
}

// maxLost bounds what is counted as lost.
const maxLost = 100 * 365 * 24 * time.Hour

// gpusOf is how many GPUs an amount counts as.
func gpusOf(c berth.Capacity) float64 {
	if c.GPUMilli > 0 {
		return float64(c.GPUMilli) / 1000
	}
	return float64(c.CPUMilli) / 1000 / coresPerGPU
}

// coresPerGPU is how many cores count as a GPU where work without GPUs is
// weighed against work with them.
const coresPerGPU = 16
