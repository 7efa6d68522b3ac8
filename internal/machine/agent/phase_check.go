package agent

import (
	"context"

	"berth/failure"
)

// checkPhase runs the operator's check, and proves that the member's GPUs are free. From then on the
// member's container may use them.
type checkPhase struct {
	*core
	checker *checker
	proof   *deviceProof
	result  *result
}

// Do ends the member without a run if the check or the proof fails: the job moves, without blame.
func (p *checkPhase) Do(ctx context.Context) (phase, error) {
	failed, err := p.checker.before(ctx)
	if err != nil {
		return "", err
	}
	if failed.why != "" {
		x := notStarted(failure.CauseCheck, failed.text())
		x.CheckFailed = failed.why
		return p.result.end(x)
	}
	why, err := p.proof.insist(ctx, p.claim.GPUs)
	if err != nil {
		return "", err
	}
	if why != "" {
		return p.result.notStarted(failure.CauseGPUInUse, why)
	}
	p.proof.enter(p.claim.GPUs, p.alloc, p.name())
	return phaseReady, nil
}

// aftermath runs the operator's check and proves the member's GPUs after the end, next to the storing
// of results. The exit is reported afterwards, since it frees the GPUs.
type aftermath struct {
	*core
	checker *checker
	proof   *deviceProof
}

// begin starts both. The channel receives the failure of the check, "" without one, and is closed.
func (a *aftermath) begin(ctx context.Context, x failure.Exit) <-chan string {
	done := make(chan string, 1)
	go func() {
		defer close(done)
		failed, _ := a.checker.after(ctx, x) // an error: ctx has ended, and the member with it
		a.proof.after(ctx, a.claim.GPUs, a.alloc)
		done <- failed.why
	}()
	return done
}
