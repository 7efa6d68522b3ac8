package placement

import (
	"fmt"
	"slices"
	"time"

	"berth"
)

// Snapshot is the queue and the machines as the leader knows them. It is kept
// current by deltas, each O(log n), but that a job which comes to be the first of
// its class and tenant pushes aside 24 bytes for each other class of the tenant
// in line. The zero value is not usable; see NewSnapshot. It is not safe for
// concurrent use.
type Snapshot struct {
	nodes    map[berth.MachineID]*node
	jobs     map[berth.JobID]*entry
	waiting  []*entry // those, by entry.slot
	classes  map[string]*class
	roster   []*class // those, see enroll
	numbered []*class // likewise, by number

	tenants  map[berth.TenantID]Tenant
	tallies  map[berth.TenantID]*tally
	accounts map[berth.TenantID]*account
	shared   *account   // of all tenants without a row
	top      []*account // those below none, by id
	policy   Policy     // as far as it orders, of the latest plan
	edge     time.Time  // of what is overdue, see Policy.edge
	unsorted bool       // accounts and lines are to be made anew
	sortings int        // so far

	plans int // so far
	shape int // changes with what there is of machines, empty or not

	running  map[berth.JobID]*holder
	siblings map[berth.JobID]int     // of them, by parent
	stopping map[berth.JobID]*holder // those of them that were told to stop
	on       map[berth.MachineID]*stints
	earmarks []Earmark

	profile  profile
	kinds    []*kind // only appended to, until the profile changes
	byKey    map[string]*kind
	stale    bool   // the profile has changed: kinds are to be made anew
	numbers  int    // of kinds there ever were
	key      []byte // buffers of assign
	variants []variant

	stocks stocks

	mix   *Mix
	fleet *fleet         // once a plan has asked for it
	owned berth.Capacity // of the placeable machines

	later     alarms // jobs that are not eligible yet
	deadlines alarms // waiting jobs with a queue deadline
}

// NewSnapshot returns an empty snapshot.
func NewSnapshot() *Snapshot {
	return &Snapshot{
		nodes:    map[berth.MachineID]*node{},
		jobs:     map[berth.JobID]*entry{},
		classes:  map[string]*class{},
		tenants:  map[berth.TenantID]Tenant{},
		tallies:  map[berth.TenantID]*tally{},
		running:  map[berth.JobID]*holder{},
		siblings: map[berth.JobID]int{},
		stopping: map[berth.JobID]*holder{},
		on:       map[berth.MachineID]*stints{},
		unsorted: true,
		shape:    1,
		byKey:    map[string]*kind{},
		mix:      NewMix(),
		later: byTime(
			func(e *entry) time.Time { return e.EligibleAt },
			func(e *entry) *position { return &e.later },
		),
		deadlines: byTime(
			func(e *entry) time.Time { return e.QueueDeadline },
			func(e *entry) *position { return &e.deadline },
		),
	}
}

// Machines returns how many machines there are.
func (s *Snapshot) Machines() int { return len(s.nodes) }

// Jobs returns how many jobs wait, held ones included.
func (s *Snapshot) Jobs() int { return len(s.jobs) }

// Machine returns a machine by id.
func (s *Snapshot) Machine(id berth.MachineID) (Machine, bool) {
	if n := s.nodes[id]; n != nil {
		return n.Machine, true
	}
	return Machine{}, false
}

// Job returns a waiting job by id.
func (s *Snapshot) Job(id berth.JobID) (Job, bool) {
	if e := s.jobs[id]; e != nil {
		return e.Job, true
	}
	return Job{}, false
}

// EachJob calls f with every waiting job, in no order.
func (s *Snapshot) EachJob(f func(Job)) {
	for _, e := range s.waiting {
		f(e.Job)
	}
}

// EachMachine calls f with every machine, in no order.
func (s *Snapshot) EachMachine(f func(Machine)) {
	for _, n := range s.nodes {
		f(n.Machine)
	}
}

