package placement

import (
	"berth"
	"berth/placement/cluster"
	"berth/placement/queue"
)

// endHolds adds the running jobs to the plan that must end so that the quotas of a stalled contender admit its next
// job, on the first of its hardware for which that is possible.
func (r *run) endHolds(x *queue.Contender, e *queue.Entry) {
	// Most clusters run no job that gives way, and pay nothing for this step.
	if r.snapshot.cluster.Yielding == 0 {
		return
	}
	var running []*cluster.Holder
	for _, h := range r.snapshot.cluster.Running {
		if cluster.GivesWay(h.Priority) {
			running = append(running, h)
		}
	}
	// Jobs that end in any case count as ended, also the ones that this plan ends for an earlier contender.
	ending := func(h *cluster.Holder) bool {
		return h.Stopping || h.Stopped == r.Number || r.ends[h.Job]
	}
	for i := range max(1, len(e.Class.Choices)) {
		// Only a complete list is used: if ok is false, the ends would not let the job start.
		list, ok := r.shares.HoldEnds(x, chosen(e, i), running, ending)
		if !ok {
			continue
		}
		for _, end := range list {
			if r.ends == nil {
				r.ends = map[berth.JobID]bool{}
			}
			r.ends[end.Job] = true
		}
		r.plan.EndHolds = append(r.plan.EndHolds, list...)
		return
	}
}
