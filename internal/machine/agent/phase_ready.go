package agent

import (
	"context"
	"time"

	"berth"
	"berth/failure"
)

// readyPhase waits until a created container may start: on the claim alone where that
// is allowed, else once the member is reported prepared and the order to start has
// come. The answer to the report usually carries that order.
type readyPhase struct {
	*core
	orders  *orders
	scratch *scratch
	result  *result
	adopts  bool
}

// Do waits for the order to start, or starts at once where mayBegin allows it. In the second case
// the decision goes to disk before the start, for an agent that dies in between.
func (p *readyPhase) Do(ctx context.Context) (phase, error) {
	reported := false
	for {
		o := p.orders.standing()
		switch {
		case stops(o):
			return p.result.notStarted(failure.CauseNotStarted, "stopped before the container was started")
		case o.Start:
			return phaseStart, nil
		case p.mayBegin():
			m := p.scratch.memo()
			m.Begun = true
			if err := p.scratch.remember(m); err != nil {
				return p.result.notStarted(failure.CauseEngine, err.Error())
			}
			return phaseStart, nil
		}
		if !reported {
			reported = true
			p.reports.enter(0, berth.PhasePrepared)
		}
		select {
		case <-p.orders.kick:
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
}

// mayBegin reports whether the member may start on its claim alone, while the server stores that
// the member is prepared. The member must have no peers to wait for, its job must be allowed to
// run twice, and the claim must be so fresh that the job cannot have been placed elsewhere. See
// docs/adr/0009-a-claim-starts-a-job-of-one-member.md.
func (p *readyPhase) mayBegin() bool {
	return !p.adopts && p.claim.Members == 1 && !p.claim.atMostOne() && time.Since(p.claim.sent) < p.timing.ClaimFresh
}
