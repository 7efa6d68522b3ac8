package placement

import (
	"slices"
	"time"

	"berth"
	"berth/placement/backfill"
	"berth/placement/cluster"
	"berth/placement/explain"
	"berth/placement/fit"
	"berth/placement/preempt"
	"berth/placement/queue"
	"berth/spec"
)

// Snapshot mirrors the queue and the machines in the leader's memory. Deltas keep it
// current in O(log n) each; a job that becomes the first of its class and tenant
// also moves 24 bytes for each other class of the tenant. The zero value is not
// usable; see NewSnapshot. A Snapshot is not safe for concurrent use.
type Snapshot struct {
	cluster     *cluster.Cluster
	queue       *queue.Queue
	state       *fit.State
	releases    *backfill.Index
	bounds      *preempt.Index
	nominations []preempt.Nomination
	opened      time.Time // alternatives that open until then are open: the latest time of a plan
	opening     time.Time // no further alternative of a waiting job opens before then; zero: none opens
}

// NewSnapshot returns an empty snapshot.
func NewSnapshot() *Snapshot {
	c := cluster.New()
	return &Snapshot{
		cluster: c, queue: queue.New(), state: fit.NewState(c), releases: &backfill.Index{}, bounds: &preempt.Index{},
	}
}

// SnapshotFor returns an empty snapshot for plans by a policy.
func SnapshotFor(p queue.Policy) *Snapshot {
	s := NewSnapshot()
	if p.KeepTenantsApart {
		s.KeepTenantsApart()
	}
	return s
}

// Machines returns the number of machines.
func (s *Snapshot) Machines() int { return len(s.cluster.Nodes) }

// Jobs returns the number of waiting jobs, held ones included.
func (s *Snapshot) Jobs() int { return len(s.queue.Jobs) }

// Machine returns a machine by id.
func (s *Snapshot) Machine(id berth.MachineID) (cluster.Machine, bool) {
	if n := s.cluster.Nodes[id]; n != nil {
		return n.Machine, true
	}
	return cluster.Machine{}, false
}

// Job returns a waiting job by id.
func (s *Snapshot) Job(id berth.JobID) (queue.Job, bool) {
	if e := s.queue.Jobs[id]; e != nil {
		return e.Job, true
	}
	return queue.Job{}, false
}

// EachJob calls f with every waiting job, in no order.
func (s *Snapshot) EachJob(f func(queue.Job)) {
	for _, e := range s.queue.Waiting {
		f(e.Job)
	}
}

// EachMachine calls f with every machine, in no order.
func (s *Snapshot) EachMachine(f func(cluster.Machine)) {
	for _, n := range s.cluster.Nodes {
		f(n.Machine)
	}
}

// Mix returns the distribution of requests that jobs have shown so far.
func (s *Snapshot) Mix() *fit.Mix { return s.state.Packer.Mix }

// UseMix replaces the distribution of requests by a known one, or by the one that
// another snapshot has learned.
func (s *Snapshot) UseMix(m *fit.Mix) {
	s.state.Packer.Use(m)
}

// KeepTenantsApart makes plans give shares of one device to one tenant only, until all its jobs on
// the device have ended. It must be called before anything is added.
func (s *Snapshot) KeepTenantsApart() { s.cluster.KeepApart() }

// HasClass reports whether the class is defined.
func (s *Snapshot) HasClass(name string) bool { return s.cluster.Classes[name] != nil }

// DefineClass defines the request of a class. A class is defined before its first
// job and does not change.
func (s *Snapshot) DefineClass(name string, r spec.Request) {
	if s.cluster.Classes[name] != nil {
		return
	}
	s.define(cluster.NewClass(name, r))
}

// define adds a class, and the classes of its unlike members, to all parts of the snapshot.
func (s *Snapshot) define(c *cluster.Class) {
	for _, p := range c.Unlike() {
		s.define(p.Class)
	}
	s.cluster.Define(c)
	s.queue.Enroll(c)
	s.state.Memory.Reset(c)
}

// UpsertMachine adds a machine or replaces its row.
func (s *Snapshot) UpsertMachine(m cluster.Machine) { s.cluster.Upsert(m) }

// RemoveMachine removes a machine. An unknown one is no error.
func (s *Snapshot) RemoveMachine(id berth.MachineID) {
	s.cluster.Remove(id)
	s.SetCache(id, nil)
}

// SetCache replaces the cache contents of a machine, each key once. The machine
// may be unknown; its removal also drops the contents. The caller does not change
// the list afterwards.
func (s *Snapshot) SetCache(id berth.MachineID, holds []spec.CachedData) {
	s.state.Caches.Set(id, holds)
}

// UpsertTenant adds a tenant or replaces its row. Jobs of tenants that were never
// added share one account without limits.
func (s *Snapshot) UpsertTenant(t queue.Tenant) { s.queue.UpsertTenant(t) }

// RemoveTenant removes a tenant. An unknown one is no error.
func (s *Snapshot) RemoveTenant(id berth.TenantID) { s.queue.RemoveTenant(id) }

