package fit

import (
	"slices"
	"time"

	"berth"
	"berth/placement/cluster"
	"berth/spec"
)

// State is the part of a snapshot that placers read: the machines, and the caches
// of searches that outlive a plan.
type State struct {
	Cluster *cluster.Cluster
	Packer  *Packer
	Caches  *Caches
	Memory  *Memory
}

// NewState returns the state of a cluster, and makes its packer the observer of
// the machines.
func NewState(c *cluster.Cluster) *State {
	s := &State{Cluster: c, Packer: newPacker(c), Caches: newCaches(), Memory: &Memory{}}
	c.Observer = s.Packer
	return s
}

// Placer finds machines for the members of one job after the other, within one plan.
// It takes their capacity from the ledger.
type Placer struct {
	*cluster.Moment
	cluster *cluster.Cluster
	ledger  *cluster.Ledger
	packer  *Packer
	caches  *Caches
	memory  *Memory

	epoch    int                                   // capacity only shrinks within an epoch
	last     map[*cluster.Class]cluster.Choice     // the best machine for the latest member of a class
	barrens  map[cluster.Likeness][]*cluster.Class // classes without room in this epoch
	ByUsable bool                                  // Pack is LeastFragmentation, and the mix is known
	looks    int                                   // costs read so far, see maxLooks
	scanned  int                                   // groups passed over so far
	End      time.Time                             // when the job being placed has ended; zero: unknown
	Wants    []spec.DataKey                        // data of the job being placed
	Moved    []Near                                // its members that were moved to their data
	stocks   []stock                               // buffer
	nearby   []nearby                              // buffer
}

// Memory caches the outcome of failed searches by class. Each entry names its plan or
// epoch, so that a later one ignores it.
type Memory struct {
	classes []classMemory // by Class.Number
	none    classMemory   // of classes without a number, always empty
}

// classMemory is the outcome of searches for one class.
type classMemory struct {
	closed  int       // the plan in which a job of the class had no room
	shorter time.Time // in that plan, only jobs that end before this are searched for
	barren  int       // the epoch in which no machine has room for a member
	never   int       // Cluster.Shape for which the class cannot fit at all
	ever    int       // Cluster.Shape for which it fits on empty machines
}

// of returns the memory of a class.
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

// Reset forgets a class.
func (m *Memory) Reset(c *cluster.Class) { *m.of(c) = classMemory{} }

// close notes that a job of the class that ends at the given time has no room.
func (m *classMemory) close(plan int, end time.Time) {
	if m.closed != plan {
		m.closed, m.shorter = plan, time.Time{}
	}
	if !end.IsZero() && (m.shorter.IsZero() || end.Before(m.shorter)) {
		m.shorter = end
	}
}

// Reopen forgets that a class has no room, until the caller calls again. It serves
// trials with more free capacity than the plan has.
func (r *Placer) Reopen(c *cluster.Class) (again func()) {
	m := *r.memory.of(c)
	r.memory.of(c).closed, r.memory.of(c).barren = 0, 0
	return func() { r.memory.of(c).closed, r.memory.of(c).barren = m.closed, m.barren }
}

// Closed reports whether a job of the class had no room in this plan.
func (r *Placer) Closed(c *cluster.Class) bool { return r.memory.of(c).closed == r.Number }

// Close notes that a job of the class that ends at r.End has no room.
func (r *Placer) Close(c *cluster.Class, end time.Time) { r.memory.of(c).close(r.Number, end) }

// Hopeless reports whether the search for a job would fail: another job of its class
// that ends no later had no room in this plan.
func (r *Placer) Hopeless(c *cluster.Class) bool {
	m := r.memory.of(c)
	if m.closed != r.Number {
		return false
	}
	return r.End.IsZero() || len(r.ledger.Holds) == 0 || !m.shorter.IsZero() && !r.End.Before(m.shorter)
}

// Refused reports whether a job of the class that ends no later than the given time
// had no room in this plan.
func (r *Placer) Refused(c *cluster.Class, end time.Time) bool {
	m := r.memory.of(c)
	return m.closed == r.Number && !m.shorter.IsZero() && !end.Before(m.shorter)
}

