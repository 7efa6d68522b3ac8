package fit

import (
	"slices"
	"time"

	"berth"
	"berth/placement/cluster"
	"berth/spec"
)

// State is the part of a snapshot that placers read: the machines, and the search caches
// that outlive a plan.
type State struct {
	Cluster *cluster.Cluster
	Packer  *Packer
	Caches  *Caches
	Memory  *Memory
}

// NewState returns the state of a cluster, and registers its packer as the observer of the
// machines.
func NewState(c *cluster.Cluster) *State {
	s := &State{Cluster: c, Packer: newPacker(c), Caches: newCaches(), Memory: &Memory{}}
	c.Observer = s.Packer
	return s
}

// Placer finds machines for the members of one job after the other, within one plan, and
// takes their capacity from the ledger.
//
// A Placer remembers failed searches. Within an epoch free capacity only shrinks, so a
// class that had no room has none later; Widen starts a new epoch.
type Placer struct {
	*cluster.Moment
	cluster *cluster.Cluster
	ledger  *cluster.Ledger
	packer  *Packer
	caches  *Caches
	memory  *Memory

	epoch    int                                   // number of the present epoch
	last     map[*cluster.Class]cluster.Choice     // best machine for the latest member of a class
	barrens  map[cluster.Likeness][]*cluster.Class // classes without room in this epoch
	ByUsable bool                                  // LeastFragmentation, and the mix is known
	looks    int                                   // costs read so far; see maxLooks
	Visits   int                                   // machines and kinds that filters of gangs and searches have read
	scanned  int                                   // groups passed over so far; see looksPerScan
	End      time.Time                             // end of the present job; zero: unknown
	Over     time.Time                             // the same, also in trials without held capacity
	Latest   time.Time                             // when the present job starts at the latest; zero: now
	Far      time.Time                             // first close of a machine whose window is not near
	Wants    []spec.DataKey                        // data of the present job
	Moved    []Near                                // members that moved to their job's data
	stocks   []stock                               // buffer
	nearby   []nearby                              // buffer
}

// Memory caches failed searches by class. Each entry holds the number of its plan, epoch or
// set of machines, so that later ones ignore it and nothing needs clearing.
type Memory struct {
	classes []classMemory // by Class.Number
	none    classMemory   // for classes without a number; always empty
}

// classMemory is the outcome of the searches for one class.
type classMemory struct {
	closed   int       // plan in which a job of the class had no room
	shorter  time.Time // in that plan, only jobs that end before this are searched; zero: none
	crossed  int       // plan in which a job that may run into a maintenance window had no room
	crossing time.Time // in that plan, only such jobs that end before this are searched
	barren   int       // epoch in which no machine has room for a member
	roomy    []string  // see Roomy
	roomyAt  int       // Cluster.Shape of roomy
	never    int       // Cluster.Shape in which the class does not fit on empty machines
	ever     int       // Cluster.Shape in which the class fits on empty machines
}

// of returns the memory of a class. Plans remember nothing about a class without a number.
func (m *Memory) of(c *cluster.Class) *classMemory {
	if c.Number == cluster.Unnumbered {
		m.none = classMemory{}
		return &m.none
	}
	if c.Number >= len(m.classes) {
		m.classes = append(m.classes, make([]classMemory, c.Number+1-len(m.classes))...)
	}
	return &m.classes[c.Number]
}

// Reset clears the memory of a class.
func (m *Memory) Reset(c *cluster.Class) { *m.of(c) = classMemory{} }

// close records that a job of the class that ends at end had no room in a plan. A zero end
// means that the job has no time limit; such a failure says nothing about held capacity,
// which only jobs with an end can use.
func (m *classMemory) close(plan int, end time.Time) {
	if m.closed != plan {
		m.closed, m.shorter = plan, time.Time{}
	}
	if !end.IsZero() && (m.shorter.IsZero() || end.Before(m.shorter)) {
		m.shorter = end
	}
}