// Tenant returns a tenant by id.
func (s *Snapshot) Tenant(id berth.TenantID) (queue.Tenant, bool) {
	t, ok := s.queue.Tenants[id]
	return t, ok
}

// UpsertJob adds a waiting job or replaces its row. Its class, and the classes of its alternatives, must
// be defined.
func (s *Snapshot) UpsertJob(j queue.Job) {
	c := classOf(s, j)
	if s.queue.Upsert(j, c) {
		s.state.Packer.Mix.Observe(c)
	}
	expectOpening(s, j)
}

// Expect sets the expected total run time of a waiting or running job, and the
// source of that estimate; see Job. An unknown job is no error.
func (s *Snapshot) Expect(id berth.JobID, t time.Duration, by string) {
	s.queue.Expect(id, t, by)
	if h := s.cluster.Running[id]; h != nil {
		h.Expected = t
	}
}

// RemoveJob removes a job from the queue. An unknown one is no error.
func (s *Snapshot) RemoveJob(id berth.JobID) { s.queue.Remove(id) }

// UpsertRunning adds a job that occupies machines, or replaces its row. The rows
// of the machines must include the same use.
func (s *Snapshot) UpsertRunning(r cluster.Running) {
	s.RemoveRunning(r.Job)
	t := s.queue.Tally(r.Tenant)
	h := s.cluster.Occupy(r, &t.Owner)
	s.queue.Hold(t, h.Parent, h.Capacity, h.Preemptible, 1)
}

// RemoveRunning removes a job from its machines. An unknown one is no error.
func (s *Snapshot) RemoveRunning(id berth.JobID) {
	if h := s.cluster.Vacate(id); h != nil {
		s.queue.Hold(s.queue.Tally(h.Tenant), h.Parent, h.Capacity, h.Preemptible, -1)
	}
}

// Running returns a job that occupies machines, by id.
func (s *Snapshot) Running(id berth.JobID) (cluster.Running, bool) {
	if h := s.cluster.Running[id]; h != nil {
		return h.Running, true
	}
	return cluster.Running{}, false
}

// EachRunning calls f with every job that occupies machines, in no order.
func (s *Snapshot) EachRunning(f func(cluster.Running)) {
	for _, h := range s.cluster.Running {
		f(h.Running)
	}
}

// SetNominations replaces all nominations.
func (s *Snapshot) SetNominations(list []preempt.Nomination) { s.nominations = slices.Clone(list) }

// Assume counts decisions as made while their commit is under way: their capacity
// is taken and their jobs leave the queue. A Drop follows every Assume.
func (s *Snapshot) Assume(starts []berth.Start) {
	for _, start := range starts {
		s.queue.Assume(start.Job)
		for _, g := range start.Ranks {
			s.cluster.Assume(g)
		}
	}
}

// Drop ends the effect of Assume. The caller has read the machines and jobs
// concerned again, or is about to.
func (s *Snapshot) Drop(starts []berth.Start) {
	for _, start := range starts {
		s.queue.Unassume(start.Job)
		for _, g := range start.Ranks {
			s.cluster.Unassume(g)
		}
	}
}

// Ahead returns the number of eligible jobs before this one in the queue, by the
// order of the latest plan without tenants' shares. ok is false for a job that is
// not in the queue.
func (s *Snapshot) Ahead(id berth.JobID, now time.Time) (n int, ok bool) {
	s.queue.Sort(s.queue.Policy, s, now)
	return s.queue.Ahead(id, now)
}

// RequestOf returns the request of a class in a snapshot; ok is false for a class that is not defined.
func RequestOf(s *Snapshot, class string) (r spec.Request, ok bool) {
	if c := s.cluster.Classes[class]; c != nil {
		return c.Request, true
	}
	return r, false
}

// SetPools replaces the rules of pools in a snapshot, and applies the trust in tenants. The caller must not change the
// list afterwards. Call SetPools after changes to tenants, too, since both also apply to tenants below.
// If a pool has opened or closed for a tenant, or the trust in a tenant has changed, the tenant's waiting jobs get
// other classes, in O(log n) each. Running jobs keep their machines.
func SetPools(s *Snapshot, rules []cluster.Pool) {
	restricted := s.cluster.Restrict(rules,
		func(t berth.TenantID) berth.TenantID { return s.queue.Tenants[t].Parent })
	if distrusted := s.cluster.Distrust(s.queue.Untrusted()); !restricted && !distrusted {
		return
	}
	for _, e := range s.queue.Waiting {
		if classOf(s, e.Job) != e.Class {
			s.UpsertJob(e.Job)
		}
	}
}

// SetWindows replaces the maintenance windows in a snapshot. The caller must not change the list
// afterwards.
func SetWindows(s *Snapshot, list []cluster.Window) { s.cluster.Schedule(list) }

// Explain compares the request with all machines, clause by clause, with the code that
// places jobs. It does not change the queue. Shares that other tenants have of devices do not
// limit it.
func Explain(s *Snapshot, r spec.Request) explain.Explanation {
	c := cluster.NewClass("", r)
	s.cluster.Observe(c)
	return explain.Class(s.state, c)
}
