package agent

import "context"

// forgetPhase waits for the order to forget the member, which ends the member's context.
type forgetPhase struct{}

// Do returns the cause of the context's end, never a next phase.
func (forgetPhase) Do(ctx context.Context) (phase, error) {
	<-ctx.Done()
	return "", context.Cause(ctx)
}
