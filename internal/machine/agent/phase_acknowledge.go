package agent

import "context"

// acknowledgePhase waits, after the container's end, until the server knows that the member ran:
// a job must be seen running before its end is seen.
type acknowledgePhase struct {
	orders *orders
	adopts bool
}

// Do returns at an order to start or to stop, and at once for a member that an earlier process
// may have begun.
func (p *acknowledgePhase) Do(ctx context.Context) (phase, error) {
	for {
		if o := p.orders.standing(); p.adopts || o.Start || stops(o) {
			return phaseFence, nil
		}
		select {
		case <-p.orders.kick:
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
}