// Mix returns what the jobs seen so far ask for.
func (s *Snapshot) Mix() *Mix { return s.mix }

// UseMix replaces what the jobs seen so far ask for: by what is known of them,
// or by what another snapshot had learned.
func (s *Snapshot) UseMix(m *Mix) {
	s.mix, s.fleet = m, nil
	for _, id := range s.machineIDs() {
		s.nodes[id].group = nil
	}
	for _, k := range s.kinds {
		k.groups, k.taken = nil, nil
	}
	for _, a := range m.shapes {
		s.look(a.class)
	}
}

// HasClass reports whether the class is defined.
func (s *Snapshot) HasClass(name string) bool { return s.classes[name] != nil }

// DefineClass tells what the jobs of a class ask for. A class is defined before
// its first job and does not change.
func (s *Snapshot) DefineClass(name string, r berth.Request) {
	if s.classes[name] != nil {
		return
	}
	c := newClass(name, r)
	c.shape = shapeOf(r).Class()
	s.classes[name] = c
	s.enroll(c)
	s.look(c)
}

// look makes the kinds tell apart what the class looks at.
func (s *Snapshot) look(c *class) {
	if s.profile.merge(c.reads) {
		s.stale = true
	}
}

// UpsertMachine brings in a machine or its present row.
func (s *Snapshot) UpsertMachine(m Machine) {
	n := s.nodes[m.ID]
	if n == nil {
		n = &node{on: s.stintsOn(m.ID)}
		n.leaf.item, n.leaf.weight = n, weightOf(string(m.ID))
		s.nodes[m.ID] = n
	} else {
		s.unplant(n)
		s.disown(n)
	}
	if n.kind == nil || !n.sameKind(&m) || n.Total != m.Total || n.Placeable() != m.Placeable() {
		n.kind = nil
		s.shape++
	}
	n.Machine = m
	n.recount()
	s.plant(n)
	if n.Placeable() {
		s.owned = s.owned.Add(n.Total)
	}
}

// RemoveMachine takes a machine out. An unknown one is no error.
func (s *Snapshot) RemoveMachine(id berth.MachineID) {
	if n := s.nodes[id]; n != nil {
		s.unplant(n)
		s.disown(n)
		n.leave()
		s.shape++
		delete(s.nodes, id)
		if len(n.on.list) == 0 {
			delete(s.on, id)
		}
	}
	s.SetCache(id, nil)
}

func (s *Snapshot) disown(n *node) {
	if n.Placeable() {
		s.owned = s.owned.Sub(n.Total)
	}
}

// UpsertJob brings in a waiting job or its present row. Its class must be
// defined.
func (s *Snapshot) UpsertJob(j Job) {
	c := s.classes[j.Class]
	if c == nil {
		panic(fmt.Sprintf("placement: job %s is of class %q, which is not defined", j.ID, j.Class))
	}
	e := s.jobs[j.ID]
	if e == nil {
		e = s.admit(j.ID)
		s.mix.observe(c)
	} else {
		s.dequeue(e)
		e.tally.waiting--
	}
	s.tell(e, j, c)
}

// admit makes the entry of a job, which is to be told its row.
func (s *Snapshot) admit(id berth.JobID) *entry {
	e := &entry{slot: int32(len(s.waiting))}
	e.leaf.item, e.leaf.weight = e, weightOf(string(id))
	s.jobs[id], s.waiting = e, append(s.waiting, e)
	return e
}

// tell takes in the row of a job that is in no line and no heap.
func (s *Snapshot) tell(e *entry, j Job, c *class) {
	t := s.tally(j.Tenant)
	t.waiting++
	e.tell(j, c, t)
	e.rate(&s.policy, s.edge)
	s.enqueue(e)
}