// Reopen clears the record that a class and its parts have no room, until the caller calls again. Trials
// with more free capacity than the plan use it.
func (r *Placer) Reopen(c *cluster.Class) (again func()) {
	m := *r.memory.of(c)
	r.memory.of(c).closed, r.memory.of(c).barren = 0, 0
	again = func() { r.memory.of(c).closed, r.memory.of(c).barren = m.closed, m.barren }
	for _, p := range c.Unlike() {
		whole, part := again, r.Reopen(p.Class)
		again = func() { whole(); part() }
	}
	return again
}

// Closed reports whether a job of the class had no room in this plan.
func (r *Placer) Closed(c *cluster.Class) bool { return r.memory.of(c).closed == r.Number }

// Close records that a job of the class that ends at the given time had no room; zero: no
// known end.
func (r *Placer) Close(c *cluster.Class, end time.Time) { r.memory.of(c).close(r.Number, end) }

// Hopeless reports whether the search for the present job would fail: another job of its
// class that ends no later had no room in this plan. A shorter job may still fit into held
// capacity; see Brief.
func (r *Placer) Hopeless(c *cluster.Class) bool {
	m := r.memory.of(c)
	if m.closed != r.Number {
		return !r.Over.IsZero() && r.Stuck(c, r.Over)
	}
	return r.End.IsZero() || len(r.ledger.Holds) == 0 || !m.shorter.IsZero() && !r.End.Before(m.shorter)
}

// Refused reports whether a job of the class with an end no later than the given time had
// no room in this plan, not even in held capacity.
func (r *Placer) Refused(c *cluster.Class, end time.Time) bool {
	m := r.memory.of(c)
	return m.closed == r.Number && !m.shorter.IsZero() && !end.Before(m.shorter)
}

// Widen starts an epoch, after some machine has gained free capacity.
func (r *Placer) Widen() {
	r.epoch = r.cluster.NextPlan()
	clear(r.barrens)
}

// Brief finds a place for one member in capacity that is held for reserved starts, if the
// job ends (at End) before that capacity is needed. This is backfill in time. Jobs without
// a known end never use held capacity.
func (r *Placer) Brief(s *Search) (cluster.Choice, bool) {
	if r.End.IsZero() {
		return cluster.Choice{}, false
	}
	for _, h := range r.ledger.Holds {
		n := h.Node
		if r.End.After(h.Until) || !n.Offered() || !s.Allows(n) {
			continue
		}
		m, ok := s.Class.MatchOf(n.Kind)
		if !ok {
			continue
		}
		allowed := m.Devices
		// Tried on a copy of the machine with its held capacity added.
		x := r.ledger.Sketch(n)
		h.Lift(x)
		if devices, ok := Devices(s.Class, x, allowed); ok {
			return cluster.Choice{Node: n, Allowed: allowed, Grant: Grant(s.Class, n, devices), Brief: true}, true
		}
	}
	return cluster.Choice{}, false
}

// BriefAny reports whether some member of the class has a place in held capacity, see Brief.
func (r *Placer) BriefAny(c *cluster.Class) bool {
	return slices.ContainsFunc(c.Parts, func(p cluster.Part) bool {
		_, ok := r.Brief(&Search{Class: p.Class})
		return ok
	})
}

// Find chooses the machine and the devices for one member. A group other than "" restricts
// the machines. Held capacity comes first, which leaves the other free capacity to other
// jobs.
func (r *Placer) Find(c *cluster.Class, avoid []berth.MachineID, group string) (cluster.Choice, bool) {
	s := r.search(c, avoid, group)
	if found, ok := r.Brief(&s); ok {
		return found, true
	}
	if m := r.memory.of(c); m.closed == r.Number || m.barren == r.epoch {
		return cluster.Choice{}, false
	}
	byUsable := r.ByUsable && !spreads(c) && !r.spent()
	if last, ok := r.last[c]; ok && !spreads(c) && s.Allows(last.Node) && !(byUsable && last.Node.Kind.HasDevices()) {
		// Packing continues where it left off: the machine was the best choice, and has
		// become tighter since. The rule LeastFragmentation compares all groups again,
		// since costs on a machine change with each member.
		if devices, ok := Devices(c, last.Node, last.Allowed); ok {
			return cluster.Choice{Node: last.Node, Allowed: last.Allowed, Grant: Grant(c, last.Node, devices)}, true
		}
	}
	if byUsable {
		return r.cheapest(s)
	}
	return s.best()
}

