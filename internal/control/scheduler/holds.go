package scheduler

import (
	"context"
	"errors"
	"time"

	"berth/db"
	"berth/placement"
)

// holds ends the holds of failed attempts on draining machines, and removes the records of holds whose debug job was
// archived.
func (r *reconciler) holds(ctx context.Context) error {
	ended := r.endHolds(ctx, r.term, nil)
	n, err := r.DB.Holds.Sweep(ctx, r.term)
	r.did("hold_orphaned", n)
	return errors.Join(ended, err)
}

// yieldHolds ends the holds whose end lets the quotas admit the next job of a tenant. The job may then still wait for
// room: the plan does not search for room behind a quota.
func (p *placer) yieldHolds(ctx context.Context, plan placement.Plan) error {
	if plan.More || len(plan.EndHolds) == 0 {
		return nil
	}
	if time.Now().Before(p.yieldAfter) {
		return nil
	}
	ends := make([]db.HoldEnd, len(plan.EndHolds))
	for i, end := range plan.EndHolds {
		ends[i] = db.HoldEnd{Debug: end.Job, Quota: end.Quota}
	}
	err := p.endHolds(ctx, p.term, ends)
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
func (s *Scheduler) endHolds(ctx context.Context, term db.Term, ends []db.HoldEnd) error {
	ended, err := s.DB.Holds.EndDue(ctx, term, ends, passLimit)
	s.did("hold_ended", len(ended))
	s.Poker.Poke(ended...)
	return err
}
