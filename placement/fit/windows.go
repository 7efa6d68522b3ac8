package fit

import (
	"time"

	"berth"
	"berth/placement/cluster"
)

// SearchFor returns the search for a member of the present job.
func (r *Placer) SearchFor(c *cluster.Class, group string) Search {
	return r.search(c, nil, group)
}

// search returns the search for a member of the present job.
func (r *Placer) search(c *cluster.Class, avoid []berth.MachineID, group string) Search {
	return Search{Class: c, avoid: avoid, Group: group, job: true, over: r.Over, start: r.Latest, visits: &r.Visits}
}

// clears reports whether the job of a search keeps clear of the maintenance window of a machine. The
// hold on a near window does not cover capacity that is nominated for the job.
func (s *Search) clears(n *cluster.Node) bool {
	if s.job && s.over.IsZero() {
		return !n.Near && !s.start.After(n.Window.Lead)
	}
	return !s.over.After(n.Window.Closes)
}

// crosses reports whether the present job may run into the maintenance window of some machine that
// is still open to other jobs, or may start there too late. Its failure then says nothing about other
// jobs of its class.
func (r *Placer) crosses() bool {
	return !r.Far.IsZero() && (r.Far.Before(r.Over) || !r.Latest.IsZero())
}

// Fail records that the present job, of the class, had no room in this plan.
func (r *Placer) Fail(c *cluster.Class) {
	m := r.memory.of(c)
	if !r.crosses() || m.barren == r.epoch {
		r.Close(c, r.End)
		return
	}
	if m.crossed != r.Number || r.Over.Before(m.crossing) {
		m.crossed, m.crossing = r.Number, r.Over
	}
}

// Stuck reports whether a job of the class that ends at the given time would fail: a job that ends no
// later had no room on the machines that it may use because of maintenance windows.
func (r *Placer) Stuck(c *cluster.Class, end time.Time) bool {
	if r.Far.IsZero() || !r.Far.Before(end) {
		return false
	}
	m := r.memory.of(c)
	return m.crossed == r.Number && !end.Before(m.crossing)
}
