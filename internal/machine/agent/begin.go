package agent

import (
	"context"
	"errors"
	"time"

	"berth"
	"berth/activities/node"
	"berth/internal/lib/failpoint"
)

// awaitStart starts the container: on the claim alone where that is allowed, else
// once the rank is reported prepared and the order to start has come, which the
// answer to the report usually carries.
func (r *member) awaitStart() (*berth.Exit, error) {
	told := false
	for {
		o := r.orders.standing()
		switch {
		case stops(o):
			x := notStarted(berth.CauseNotStarted, "stopped before it was started")
			return &x, nil
		case o.Start:
			return r.begin()
		case r.mayBegin():
			m := r.scratch.memo()
			m.Begun = true
			if err := r.scratch.remember(m); err != nil {
				x := notStarted(berth.CauseEngine, err.Error())
				return &x, nil
			}
			return r.begin()
		}
		if !told {
			told = true
			r.reports.enter(0, berth.PhasePrepared)
		}
		select {
		case <-r.orders.kick:
		case <-r.ctx.Done():
			return nil, context.Cause(r.ctx)
		}
	}
}

// mayBegin reports whether the rank may begin on its claim alone, while the
// server stores that it is prepared: it has nobody to wait for, it may be run
// again, and the claim is so fresh that the job has not gone on without it. See
// docs/adr/0009-a-claim-starts-a-job-of-one-rank.md.
func (r *member) mayBegin() bool {
	return !r.adopts && r.claim.Members == 1 && !r.alone() && time.Since(r.claimedAt) < r.timing().ClaimFresh
}

// awaitOrder waits, after an end, until the server has heard that the rank
// began: its job is to be seen running before it is seen to end.
func (r *member) awaitOrder() error {
	for {
		if o := r.orders.standing(); r.adopts || o.Start || stops(o) {
			return nil
		}
		select {
		case <-r.orders.kick:
		case <-r.ctx.Done():
			return context.Cause(r.ctx)
		}
	}
}

// start starts the container. At_most_one work takes no turn: its fence has just
// been looked at, and does not stand for long.
func (r *member) start() error {
	if !r.alone() {
		done, err := r.sup.turns.take(r.ctx)
		if err != nil {
			return err
		}
		defer done()
	}
	return r.runtime().Start(r.ctx, r.name())
}

// begin starts the container. An end is reported only when it is certain that
// the container does not run: an engine that does not answer is waited for.
func (r *member) begin() (*berth.Exit, error) {
	return r.part(r.ctx, "start", func(context.Context) (*berth.Exit, error) { return r.beginNow() })
}

func (r *member) beginNow() (*berth.Exit, error) {
	patience := time.Now().Add(r.timing().EnginePatience)
	for wait := r.timing().backoff(); ; {
		_ = failpoint.Hit("agent.start.before")
		if r.alone() {
			if exit, err := r.awaitFence(patience); exit != nil || err != nil {
				return exit, err
			}
		}
		err := r.start()
		_ = failpoint.Hit("agent.start.after")
		if err == nil {
			r.fate.begun = time.Now()
			if r.alone() {
				return nil, r.mustBeSeen()
			}
			return nil, nil
		}
		if r.ctx.Err() != nil {
			return nil, context.Cause(r.ctx)
		}
		var cause berth.ExitCause
		switch {
		case errors.Is(err, node.ErrBadCommand):
			cause = berth.CauseBadCommand
		case errors.Is(err, node.ErrDevice):
			cause = berth.CauseDevice
		case errors.Is(err, node.ErrNoContainer):
			cause = berth.CauseVanished
		case stops(r.orders.standing()):
			cause = berth.CauseNotStarted
		case time.Now().After(patience):
			cause = berth.CauseEngine
		}
		if cause != "" && r.surelyNotRunning() {
			x := notStarted(cause, err.Error())
			return &x, nil
		}
		r.log.Warn("container not started; tried again", "err", err)
		if err := wait.wait(r.ctx); err != nil {
			return nil, err
		}
	}
}

func (r *member) surelyNotRunning() bool {
	c, err := r.runtime().Inspect(r.ctx, r.name())
	return errors.Is(err, node.ErrNoContainer) || err == nil && c.State == node.ContainerCreated
}
