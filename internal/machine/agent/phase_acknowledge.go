package agent

import "context"

// acknowledgePhase waits, after the container's end, until the server knows that the
// member ran: its job must be seen running before it is seen to end.
type acknowledgePhase struct {
	orders *orders
	adopts bool
}

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
