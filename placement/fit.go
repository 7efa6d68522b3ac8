package placement

import (
	"slices"
	"time"

	"berth"
)

// state is the part of a snapshot that placers read: the machines, and the caches
// of searches that outlive a plan.
type state struct {
	cluster *cluster
	packer  *packer
	caches  *caches
	memory  *memory
}

// newState returns the state of a cluster, and makes its packer the observer of
// the machines.
func newState(c *cluster) *state {
	s := &state{cluster: c, packer: newPacker(c), caches: newCaches(), memory: &memory{}}
	c.observer = s.packer
	return s
}

// placer searches machines for the members of one job after the other.
type placer struct {
	*moment
	cluster *cluster
	ledger  *ledger
	packer  *packer
	caches  *caches
	memory  *memory

	epoch    int                   // capacity only shrinks within an epoch
	last     map[*class]choice     // the best machine for the latest member of a class
	barrens  map[likeness][]*class // classes without room in this epoch
	byUsable bool                  // Pack is Worth, and the mix is known
	looks    int                   // costs read so far, see maxLooks
	scanned  int                   // groups passed over so far
	end      time.Time             // when the job being placed has ended; zero: unknown
	wants    []berth.DataKey       // data of the job being placed
	moved    []Near                // its members that were moved to their data
	stocks   []stock               // buffer
	nearby   []nearby              // buffer
}

// memory is the outcome of earlier searches by class. A plan or an epoch stamps
// each entry, so that a later one ignores it.
type memory struct {
	classes []classMemory // by class.number
	none    classMemory   // of classes without a number, always empty
}

// classMemory is the outcome of searches for one class.
type classMemory struct {
	closed  int       // the plan in which a job of the class had no room
	shorter time.Time // in that plan, only jobs that end before this are searched for
	barren  int       // the epoch in which no machine has room for a member
	never   int       // cluster.shape for which the class cannot fit at all
	ever    int       // cluster.shape for which it fits on empty machines
}

// of returns the memory of a class.
func (m *memory) of(c *class) *classMemory {
	if c.number == unnumbered {
		m.none = classMemory{}
		return &m.none
	}
	if c.number >= len(m.classes) {
		m.classes = append(m.classes, make([]classMemory, c.number+1-len(m.classes))...)
	}
	return &m.classes[c.number]
}

// reset forgets a class.
func (m *memory) reset(c *class) { *m.of(c) = classMemory{} }

// close notes that a job of the class that ends at the given time has no room.
func (m *classMemory) close(plan int, end time.Time) {
	if m.closed != plan {
		m.closed, m.shorter = plan, time.Time{}
	}
	if !end.IsZero() && (m.shorter.IsZero() || end.Before(m.shorter)) {
		m.shorter = end
	}
}

// reopen forgets that a class has no room, until the returned function is called:
// the ledger has more room for the moment.
func (r *placer) reopen(c *class) (again func()) {
	m := *r.memory.of(c)
	r.memory.of(c).closed, r.memory.of(c).barren = 0, 0
	return func() { r.memory.of(c).closed, r.memory.of(c).barren = m.closed, m.barren }
}

// closed reports whether a job of the class had no room in this plan.
func (r *placer) closed(c *class) bool { return r.memory.of(c).closed == r.number }

// close notes that a job of the class that ends at r.end has no room.
func (r *placer) close(c *class, end time.Time) { r.memory.of(c).close(r.number, end) }

// hopeless reports whether the search can be skipped for a job: another one of its
// class that ends no later had no room.
func (r *placer) hopeless(c *class) bool {
	m := r.memory.of(c)
	if m.closed != r.number {
		return false
	}
	return r.end.IsZero() || len(r.ledger.holds) == 0 || !m.shorter.IsZero() && !r.end.Before(m.shorter)
}

// refused reports whether a job of the class that ends no later than the given time
// had no room in this plan.
func (r *placer) refused(c *class, end time.Time) bool {
	m := r.memory.of(c)
	return m.closed == r.number && !m.shorter.IsZero() && !end.Before(m.shorter)
}

