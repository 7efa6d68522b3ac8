package agent

import (
	"context"
	"errors"

	"berth"
	"berth/activities/node"
	"berth/wire"
)

// straySweeper removes containers that were created and never started and that belong to no
// member. An engine creates such a container when its caller is gone: an agent was killed in the
// middle of a create, and the container came after the next process had registered; or an engine
// took longer than the agent waits. See docs/adr/0034-what-a-create-leaves-behind.md for the
// containers that are removed and the containers that stay.
type straySweeper struct{ sup *Supervisor }

// watch sweeps now and then, once the first session has had its verdict.
func (w straySweeper) watch(ctx context.Context) {
	s := w.sup
	if s.waitAdopted(ctx) != nil {
		return
	}
	var seen map[string]bool
	for s.beat.sleep(ctx, s.cfg.Timing.StraySweep) == nil {
		found, err := w.sweep(ctx, seen)
		err = errors.Join(err, s.cfg.Runtime.SweepAccounts(ctx), w.sweepKept(ctx))
		if err != nil && ctx.Err() == nil {
			s.log.Warn("cannot remove stray containers, will retry", "err", err)
		}
		seen = found
	}
}

// sweepKept deletes kept folders whose debug jobs never came.
func (w straySweeper) sweepKept(ctx context.Context) error {
	removed, err := w.sup.kept.sweep(ctx, keptFor)
	if removed > 0 {
		w.sup.log.Warn("kept folders removed, no debug job took them", "folders", removed)
	}
	return err
}

// sweep removes the strays that the previous sweep has seen too, and returns the ids of all
// present strays. One sweep in between gives a create in progress the time to be adopted.
func (w straySweeper) sweep(ctx context.Context, before map[string]bool) (seen map[string]bool, err error) {
	s := w.sup
	list, err := s.cfg.Runtime.Unstarted(ctx, s.ownLabels())
	if err != nil {
		return nil, err
	}
	seen = map[string]bool{}
	var again []node.Container
	for _, c := range list {
		label, ok := readLabels(c)
		if !ok || c.Name != berth.ContainerName(label.Job, label.Rank, label.Attempt) || !s.isStray(label.Alloc) {
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
	// The set is read after the list. So it has every allocation of the list that the
	// server still wants of this machine, or has yet to judge.
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

// isStray reports whether an allocation has no member here and is not in quarantine.
func (s *Supervisor) isStray(id berth.AllocationID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.members[id] == nil && !s.quarantine.has(id)
}

// removeStray runs a stray container as a member that is abandoned at once, which
// also removes its folder, its secrets and its network. It does nothing if the
// allocation has got a member meanwhile.
func (s *Supervisor) removeStray(c node.Container, label wire.ContainerSeen) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.members[label.Alloc] != nil || s.quarantine.has(label.Alloc) {
		return
	}
	s.log.Warn("stray container removed", "container", c.Name,
		"job_id", label.Job, "attempt", label.Attempt, "alloc", label.Alloc)
	m := s.adopted(label, c.Labels[berth.LabelNetwork])
	m.abandon()
	s.start(m)
}
