package placement

import "time"

// Visits plans, and returns the number of kinds and machines that the searches of the plan have read. It
// measures the work of a plan on every machine alike.
func (p Planner) Visits(s *Snapshot, now time.Time) (Plan, int) {
	r := p.begin(s, now)
	defer r.finish()
	r.decideAll()
	return r.plan, r.placer.Visits
}
