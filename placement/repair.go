package placement

import (
	"slices"
	"time"

	"berth"
)

// A gang of which one rank has ended stops as a whole, and begins anew. The room
// of its other ranks is kept for it meanwhile, by earmarks of its own: so only
// the hole has to be found. That room lies idle, so it is kept for a short time,
// and not while another gang could begin with it: two gangs that each hold a
// part of what both need would only wait for each other.

// maxYields bounds for how many blocked gangs a plan looks at what others keep.
const maxYields = 8

// withhold keeps the room of a gang whose last ranks are about to stop. What those
// hold is not free, and so needs no keeping.
func (r *run) withhold(n *node, m Earmark) {
	if m.Victim != "" {
		return
	}
	g := clamp(n, berth.Grant{Machine: n.ID, Epoch: n.Epoch, Capacity: m.Capacity, GPUs: m.GPUs})
	r.move(n, func() { n.subtract(g) })
}

// ownRoom is what is kept of a gang's own room, and it could have at once.
func (r *run) ownRoom(e *entry) []mark {
	var own []mark
	for _, m := range r.marks[e.ID] {
		if m.Repair && m.victim == nil {
			own = append(own, m)
		}
	}
	return own
}

// stay places a gang where it was before, as far as room is kept for it there,
// and the rest of its members anywhere.
func (r *run) stay(c *class, avoid []berth.MachineID, group string, marks []mark) ([]berth.Grant, bool) {
	if !slices.ContainsFunc(marks, func(m mark) bool { return m.Repair }) {
		return r.gang(c, avoid, group)
	}
	start := len(r.taken)
	ranks := make([]berth.Grant, 0, c.members())
	look := search{class: c, avoid: avoid, group: group}
	var nothing berth.Capacity
	for _, m := range marks {
		n := m.node
		i := slices.IndexFunc(c.matches, func(x match) bool { return x.kind == n.kind })
		if !m.Repair || m.victim != nil || i < 0 || n.leaf.size == 0 || !look.allows(n) {
			continue
		}
		allowed := c.matches[i].devices
		left := (amount{}).plus(n, m.grant, 1)
		for len(ranks) < c.members() {
			devices, ok := c.fit(n, allowed)
			if !ok {
				break
			}
			g := c.grant(n, devices)
			left = left.plus(n, g, -1)
			if !nothing.Fits(left.Capacity) {
				break // the rest of the machine is as good as any other
			}
			r.take(choice{node: n, allowed: allowed, grant: g})
			ranks = append(ranks, g)
		}
	}
	for len(ranks) < c.members() {
		found, ok := r.find(c, avoid, group)
		if !ok {
			r.undo(start)
			return nil, false
		}
		r.take(found)
		ranks = append(ranks, found.grant)
	}
	return ranks, true
}

// yield lists the gangs that keep room with which another one could begin. It
// looks at those that are blocked in the order of the queue, and once some must
// yield leaves the rest to the next plan.
func (r *run) yield() {
	for _, e := range r.blocked {
		var others []mark
		var gangs []berth.JobID
		for id, marks := range r.marks {
			if id == e.ID {
				continue
			}
			for _, m := range marks {
				if !m.Repair || m.victim != nil {
					continue
				}
				others = append(others, m)
				if !slices.Contains(gangs, id) {
					gangs = append(gangs, id)
				}
			}
		}
		if len(others) == 0 || !r.fitsWith(e, others) {
			continue
		}
		slices.Sort(gangs)
		r.plan.Yield = gangs
		return
	}
}

// fitsWith reports whether a job would have room if it were given what is kept
// by marks, beside what is kept for itself.
func (r *run) fitsWith(e *entry, marks []mark) bool {
	c, start := e.class, len(r.taken)
	defer c.open()()
	r.end = time.Time{}
	own := r.marks[e.ID]
	r.lift(own)
	r.lift(marks)
	fits := false
	for _, group := range r.groups(c) {
		if _, fits = r.gang(c, nil, group); fits {
			break
		}
	}
	r.undo(start)
	r.restore(marks)
	r.restore(own)
	return fits
}