// Expect tells how long a job that waits or holds room is now expected to run in
// all, and by what; see Job. An unknown one is no error.
func (s *Snapshot) Expect(id berth.JobID, t time.Duration, by string) {
	if e := s.jobs[id]; e != nil && (e.Expected != t || e.ExpectedBy != by) {
		s.dequeue(e)
		e.Expected, e.ExpectedBy = t, by
		e.rate(&s.policy, s.edge)
		s.enqueue(e)
	}
	if h := s.running[id]; h != nil {
		h.Expected = t
	}
}

// RemoveJob takes out a job that does not wait any more. An unknown one is no
// error.
func (s *Snapshot) RemoveJob(id berth.JobID) {
	if e := s.jobs[id]; e != nil {
		s.dequeue(e)
		e.tally.waiting--
		delete(s.jobs, id)
		last := len(s.waiting) - 1
		s.waiting[e.slot], s.waiting[last].slot = s.waiting[last], e.slot
		s.waiting[last], s.waiting = nil, s.waiting[:last]
	}
}

func (s *Snapshot) enqueue(e *entry) {
	if e.Held || e.assumed {
		return
	}
	s.later.set(e) // the next plan sees whether it is eligible
	if !e.QueueDeadline.IsZero() {
		s.deadlines.set(e)
	}
}

func (s *Snapshot) dequeue(e *entry) {
	s.later.clear(e)
	s.deadlines.clear(e)
	e.ready = false
	if e.line != nil {
		e.line.account.pull(e)
	}
}

// advance moves jobs whose time has come to their class's queue.
func (s *Snapshot) advance(now time.Time) {
	if s.unsorted {
		s.later.drain(now, func(e *entry) { e.ready = true })
		return
	}
	for e := s.later.due(now); e != nil; e = s.later.due(now) {
		s.later.clear(e)
		e.ready = true
		e.tally.account.push(e)
	}
}

// Assume takes decisions as made while their commit is under way: their room is
// taken and their jobs wait no more. Every Assume is followed by a Drop.
func (s *Snapshot) Assume(starts []berth.Start) {
	for _, start := range starts {
		if e := s.jobs[start.Job]; e != nil {
			s.dequeue(e)
			e.assumed = true
		}
		for _, g := range start.Ranks {
			s.change(g.Machine, func(n *node) { n.assumed = append(n.assumed, g) })
		}
	}
}

// Drop ends what Assume began. The caller has read the machines and jobs
// concerned again, or is about to.
func (s *Snapshot) Drop(starts []berth.Start) {
	for _, start := range starts {
		if e := s.jobs[start.Job]; e != nil && e.assumed {
			e.assumed = false
			s.enqueue(e)
		}
		for _, g := range start.Ranks {
			s.change(g.Machine, func(n *node) {
				i := slices.IndexFunc(n.assumed, func(o berth.Grant) bool { return sameGrant(o, g) })
				if i >= 0 {
					n.assumed = slices.Delete(n.assumed, i, i+1)
				}
			})
		}
	}
}

func sameGrant(a, b berth.Grant) bool {
	return a.Machine == b.Machine && a.Epoch == b.Epoch && a.Capacity == b.Capacity && slices.Equal(a.GPUs, b.GPUs)
}

func (s *Snapshot) change(id berth.MachineID, f func(*node)) {
	n := s.nodes[id]
	if n == nil {
		return
	}
	s.unplant(n)
	f(n)
	n.recount()
	s.plant(n)
}

// Ahead returns how many jobs that may start now come before this one in the
// queue, by the order of the latest plan and shares left aside; ok is false for
// a job that is not in it.
func (s *Snapshot) Ahead(id berth.JobID, now time.Time) (n int, ok bool) {
	s.sort(s.policy, now)
	s.advance(now)
	e := s.jobs[id]
	if e == nil {
		return 0, false
	}
	count := func(a *account) {
		for _, x := range a.lines {
			n += x.line.jobs.before(e)
		}
	}
	count(s.shared)
	for _, a := range s.accounts {
		count(a)
	}
	return n, true
}
