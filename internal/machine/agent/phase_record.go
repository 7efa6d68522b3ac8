package agent

import (
	"context"
	"time"

	"berth/internal/lib/failpoint"
)

// recordPhase waits until the server has the member's seal on record.
type recordPhase struct {
	*core
	began  time.Time // when this process started the member
	spans  spans
	result *result
}

// Do waits until the server has the seal on record. Only then may the member be forgotten.
func (p *recordPhase) Do(ctx context.Context) (phase, error) {
	select {
	case <-p.reports.recorded:
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	exit := p.result.exit
	_ = failpoint.Hit("agent.seal.after")
	p.log.Info("member sealed", "cause", exit.Cause, "code", exit.Code)
	p.spans.whole(exit, p.began)
	return phaseForget, nil
}
