package agent

import (
	"context"
	"errors"
	"time"

	"berth"
	"berth/failure"
	"berth/wire"
)

// claimPhase asks the server to confirm that the allocation belongs to this machine.
// No container runs without the answer.
type claimPhase struct {
	*core
	control   *control
	orders    *orders
	spans     spans
	result    *result
	adopts    bool
	withdrawn bool
}

// Do claims the allocation. The answer decides the next phase: an allocation that an earlier
// process has sealed needs only to be forgotten.
func (p *claimPhase) Do(ctx context.Context) (phase, error) {
	if p.withdrawn {
		return p.result.notStarted(failure.CauseNotStarted, "the job ended before this machine claimed the member")
	}
	err := p.traced(ctx)
	switch {
	case errors.Is(err, errStopped):
		return p.result.notStarted(failure.CauseNotStarted, "stopped before the container was created")
	case err != nil:
		return "", err
	case p.claim.Phase == berth.PhaseSealed: // an earlier process has sealed it
		p.reports.record()
		return phaseForget, nil
	}
	return phaseLocate, nil
}

// traced runs insist inside a span of its own.
func (p *claimPhase) traced(ctx context.Context) error {
	ctx, span := p.spans.start(ctx, "claim")
	err := p.insist(ctx)
	span.Set(p.attributes()...) // the rank is known by now
	span.End(faultOf(ctx, nil, err))
	return err
}

// insist repeats the claim for as long as the control plane is away. An order to
// stop makes the claim of a new member needless: it returns errStopped.
func (p *claimPhase) insist(ctx context.Context) error {
	stopped := func() bool { return !p.adopts && stops(p.orders.standing()) }
	for wait := p.timing.backoff(); ; {
		if stopped() {
			return errStopped
		}
		sent := time.Now()
		c, err := p.control.claimWork(ctx, wire.RunRequest{Job: p.job, Attempt: p.attempt, Alloc: p.alloc})
		switch {
		case err == nil:
			p.take(c, sent)
			return nil
		case p.ctx.Err() != nil:
			return context.Cause(p.ctx)
		case refused(err) && stopped():
			return errStopped
		case refused(err):
			p.log.Info("claim refused", "err", err)
			return errAbandoned
		}
		p.log.Warn("claim failed, will retry", "err", err)
		if err := wait.wait(p.ctx); err != nil {
			return err
		}
	}
}

// take stores the answer.
func (p *claimPhase) take(c wire.Claim, sent time.Time) {
	*p.claim = claim{Claim: c, sent: sent}
	p.identity.claimed(c.Rank)
	p.reports.claimed(c.Rank)
	p.orders.merge(c.Orders, c.RunLimit.Std())
}