// widen begins an epoch: some machine has more room than before.
func (r *placer) widen() {
	r.epoch = r.cluster.nextPlan()
	clear(r.barrens)
}

// brief looks for a place in held capacity for one member of a job that ends at
// r.end, before the capacity is needed.
func (r *placer) brief(s *search) (choice, bool) {
	if r.end.IsZero() {
		return choice{}, false
	}
	for _, h := range r.ledger.holds {
		n := h.node
		if r.end.After(h.until) || !n.offered() || !s.allows(n) {
			continue
		}
		i := slices.IndexFunc(s.class.matches, func(m match) bool { return m.kind == n.kind })
		if i < 0 {
			continue
		}
		allowed := s.class.matches[i].devices
		x := r.ledger.sketch(n)
		x.add(h.grant)
		if devices, ok := s.class.fit(x, allowed); ok {
			return choice{node: n, allowed: allowed, grant: s.class.grant(n, devices), brief: true}, true
		}
	}
	return choice{}, false
}

// find chooses the machine and the devices for one member. group, unless empty,
// is the one that the machine must be of.
func (r *placer) find(c *class, avoid []berth.MachineID, group string) (choice, bool) {
	s := search{class: c, avoid: avoid, group: group}
	if found, ok := r.brief(&s); ok {
		return found, true
	}
	if m := r.memory.of(c); m.closed == r.number || m.barren == r.epoch {
		return choice{}, false
	}
	byUsable := r.byUsable && !c.spreads() && !r.spent()
	if last, ok := r.last[c]; ok && !c.spreads() && s.allows(last.node) && !(byUsable && last.node.kind.hasDevices()) {
		// Packing goes on where it left off: the machine was the best choice, and
		// has become tighter.
		if devices, ok := c.fit(last.node, last.allowed); ok {
			return choice{node: last.node, allowed: last.allowed, grant: c.grant(last.node, devices)}, true
		}
	}
	if byUsable {
		return r.cheapest(s)
	}
	return s.best()
}

func (c *class) spreads() bool { return c.request.Strategy == "spread" }

// groups lists what a gang may gather on: the machines of one group reach each
// other and have one value of same_label. It is one empty string where every
// machine will do.
func (r *placer) groups(c *class) []string {
	if !c.gathers() {
		return []string{""}
	}
	var values []string
	for _, m := range c.matches {
		if v := c.groupOf(m.kind.sample); !slices.Contains(values, v) {
			values = append(values, v)
		}
	}
	if len(values) == 1 && c.request.SameLabel == "" {
		return []string{""}
	}
	slices.Sort(values)
	return values
}

// gathers reports whether it matters on which machines members are together.
func (c *class) gathers() bool { return c.members() > 1 || c.request.SameLabel != "" }

// groupOf is the group of a machine, in which all members of a gang must be: its
// network, and its value of same_label.
func (c *class) groupOf(m *Machine) string {
	if c.members() == 1 {
		return m.Labels[c.request.SameLabel]
	}
	return m.Network + "\x00" + m.Labels[c.request.SameLabel]
}

// search is a look for the best machine for one member.
type search struct {
	class *class
	avoid []berth.MachineID
	group string
	plain bool // only machines without devices
}

// candidates is how many machines of a kind are compared. They come from tight
// to roomy, so the best is hardly ever further off.
const candidates = 8

func (s *search) best() (choice, bool) {
	for _, need := range s.class.needs() {
		var best choice
		var devices []int
		var least int64
		for _, m := range s.class.matches {
			if s.plain && m.kind.hasDevices() {
				continue
			}
			left := candidates
			m.kind.walk(need, s.class.spreads(), func(n *node) bool {
				if !s.allows(n) {
					return true
				}
				d, ok := s.class.fit(n, m.devices)
				if !ok {
					return true
				}
				if score := s.class.score(n, d); best.node == nil || score < least ||
					score == least && n.ID < best.node.ID {
					best, devices, least = choice{node: n, allowed: m.devices}, d, score
				}
				left--
				return left > 0
			})
		}
		if best.node != nil {
			best.grant = s.class.grant(best.node, devices)
			return best, true
		}
	}
	return choice{}, false
}

