package agent

import (
	"context"
	"errors"
	"time"

	"berth/activities/node"
	"berth/failure"
	"berth/internal/lib/failpoint"
)

// startPhase starts the container. It ends the member only when the container
// certainly does not run: it waits for an engine that does not answer.
type startPhase struct {
	*core
	orders  *orders
	fencing *fencing
	plan    *stopPlan
	turns   turns
	walls   *walls
	network string // of its job, created on this engine; "": none
	spans   spans
	result  *result
}

// Do starts the container in a span of its own.
func (p *startPhase) Do(ctx context.Context) (phase, error) {
	return p.spans.step(ctx, "start", p.result, func(context.Context) (phase, error) { return p.start() })
}

// start repeats the start until it succeeds or fails for good. From the first error on it retries until
// EnginePatience is over: before that the member may have waited for its turn, or for a slow engine. at_most_one
// work asks the fence before each try, since the lease may expire between two tries.
func (p *startPhase) start() (phase, error) {
	var patience time.Time
	for wait := p.timing.backoff(); ; {
		_ = failpoint.Hit("agent.start.before")
		if p.claim.atMostOne() {
			exit, err := p.fencing.admit(time.Now().Add(p.timing.EnginePatience))
			if err != nil {
				return "", err
			}
			if exit != nil {
				return p.refused(*exit)
			}
		}
		err := p.startOnce()
		_ = failpoint.Hit("agent.start.after")
		if err == nil {
			return p.started()
		}
		if p.ctx.Err() != nil {
			return "", context.Cause(p.ctx)
		}
		if patience.IsZero() { // a slow engine is no faulty one
			patience = time.Now().Add(p.timing.EnginePatience)
		}
		if cause := p.causeOf(err, patience); cause != "" && p.surelyNotRunning() {
			return p.result.notStarted(cause, err.Error())
		}
		p.log.Warn("container start failed, will retry", "err", err)
		if err := wait.wait(p.ctx); err != nil {
			return "", err
		}
	}
}

// refused ends a member that the fence does not admit, once the engine confirms that the container does not
// run: an earlier try, of this process or of the one before, may start it after its caller has given up. A
// container that runs is watched like any other, and the watch obeys the order or the fence.
func (p *startPhase) refused(exit failure.Exit) (phase, error) {
	for wait := p.timing.backoff(); ; {
		c, err := p.runtime.Inspect(p.ctx, p.name())
		switch {
		case errors.Is(err, node.ErrNoContainer), err == nil && c.State == node.ContainerCreated:
			return p.result.end(exit)
		case err == nil:
			return p.started()
		}
		p.log.Warn("engine does not tell whether the container was started, will retry", "err", err)
		if err := wait.wait(p.ctx); err != nil {
			return "", err
		}
	}
}

// startOnce asks the engine to start the container. At_most_one work takes no turn:
// the fence has just admitted it, and the admission is short-lived.
func (p *startPhase) startOnce() error {
	if !p.claim.atMostOne() {
		done, err := p.turns.take(p.ctx)
		if err != nil {
			return err
		}
		defer done()
	}
	if err := p.walls.stand(p.ctx, p.network, p.claim.Spec.Network); err != nil {
		return err
	}
	return p.runtime.Start(p.ctx, p.name())
}

// started notes the start. At_most_one work that the deadman cannot see is ended now.
func (p *startPhase) started() (phase, error) {
	p.plan.begun = time.Now()
	if !p.claim.atMostOne() {
		return phaseWatch, nil
	}
	visible, err := p.fencing.visible()
	if err != nil {
		return "", err
	}
	if !visible {
		p.plan.intend(failure.CauseEngine, "it cannot be fenced: no process is in a cgroup named after its container")
		p.plan.signal("SIGKILL")
	}
	return phaseWatch, nil
}

// causeOf returns the cause with which a failed start ends the member, "" if the start is to be
// retried.
func (p *startPhase) causeOf(err error, patience time.Time) failure.ExitCause {
	switch {
	case errors.Is(err, node.ErrBadImage):
		return failure.CauseImageInvalid
	case errors.Is(err, node.ErrBadCommand):
		return failure.CauseBadCommand
	case errors.Is(err, node.ErrUnmappedUser):
		return failure.CauseUnmappedUser
	case errors.Is(err, node.ErrDevice):
		return failure.CauseDevice
	case errors.Is(err, node.ErrNoContainer):
		return failure.CauseVanished
	case errors.Is(err, node.ErrNoNetwork):
		return failure.CauseNetwork
	case stops(p.orders.standing()):
		return failure.CauseNotStarted
	case time.Now().After(patience):
		return failure.CauseEngine
	}
	return ""
}

// surelyNotRunning reports whether the engine confirms that the container does not run. A start
// that failed may have started the container all the same.
func (p *startPhase) surelyNotRunning() bool {
	c, err := p.runtime.Inspect(p.ctx, p.name())
	return errors.Is(err, node.ErrNoContainer) || err == nil && c.State == node.ContainerCreated
}
