package preempt

import (
	"slices"
	"time"

	"berth"
	"berth/placement/backfill"
	"berth/placement/cluster"
	"berth/placement/fit"
	"berth/placement/queue"
)

// A gang stops as a whole when one of its members has ended, and starts again. Meanwhile
// its own nominations keep the capacity of the other members, so that only the missing
// member needs a place. That capacity is idle, so the leader keeps it only for a short
// time, and not while another gang could start with it: two gangs that each hold a part of
// the capacity that both need would deadlock.

// MaxYields is the number of blocked gangs for which a plan checks whether repairs must
// yield.
const MaxYields = 8

// withhold keeps the capacity of a gang under repair while some of its members still stop: the
// free part from now on, and the part of these members from their end until the nomination
// expires.
func (r *Nominations) withhold(n *cluster.Node, m Nomination) {
	g := berth.Grant{Machine: n.ID, Epoch: n.Epoch, Capacity: m.Capacity, GPUs: m.GPUs}
	g = r.cluster.GrantTo(g, r.cluster.Running[m.For].Tenant)
	if m.Victim == "" {
		g = cluster.Clamp(n, g)
		r.ledger.Move(n, func() { n.Subtract(g) })
		return
	}
	end, ok := r.reservations.Ends(r.cluster.Running[m.For])
	if from := r.From(end); ok && n.Placeable() && (m.ExpiresAt.IsZero() || m.ExpiresAt.After(from)) {
		r.reservations.Keep(n, backfill.Reservation{At: from, Grant: g, Until: m.ExpiresAt})
	}
}

// Former returns the sites of a gang before its repair that are still kept. repair reports
// whether the job is a gang under repair.
func Former(marks []Mark) (repair bool, list []fit.Site) {
	for _, m := range marks {
		repair = repair || m.Repair
		if m.Repair && m.Holder == nil {
			list = append(list, fit.Site{Node: m.node, Grant: m.grant})
		}
	}
	return repair, list
}

// Yield returns the gangs under repair that must give up their kept capacity, because a
// blocked gang could start with that capacity. It tries the blocked gangs in queue order
// and stops at the first that fits, so that the next plan decides the rest.
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

// fitsWith reports whether a job would have room with its own nominated capacity and that
// of other nominations. It reverts all changes.
func (r *Nominations) fitsWith(e *queue.Entry, others []Mark) bool {
	c, start := e.Class, r.ledger.Mark()
	defer r.placer.Reopen(c)()
	r.placer.End, r.placer.Over = time.Time{}, time.Time{}
	if e.TimeLimit > 0 {
		r.placer.Over = r.Now.Add(e.TimeLimit)
	}
	own := r.Marks[e.ID]
	r.Lift(own)
	r.Lift(others)
	fits := r.placer.FitsAnywhere(c)
	r.ledger.Undo(start)
	r.Restore(others)
	r.Restore(own)
	return fits
}
