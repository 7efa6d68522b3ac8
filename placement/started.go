package placement

import (
	"slices"
	"time"

	"berth"
)

// started makes what was started count as running for the rest of the plan.
func (r *run) started(e *entry, start berth.Start) {
	marks := r.marks[e.ID]
	if len(marks) > 0 {
		for _, m := range marks {
			r.plan.Release = append(r.plan.Release, m.Earmark)
		}
		delete(r.marks, e.ID)
		for _, m := range marks { // it holds that itself now
			r.fresh[m.node] = slices.DeleteFunc(r.fresh[m.node], func(h *holder) bool { return h.Job == e.ID })
			m.node.agendaOK = false
		}
	}
	if r.policy.Backfill == 0 {
		return // nobody asks when it ends
	}
	h := &holder{Running: Running{Job: e.ID, Ranks: start.Ranks, StartedAt: r.now, TimeLimit: e.TimeLimit, Remaining: e.Remaining}}
	for i, g := range start.Ranks {
		n := r.snapshot.nodes[g.Machine]
		if !slices.ContainsFunc(start.Ranks[:i], func(o berth.Grant) bool { return o.Machine == g.Machine }) {
			r.hold(n, h)
		}
	}
	for _, m := range marks { // it may have taken other devices than were kept for it
		if k := m.node.kept; k != nil {
			r.rehold(k)
		}
	}
}

// hold makes a job count as one that holds room of the machine.
func (r *run) hold(n *node, h *holder) {
	r.changed = true
	r.fresh[n] = append(r.fresh[n], h)
	n.agendaOK = false
}

// leaves is when a job that starts then gives its room back; zero if that is not
// known.
func (r *run) leaves(start time.Time, e *entry) time.Time {
	if t := r.length(e); t > 0 {
		return start.Add(t)
	}
	return time.Time{}
}
