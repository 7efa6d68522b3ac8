package agent

import (
	"context"
	"errors"
	"maps"

	"berth"
	"berth/activities/node"
)

// watchQuarantine tells the server when containers that it knows nothing of have
// ended: only then it gives this machine work. They are never touched while they
// run. What is left of one that has ended goes with the next registration.
func (s *Supervisor) watchQuarantine(ctx context.Context) {
	for s.beat.sleep(ctx, s.cfg.Timing.HealthPoll) == nil {
		s.mu.Lock()
		watched := maps.Clone(s.quarantine)
		s.mu.Unlock()
		for alloc, name := range watched {
			c, err := s.cfg.Runtime.Inspect(ctx, name)
			if errors.Is(err, node.ErrNoContainer) || err == nil && c.State == node.ContainerExited {
				s.log.Info("a container in quarantine has ended", "container", name)
				s.released(alloc)
			}
		}
	}
}

// released takes an allocation out of quarantine and has its end told.
func (s *Supervisor) released(alloc berth.AllocationID) {
	s.mu.Lock()
	delete(s.quarantine, alloc)
	s.gone[alloc] = true
	s.mu.Unlock()
	s.poke()
}