// allows applies the clauses that concern single machines.
func (s *search) allows(n *node) bool {
	return !slices.Contains(s.class.request.Avoid, n.ID) && !slices.Contains(s.avoid, n.ID) &&
		(s.group == "" || s.class.groupOf(&n.Machine) == s.group)
}

// needs is what to search for, in this order: a share goes into a device that
// is in use already, before one that is whole is broken.
func (c *class) needs() []need {
	r := c.request
	switch {
	case r.GPUs == 0:
		return []need{{Capacity: c.capacity}}
	case r.GPUMilli < 1000:
		return []need{{Capacity: c.capacity, part: r.GPUMilli}, {Capacity: c.capacity, whole: 1}}
	}
	return []need{{Capacity: c.capacity, whole: r.GPUs}}
}

// fit reports whether one member fits into what is free of the machine, and on
// which devices (positions in n.GPUs).
func (c *class) fit(n *node, allowed uint64) ([]int, bool) {
	if !c.capacity.Fits(n.free) {
		return nil, false
	}
	if c.request.GPUs == 0 {
		return nil, true
	}
	if c.request.GPUMilli < 1000 {
		return n.tightest(c.request.GPUMilli, allowed)
	}
	return n.whole(c.request.GPUs, allowed)
}

// fits reports whether one member fits into what is free of the machine.
func (c *class) fits(n *node, allowed uint64) bool {
	r := &c.request
	if !c.capacity.Fits(n.free) {
		return false
	}
	if r.GPUs == 0 {
		return true
	}
	count := 0
	for i, free := range n.gpus {
		if free >= r.GPUMilli && (free == whole || r.GPUMilli < whole) && n.admitted(i, allowed) {
			if count++; count == r.GPUs || r.GPUMilli < whole {
				return true
			}
		}
	}
	return false
}

// tightest picks the device on which a share leaves the least: one in use
// before a whole one.
func (n *node) tightest(milli int64, allowed uint64) ([]int, bool) {
	best := -1
	for i, free := range n.gpus {
		if free >= milli && n.admitted(i, allowed) && (best < 0 || free < n.gpus[best]) {
			best = i
		}
	}
	if best < 0 {
		return nil, false
	}
	return []int{best}, true
}

// whole picks devices of which nothing is used: those with the least memory
// that will do, then by index.
func (n *node) whole(count int, allowed uint64) ([]int, bool) {
	devices := make([]int, 0, count)
	for v := 0; v < len(n.kind.variants) && len(devices) < count; v++ {
		if v >= maxVariants || allowed&(1<<v) == 0 {
			continue
		}
		for i, free := range n.gpus {
			if free == 1000 && n.variants[i] == v && len(devices) < count {
				devices = append(devices, i)
			}
		}
	}
	slices.Sort(devices)
	return devices, len(devices) == count
}

func (n *node) admitted(device int, allowed uint64) bool {
	v := n.variants[device]
	return v < maxVariants && allowed&(1<<v) != 0
}

// grant returns the grant of one member on devices of a machine, by position.
func (c *class) grant(n *node, devices []int) berth.Grant {
	g := berth.Grant{Machine: n.ID, Epoch: n.Epoch, Capacity: c.capacity}
	for _, d := range devices {
		g.GPUs = append(g.GPUs, berth.DeviceShare{Index: n.GPUs[d].Index, Milli: c.request.GPUMilli})
	}
	return g
}

// newPlacer returns the placer of one plan.
func newPlacer(at *moment, s *state, l *ledger) *placer {
	return &placer{
		moment: at, cluster: s.cluster, ledger: l, packer: s.packer, caches: s.caches, memory: s.memory,
		epoch: at.number, last: map[*class]choice{}, barrens: map[likeness][]*class{},
	}
}
