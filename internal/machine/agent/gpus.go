package agent

import (
	"context"
	"time"

	"berth"
)

func (s *Supervisor) noteGPUs(gpus []berth.GPU) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range gpus {
		s.gpus[g.UUID] = g
	}
}

// deviceFault says what is wrong with the first of these devices that is not
// healthy, "" if all are.
func (s *Supervisor) deviceFault(uuids []string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range uuids {
		if g, ok := s.gpus[id]; ok && !g.Healthy {
			return "GPU " + id + ": " + g.Reason
		}
	}
	return ""
}

// watchGPUs reports changes of the devices' health at once and tells the ranks
// that use them.
func (s *Supervisor) watchGPUs(ctx context.Context) {
	tick := time.NewTimer(s.beat.next(s.cfg.Timing.HealthPoll))
	defer tick.Stop()
	var changes <-chan struct{} // nil: never
	if g, ok := s.cfg.GPUs.(interface{ Changes() <-chan struct{} }); ok {
		changes = g.Changes()
	}
	for {
		select {
		case <-tick.C:
			tick.Reset(s.beat.next(s.cfg.Timing.HealthPoll))
		case <-changes:
		case <-ctx.Done():
			return
		}
		gpus, err := s.cfg.GPUs.Devices(ctx)
		if err != nil {
			s.log.Warn("GPUs not listed", "err", err)
			continue
		}
		if s.changedGPUs(gpus) {
			s.poke()
		}
	}
}

func (s *Supervisor) changedGPUs(gpus []berth.GPU) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := map[string]bool{}
	changed := false
	for _, g := range gpus {
		now[g.UUID] = true
		was, known := s.gpus[g.UUID]
		if known && (was.Healthy != g.Healthy || was.Reason != g.Reason) {
			changed = true
			s.log.Warn("GPU changed its health", "gpu", g.UUID, "healthy", g.Healthy, "reason", g.Reason)
		}
		s.gpus[g.UUID] = g
	}
	for id, g := range s.gpus {
		if !now[id] && g.Healthy {
			g.Healthy, g.Reason = false, "the driver does not list it any more"
			s.gpus[id] = g
			changed = true
			s.log.Error("GPU disappeared", "gpu", id)
		}
	}
	if !changed {
		return false
	}
	s.gpusDirty = true
	for _, r := range s.ranks {
		r.nudge()
	}
	return true
}
