package placement

import (
	"fmt"
	"slices"
	"time"

	"berth"
)

// Snapshot is the queue and the machines as the leader knows them. Deltas keep it
// current in O(log n) each; a job that becomes the first of its class and tenant
// also moves 24 bytes for each other class of the tenant. The zero value is not
// usable; see NewSnapshot. It is not safe for concurrent use.
type Snapshot struct {
	cluster  *cluster
	queue    *queue
	state    *state
	releases *releaseIndex
	bounds   *boundIndex
	earmarks []Earmark
}

// NewSnapshot returns an empty snapshot.
func NewSnapshot() *Snapshot {
	c := newCluster()
	return &Snapshot{
		cluster: c, queue: newQueue(), state: newState(c), releases: &releaseIndex{}, bounds: &boundIndex{},
	}
}

// Machines returns the number of machines.
func (s *Snapshot) Machines() int { return len(s.cluster.nodes) }

// Jobs returns the number of waiting jobs, held ones included.
func (s *Snapshot) Jobs() int { return len(s.queue.jobs) }

// Machine returns a machine by id.
func (s *Snapshot) Machine(id berth.MachineID) (Machine, bool) {
	if n := s.cluster.nodes[id]; n != nil {
		return n.Machine, true
	}
	return Machine{}, false
}

// Job returns a waiting job by id.
func (s *Snapshot) Job(id berth.JobID) (Job, bool) {
	if e := s.queue.jobs[id]; e != nil {
		return e.Job, true
	}
	return Job{}, false
}

// EachJob calls f with every waiting job, in no order.
func (s *Snapshot) EachJob(f func(Job)) {
	for _, e := range s.queue.waiting {
		f(e.Job)
	}
}

// EachMachine calls f with every machine, in no order.
func (s *Snapshot) EachMachine(f func(Machine)) {
	for _, n := range s.cluster.nodes {
		f(n.Machine)
	}
}

// Mix returns the distribution of requests that jobs have shown so far.
func (s *Snapshot) Mix() *Mix { return s.state.packer.mix }

// UseMix replaces the distribution of requests by a known one, or by the one that
// another snapshot has learned.
func (s *Snapshot) UseMix(m *Mix) {
	s.state.packer.use(m)
}

// HasClass reports whether the class is defined.
func (s *Snapshot) HasClass(name string) bool { return s.cluster.classes[name] != nil }

// DefineClass defines the request of a class. A class is defined before its first
// job and does not change.
func (s *Snapshot) DefineClass(name string, r berth.Request) {
	if s.cluster.classes[name] != nil {
		return
	}
	c := newClass(name, r)
	s.cluster.define(c)
	s.queue.enroll(c)
	s.state.memory.reset(c)
}

// UpsertMachine adds a machine or replaces its row.
func (s *Snapshot) UpsertMachine(m Machine) { s.cluster.upsert(m) }

// RemoveMachine removes a machine. An unknown one is no error.
func (s *Snapshot) RemoveMachine(id berth.MachineID) {
	s.cluster.remove(id)
	s.SetCache(id, nil)
}

// SetCache replaces the cache contents of a machine, each key once. The machine
// may be unknown; its removal also drops the contents. The caller does not change
// the list afterwards.
func (s *Snapshot) SetCache(id berth.MachineID, holds []berth.CachedData) {
	s.state.caches.set(id, holds)
}

// UpsertTenant adds a tenant or replaces its row. Jobs of tenants that were never
// added share one account without limits.
func (s *Snapshot) UpsertTenant(t Tenant) { s.queue.upsertTenant(t) }

// RemoveTenant removes a tenant. An unknown one is no error.
func (s *Snapshot) RemoveTenant(id berth.TenantID) { s.queue.removeTenant(id) }

// Tenant returns a tenant by id.
func (s *Snapshot) Tenant(id berth.TenantID) (Tenant, bool) {
	t, ok := s.queue.tenants[id]
	return t, ok
}

// UpsertJob adds a waiting job or replaces its row. Its class must be defined.
func (s *Snapshot) UpsertJob(j Job) {
	c := s.cluster.classes[j.Class]
	if c == nil {
		panic(fmt.Sprintf("placement: job %s is of class %q, which is not defined", j.ID, j.Class))
	}
	if s.queue.upsert(j, c) {
		s.state.packer.mix.observe(c)
	}
}

// Expect sets the expected total run time of a waiting or running job, and the
// source of that estimate; see Job. An unknown job is no error.
func (s *Snapshot) Expect(id berth.JobID, t time.Duration, by string) {
	s.queue.expect(id, t, by)
	if h := s.cluster.running[id]; h != nil {
		h.Expected = t
	}
}

// RemoveJob removes a job from the queue. An unknown one is no error.
func (s *Snapshot) RemoveJob(id berth.JobID) { s.queue.remove(id) }

// UpsertRunning adds a job that occupies machines, or replaces its row. The rows
// of the machines must include the same use.
func (s *Snapshot) UpsertRunning(r Running) {
	s.RemoveRunning(r.Job)
	t := s.queue.tally(r.Tenant)
	h := s.cluster.occupy(r, &t.owner)
	s.queue.hold(t, h.Parent, h.capacity, h.Preemptible, 1)
}

// RemoveRunning removes a job from its machines. An unknown one is no error.
func (s *Snapshot) RemoveRunning(id berth.JobID) {
	if h := s.cluster.vacate(id); h != nil {
		s.queue.hold(s.queue.tally(h.Tenant), h.Parent, h.capacity, h.Preemptible, -1)
	}
}

// Running returns a job that occupies machines, by id.
func (s *Snapshot) Running(id berth.JobID) (Running, bool) {
	if h := s.cluster.running[id]; h != nil {
		return h.Running, true
	}
	return Running{}, false
}

// EachRunning calls f with every job that occupies machines, in no order.
func (s *Snapshot) EachRunning(f func(Running)) {
	for _, h := range s.cluster.running {
		f(h.Running)
	}
}

// SetEarmarks replaces all nominations.
func (s *Snapshot) SetEarmarks(list []Earmark) { s.earmarks = slices.Clone(list) }

// Assume counts decisions as made while their commit is under way: their capacity
// is taken and their jobs leave the queue. A Drop follows every Assume.
func (s *Snapshot) Assume(starts []berth.Start) {
	for _, start := range starts {
		s.queue.assume(start.Job)
		for _, g := range start.Ranks {
			s.cluster.assume(g)
		}
	}
}

// Drop ends the effect of Assume. The caller has read the machines and jobs
// concerned again, or is about to.
func (s *Snapshot) Drop(starts []berth.Start) {
	for _, start := range starts {
		s.queue.unassume(start.Job)
		for _, g := range start.Ranks {
			s.cluster.unassume(g)
		}
	}
}

// Ahead returns the number of eligible jobs before this one in the queue, by the
// order of the latest plan without tenants' shares. ok is false for a job that is
// not in the queue.
func (s *Snapshot) Ahead(id berth.JobID, now time.Time) (n int, ok bool) {
	s.queue.sort(s.queue.policy, s, now)
	return s.queue.ahead(id, now)
}

// Explain tells how the machines stand to a request, by the same code that
// places.
func Explain(s *Snapshot, r berth.Request) Explanation {
	c := newClass("", r)
	s.cluster.observe(c)
	return explainClass(s.state, c)
}
