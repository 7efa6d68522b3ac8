package placement

import (
	"slices"
	"time"

	"berth"
)

// A gang of which one rank has ended stops as a whole and starts again. Its own
// nominations keep the capacity of the other ranks meanwhile, so that only the
// missing rank needs a place. That capacity is idle, so the leader keeps it for a
// short time, and not while another gang could start with it: two gangs that each
// hold a part of the capacity that both need would wait for each other.

// maxYields bounds the blocked gangs that a plan compares with repairs.
const maxYields = 8

// withhold keeps the capacity of a gang with ranks that are about to stop. Their
// capacity is not free, and so needs no keeping.
func (r *nominations) withhold(n *node, m Earmark) {
	if m.Victim != "" {
		return
	}
	g := clamp(n, berth.Grant{Machine: n.ID, Epoch: n.Epoch, Capacity: m.Capacity, GPUs: m.GPUs})
	r.ledger.move(n, func() { n.subtract(g) })
}

// ownRoom returns the repair nominations of a job that are free now.
func (r *nominations) ownRoom(e *entry) []mark {
	var own []mark
	for _, m := range r.marks[e.ID] {
		if m.Repair && m.victim == nil {
			own = append(own, m)
		}
	}
	return own
}

// dropRepairs drops the nominations that ownRoom returns.
func (r *nominations) dropRepairs(e *entry) {
	r.marks[e.ID] = slices.DeleteFunc(r.marks[e.ID], func(m mark) bool { return m.Repair && m.victim == nil })
}

// former lists the places of a gang before its repair, as far as they are kept.
func former(marks []mark) (repair bool, list []site) {
	for _, m := range marks {
		repair = repair || m.Repair
		if m.Repair && m.victim == nil {
			list = append(list, site{m.node, m.grant})
		}
	}
	return repair, list
}

// yield returns the gangs that keep capacity with which a blocked one could start.
// It looks at the blocked gangs in queue order and stops at the first, so that the
// next plan decides the rest.
func (r *nominations) yield(blocked []*entry) []berth.JobID {
	for _, e := range blocked {
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
		return gangs
	}
	return nil
}

// fitsWith reports whether a job would have room with the capacity of other
// nominations and its own.
func (r *nominations) fitsWith(e *entry, others []mark) bool {
	c, start := e.class, r.ledger.mark()
	defer r.placer.reopen(c)()
	r.placer.end = time.Time{}
	own := r.marks[e.ID]
	r.lift(own)
	r.lift(others)
	fits := r.placer.fitsAnywhere(c)
	r.ledger.undo(start)
	r.restore(others)
	r.restore(own)
	return fits
}
