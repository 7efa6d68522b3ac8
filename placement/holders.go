package placement

import (
	"cmp"
	"slices"
	"time"

	"berth"
	"berth/placement/cluster"
	"berth/placement/explain"
)

// Holders lists the running jobs that hold capacity on the machines whose fixed properties match a
// class, the earliest end first and jobs without a known end last. An unknown class has none. It reads
// all running jobs, so it serves single explanations and no plan.
func (s *Snapshot) Holders(class string) []explain.Holder {
	c := s.cluster.Classes[class]
	if c == nil {
		return nil
	}
	s.cluster.Settle(c)
	// Settle has compared the class with all kinds, so no usable kind is missing from Matches.
	usable := map[*cluster.Kind]bool{}
	for _, m := range c.Matches {
		usable[m.Kind] = true
	}
	var list []explain.Holder
	for _, h := range s.cluster.Running {
		var machines []berth.MachineID
		for _, g := range h.Ranks {
			n := s.cluster.Nodes[g.Machine]
			if n != nil && usable[n.Kind] && !slices.Contains(machines, g.Machine) {
				machines = append(machines, g.Machine)
			}
		}
		if len(machines) > 0 {
			slices.Sort(machines)
			list = append(list, explain.Holder{
				Job: h.Job, Tenant: h.Tenant, Machines: machines, EndsBy: endOf(h.Running),
			})
		}
	}
	slices.SortFunc(list, func(a, b explain.Holder) int {
		if a.EndsBy.IsZero() != b.EndsBy.IsZero() {
			if a.EndsBy.IsZero() {
				return 1
			}
			return -1
		}
		return cmp.Or(a.EndsBy.Compare(b.EndsBy), cmp.Compare(a.Job, b.Job))
	})
	return list
}

// endOf returns the latest end of a running job by its order to stop or by its time limit, or zero. An
// order to stop comes first, since it may end the job long before its limit. Zero is shown as an
// unknown end.
func endOf(r cluster.Running) time.Time {
	switch {
	case !r.StopBy.IsZero():
		return r.StopBy
	case r.TimeLimit > 0 && !r.StartedAt.IsZero():
		return r.StartedAt.Add(r.TimeLimit)
	}
	return time.Time{}
}
