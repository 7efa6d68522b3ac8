package scheduler

import (
	"context"
	"time"

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
	if time.Now().Before(p.yieldAfter) {
		return nil
	}
	err := p.endHolds(ctx, p.term, plan.Stalled)
	if db.IsDataError(err) && ctx.Err() == nil {
		// An error of one hold must not end the term: the next leader would meet the same hold.
		p.yieldAfter = time.Now().Add(yieldPause)
		p.Logger.Error("cannot end a hold, will retry", "retry_in", yieldPause, "err", err)
		return nil
	}
	return err
}

// yieldPause is the time without a further try after a hold that cannot be ended.
const yieldPause = 10 * time.Second

// endHolds ends the holds that are due, and pokes the workflows of their jobs.
func (s *Scheduler) endHolds(ctx context.Context, term db.Term, stalled []berth.TenantID) error {
	ended, err := s.DB.Holds.EndDue(ctx, term, stalled, passLimit)
	s.did("hold_ended", len(ended))
	s.Poker.Poke(ended...)
	return err
}
