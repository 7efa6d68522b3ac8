package agent

import "context"

// forgetPhase waits for the order to forget the member, which abandons it.
type forgetPhase struct{}

func (forgetPhase) Do(ctx context.Context) (phase, error) {
	<-ctx.Done()
	return "", context.Cause(ctx)
}
