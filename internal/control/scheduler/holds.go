package scheduler

import (
	"context"

	"berth"
	"berth/db"
	"berth/placement"
)

// holds ends the holds of failed attempts on draining machines.
func (r *reconciler) holds(ctx context.Context) error { return r.endHolds(ctx, r.term, nil) }

// yieldHolds ends the holds of tenants with a job that only a quota keeps from starting. Without a running hold it
// reads nothing.
func (p *placer) yieldHolds(ctx context.Context, plan placement.Plan) error {
	if plan.More || len(plan.Stalled) == 0 || placement.Yielding(p.mirror.snapshot) == 0 {
		return nil
	}
	return p.endHolds(ctx, p.term, plan.Stalled)
}

// endHolds ends the holds that are due, and pokes the workflows of their jobs.
func (s *Scheduler) endHolds(ctx context.Context, term db.Term, stalled []berth.TenantID) error {
	ended, err := s.DB.Holds.EndDue(ctx, term, stalled, passLimit)
	s.did("hold_ended", len(ended))
	s.Poker.Poke(ended...)
	return err
}