// Groups returns the groups of machines to try for a job, sorted. Machines of one group
// reach each other and have one value of same_label. The result is one empty string if
// members may be on any machines.
func (r *Placer) Groups(c *cluster.Class) []string {
	if !c.Gathers() {
		return anyGroup
	}
	names := c.GroupNames()
	if len(names) == 1 && c.Request.SameLabel == "" {
		return anyGroup
	}
	return names
}

// anyGroup stands for all machines.
var anyGroup = []string{""}

// Search describes a search for one member: its class and the machines to leave out.
type Search struct {
	Class *cluster.Class
	avoid []berth.MachineID // machines to leave out
	Group string            // group of the machines; "": any
	plain bool              // only machines without devices
	job   bool              // the search is for a job
	over  time.Time         // end of that job; zero: it has no time limit
	start time.Time         // latest start of that job; zero: now

	visits *int // Placer.Visits; nil: not counted
}

// candidates is the number of machines per kind that best compares. The walk goes from
// tight to roomy, so the best machine is rarely further on.
const candidates = 8

// best returns the machine with the lowest score, the lowest id among equals. All kinds
// compete for the first need; the second need counts only if no machine satisfies the
// first.
func (s *Search) best() (cluster.Choice, bool) {
	for _, need := range Needs(s.Class) {
		var best cluster.Choice
		var devices []int
		var least int64
		for _, m := range s.Matches() {
			if s.plain && m.Kind.HasDevices() {
				continue
			}
			left := candidates
			s.visit()
			m.Kind.Walk(need, spreads(s.Class), func(n *cluster.Node) bool {
				s.visit()
				if !s.Allows(n) {
					return true
				}
				d, ok := Devices(s.Class, n, m.Devices)
				if !ok {
					return true
				}
				if score := score(s.Class, n, d); best.Node == nil || score < least ||
					score == least && n.ID < best.Node.ID {
					best, devices, least = cluster.Choice{Node: n, Allowed: m.Devices}, d, score
				}
				left--
				return left > 0
			})
		}
		if best.Node != nil {
			best.Grant = Grant(s.Class, best.Node, devices)
			return best, true
		}
	}
	return cluster.Choice{}, false
}

// Allows reports whether the request allows a single machine: the machine must be in the
// group, and not among the machines to avoid, and must not close before the end of the job.
func (s *Search) Allows(n *cluster.Node) bool {
	return (n.Window == nil || s.clears(n)) &&
		!slices.Contains(s.Class.Request.Avoid, n.ID) && !slices.Contains(s.avoid, n.ID) &&
		(s.Group == "" || s.Class.InGroup(&n.Machine, s.Group))
}

// visit counts a kind or a machine that the search has read.
func (s *Search) visit() {
	if s.visits != nil {
		*s.visits++
	}
}

// Matches lists the kinds with machines of the search's group.
func (s *Search) Matches() []cluster.Match { return s.Class.MatchesIn(s.Group) }

// NewPlacer returns the placer of one plan.
func NewPlacer(at *cluster.Moment, s *State, l *cluster.Ledger) *Placer {
	return &Placer{
		Moment: at, cluster: s.Cluster, ledger: l, packer: s.Packer, caches: s.Caches, memory: s.Memory,
		epoch: at.Number, last: map[*cluster.Class]cluster.Choice{}, barrens: map[cluster.Likeness][]*cluster.Class{},
	}
}