// Widen starts an epoch: some machine has more room than before.
func (r *Placer) Widen() {
	r.epoch = r.cluster.NextPlan()
	clear(r.barrens)
}

// Brief finds a place in held capacity for one member of a job that ends at r.End,
// before the capacity is needed.
func (r *Placer) Brief(s *Search) (cluster.Choice, bool) {
	if r.End.IsZero() {
		return cluster.Choice{}, false
	}
	for _, h := range r.ledger.Holds {
		n := h.Node
		if r.End.After(h.Until) || !n.Offered() || !s.Allows(n) {
			continue
		}
		i := slices.IndexFunc(s.Class.Matches, func(m cluster.Match) bool { return m.Kind == n.Kind })
		if i < 0 {
			continue
		}
		allowed := s.Class.Matches[i].Devices
		x := r.ledger.Sketch(n)
		x.Add(h.Grant)
		if devices, ok := Devices(s.Class, x, allowed); ok {
			return cluster.Choice{Node: n, Allowed: allowed, Grant: Grant(s.Class, n, devices), Brief: true}, true
		}
	}
	return cluster.Choice{}, false
}

// Find chooses the machine and the devices for one member. A machine of another group
// does not count, unless group is empty.
func (r *Placer) Find(c *cluster.Class, avoid []berth.MachineID, group string) (cluster.Choice, bool) {
	s := Search{Class: c, avoid: avoid, Group: group}
	if found, ok := r.Brief(&s); ok {
		return found, true
	}
	if m := r.memory.of(c); m.closed == r.Number || m.barren == r.epoch {
		return cluster.Choice{}, false
	}
	byUsable := r.ByUsable && !spreads(c) && !r.spent()
	if last, ok := r.last[c]; ok && !spreads(c) && s.Allows(last.Node) && !(byUsable && last.Node.Kind.HasDevices()) {
		// Packing goes on where it left off: the machine was the best choice, and
		// has become tighter.
		if devices, ok := Devices(c, last.Node, last.Allowed); ok {
			return cluster.Choice{Node: last.Node, Allowed: last.Allowed, Grant: Grant(c, last.Node, devices)}, true
		}
	}
	if byUsable {
		return r.cheapest(s)
	}
	return s.best()
}

// Groups lists the groups of machines for a gang: the machines of one group reach each
// other and have one value of same_label. The list is one empty string if members may
// be on any machines.
func (r *Placer) Groups(c *cluster.Class) []string {
	if !gathers(c) {
		return []string{""}
	}
	var values []string
	for _, m := range c.Matches {
		if v := GroupOf(c, m.Kind.Sample); !slices.Contains(values, v) {
			values = append(values, v)
		}
	}
	if len(values) == 1 && c.Request.SameLabel == "" {
		return []string{""}
	}
	slices.Sort(values)
	return values
}

// Search finds the best machine for one member.
type Search struct {
	Class *cluster.Class
	avoid []berth.MachineID
	Group string
	plain bool // only machines without devices
}

// candidates is how many machines of a kind are compared. They come from tight
// to roomy, so the best is hardly ever further off.
const candidates = 8

func (s *Search) best() (cluster.Choice, bool) {
	for _, need := range Needs(s.Class) {
		var best cluster.Choice
		var devices []int
		var least int64
		for _, m := range s.Class.Matches {
			if s.plain && m.Kind.HasDevices() {
				continue
			}
			left := candidates
			m.Kind.Walk(need, spreads(s.Class), func(n *cluster.Node) bool {
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

// Allows applies the clauses about single machines: machines to avoid, and the group.
func (s *Search) Allows(n *cluster.Node) bool {
	return !slices.Contains(s.Class.Request.Avoid, n.ID) && !slices.Contains(s.avoid, n.ID) &&
		(s.Group == "" || GroupOf(s.Class, &n.Machine) == s.Group)
}

// NewPlacer returns the placer of one plan.
func NewPlacer(at *cluster.Moment, s *State, l *cluster.Ledger) *Placer {
	return &Placer{
		Moment: at, cluster: s.Cluster, ledger: l, packer: s.Packer, caches: s.Caches, memory: s.Memory,
		epoch: at.Number, last: map[*cluster.Class]cluster.Choice{}, barrens: map[cluster.Likeness][]*cluster.Class{},
	}
}
