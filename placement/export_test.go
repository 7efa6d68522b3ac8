package placement

import (
	"maps"
	"time"

	"berth"
)

// Visits plans, and returns the number of kinds and machines that the searches of the plan have read. It
// measures the work of a plan on every machine alike.
func (p Planner) Visits(s *Snapshot, now time.Time) (Plan, int) {
	r := p.begin(s, now)
	defer r.finish()
	r.decideAll()
	return r.plan, r.placer.Visits
}

// Reserved is capacity of one machine that a plan reserves for one member of a blocked job.
type Reserved struct {
	Grant berth.Grant
	At    time.Time
	Until time.Time // zero: unknown
}

// Reserve plans, and returns the reserved starts by job with the capacity reserved for all of them.
func (p Planner) Reserve(s *Snapshot, now time.Time) (Plan, map[berth.JobID]time.Time, []Reserved) {
	r := p.begin(s, now)
	defer r.finish()
	r.decideAll()
	var list []Reserved
	for _, h := range r.ledger.Holds {
		for _, x := range r.reservations.On(h.Node) {
			if x.Firm {
				g := x.Grant
				g.Machine = h.Node.ID
				list = append(list, Reserved{g, x.At, x.Until})
			}
		}
	}
	return r.plan, maps.Clone(r.reservations.Starts), list
}
