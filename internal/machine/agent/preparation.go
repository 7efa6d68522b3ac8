package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"berth"
	"berth/failure"
)

// Reasons for the end of a preparation, in addition to the end of its member.
var (
	errStopped = errors.New("stopped before it began") // an order came before the start
	errTooSlow = errors.New("it takes too long to prepare")
)

// preparation is the context of the phases from pull to create. It ends with the
// member, at an order to stop, or when its patience is used up. While it is open it
// receives the member's kicks.
type preparation struct {
	ctx      context.Context
	member   context.Context
	cancel   context.CancelCauseFunc
	free     context.CancelFunc // of the timer
	orders   *orders
	reports  *reporter
	patience time.Duration
	watched  chan struct{} // closed when no order is watched for
}

// openPreparation returns a preparation under the member's context, with a goroutine that ends it
// at an order to stop. The caller must close the preparation.
func openPreparation(member context.Context, o *orders, reports *reporter, patience time.Duration) *preparation {
	limited, free := context.WithTimeoutCause(member, patience, errTooSlow)
	ctx, cancel := context.WithCancelCause(limited)
	p := &preparation{
		ctx: ctx, member: member, cancel: cancel, free: free,
		orders: o, reports: reports, patience: patience, watched: make(chan struct{}),
	}
	go p.watch()
	return p
}

// watch lets an order to stop cancel a pull or a restore.
func (p *preparation) watch() {
	defer close(p.watched)
	for {
		if stops(p.orders.standing()) {
			p.cancel(errStopped)
			return
		}
		select {
		case <-p.orders.kick:
		case <-p.ctx.Done():
			return
		}
	}
}

// close ends the preparation after its last phase, and turns the reason of an early
// end into the member's exit.
func (p *preparation) close(next phase, err error, r *result) (phase, error) {
	p.cancel(nil)
	cause := context.Cause(p.ctx) // an earlier one, if there was one
	<-p.watched
	p.free()
	p.orders.nudge() // a kick that was received here may have been for the next phase
	switch {
	case p.member.Err() != nil:
		return "", context.Cause(p.member)
	case err != nil && errors.Is(cause, errStopped):
		return r.notStarted(failure.CauseNotStarted, "stopped while the container was being prepared")
	case err != nil && errors.Is(cause, errTooSlow):
		why := failure.CauseEngine
		if p.reports.phase() == berth.PhasePulling {
			why = failure.CauseImageUnavailable
		}
		says := fmt.Sprintf("the container was not ready within %s (phase: %s)", p.patience, p.reports.phase())
		return r.notStarted(why, says)
	}
	return next, err
}
