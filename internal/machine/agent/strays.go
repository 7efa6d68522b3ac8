package agent

import (
	"context"

	"berth"
	"berth/activities/node"
)

// sweepStrays removes, now and then, containers that were created and never
// started and that no rank is for. An engine makes one when its caller is gone: an
// agent was killed in the middle of a create, and the container came after the next
// process had registered; or an engine took longer than anybody waits. See
// docs/adr/0034-what-a-create-leaves-behind.md for what is removed and what stays.
func (s *Supervisor) sweepStrays(ctx context.Context) {
	if s.waitAdopted(ctx) != nil {
		return
	}
	var seen map[string]bool
	for s.beat.sleep(ctx, s.cfg.Timing.StraySweep) == nil {
		found, err := s.sweepStraysOnce(ctx, seen)
		if err != nil && ctx.Err() == nil {
			s.log.Warn("stray containers not removed, will look again", "err", err)
		}
		seen = found
	}
}

// sweepStraysOnce removes the strays that the look before has seen too, and
// returns the ids of all that it sees.
func (s *Supervisor) sweepStraysOnce(ctx context.Context, before map[string]bool) (seen map[string]bool, err error) {
	list, err := s.cfg.Runtime.Unstarted(ctx, map[string]string{
		berth.LabelCluster: s.control.clusterID(),
		berth.LabelMachine: string(s.cfg.Machine),
	})
	if err != nil {
		return nil, err
	}
	seen = map[string]bool{}
	var again []node.Container
	for _, c := range list {
		label, ok := readLabels(c)
		if !ok || c.Name != berth.ContainerName(label.Job, label.Rank, label.Attempt) || !s.strays(label.Alloc) {
			continue
		}
		seen[c.ID] = true
		if before[c.ID] {
			again = append(again, c)
		}
	}
	if len(again) == 0 {
		return seen, nil
	}
	// The set is asked for after the list was made: what the server wants of this
	// machine, and what it may yet judge, is in it.
	set, err := s.control.assignments(ctx)
	if err != nil {
		return seen, err
	}
	wanted := map[berth.AllocationID]bool{}
	for _, a := range set {
		wanted[a.Alloc] = true
	}
	for _, c := range again {
		if label, _ := readLabels(c); !wanted[label.Alloc] {
			s.removeStray(c, label)
		}
	}
	return seen, nil
}

// strays reports whether an allocation is neither a rank's nor in quarantine.
func (s *Supervisor) strays(id berth.AllocationID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ranks[id] == nil && s.quarantine[id] == ""
}

// removeStray ends what never began as a rank that is abandoned at once, which
// takes its folder, its secrets and its network along. It does nothing if the
// allocation has got a rank meanwhile.
func (s *Supervisor) removeStray(c node.Container, label berth.ContainerSeen) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ranks[label.Alloc] != nil || s.quarantine[label.Alloc] != "" {
		return
	}
	s.log.Warn("stray container removed", "container", c.Name, "job_id", label.Job, "attempt", label.Attempt, "alloc", label.Alloc)
	r := newRank(s, label.Alloc, label.Job, label.Rank, label.Attempt)
	r.adopts, r.named, r.network = true, true, c.Labels[berth.LabelNetwork]
	r.abandon()
	s.start(r)
}
