package preempt

import (
	"slices"
	"time"

	"berth"
	"berth/placement/cluster"
	"berth/placement/fit"
	"berth/placement/queue"
)

// A gang of which one member has ended stops as a whole and starts again. Its own
// nominations keep the capacity of the other members meanwhile, so that only the
// missing member needs a place. That capacity is idle, so the leader keeps it for a
// short time, and not while another gang could start with it: two gangs that each
// hold a part of the capacity that both need would wait for each other.

// MaxYields bounds the blocked gangs that a plan compares with repairs.
const MaxYields = 8

// withhold keeps the capacity of a gang with members that are about to stop. Their
// capacity is not free, and so needs no keeping.
func (r *Nominations) withhold(n *cluster.Node, m Nomination) {
	if m.Victim != "" {
		return
	}
	g := cluster.Clamp(n, berth.Grant{Machine: n.ID, Epoch: n.Epoch, Capacity: m.Capacity, GPUs: m.GPUs})
	r.ledger.Move(n, func() { n.Subtract(g) })
}

// ownRoom returns the repair nominations of a job that are free now.
func (r *Nominations) ownRoom(e *queue.Entry) []Mark {
	var own []Mark
	for _, m := range r.Marks[e.ID] {
		if m.Repair && m.Holder == nil {
			own = append(own, m)
		}
	}
	return own
}

// dropRepairs drops the nominations that ownRoom returns.
func (r *Nominations) dropRepairs(e *queue.Entry) {
	r.Marks[e.ID] = slices.DeleteFunc(r.Marks[e.ID], func(m Mark) bool { return m.Repair && m.Holder == nil })
}

// Former lists the places of a gang before its repair that are still kept for it.
func Former(marks []Mark) (repair bool, list []fit.Site) {
	for _, m := range marks {
		repair = repair || m.Repair
		if m.Repair && m.Holder == nil {
			list = append(list, fit.Site{Node: m.node, Grant: m.grant})
		}
	}
	return repair, list
}

// Yield returns the gangs that keep capacity with which a blocked one could start.
// It looks at the blocked gangs in queue order and stops at the first, so that the
// next plan decides the rest.
func (r *Nominations) Yield(blocked []*queue.Entry) []berth.JobID {
	for _, e := range blocked {
		var others []Mark
		var gangs []berth.JobID
		for id, marks := range r.Marks {
			if id == e.ID {
				continue
			}
			for _, m := range marks {
				if !m.Repair || m.Holder != nil {
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
func (r *Nominations) fitsWith(e *queue.Entry, others []Mark) bool {
	c, start := e.Class, r.ledger.Mark()
	defer r.placer.Reopen(c)()
	r.placer.End = time.Time{}
	own := r.Marks[e.ID]
	r.Lift(own)
	r.Lift(others)
	fits := r.placer.FitsAnywhere(c)
	r.ledger.Undo(start)
	r.Restore(others)
	r.Restore(own)
	return fits
}
