package agent

import (
	"context"
	"errors"
	"time"

	"berth/activities/node"
	"berth/failure"
	"berth/internal/lib/failpoint"
	"berth/spec"
)

// givePhase gives the folders of outputs in the image, such as the parent of /out, to the user of a
// container that has not started. An adopted container takes this phase, too: the process that
// created it may have been killed before it gave the folders. The phase keeps no record, since a
// repetition changes nothing.
type givePhase struct {
	*core
	turns  turns
	spans  spans
	result *result
}

// Do goes on at once if no output needs a folder.
func (p *givePhase) Do(ctx context.Context) (phase, error) {
	u, err := p.claim.owner()
	if err != nil {
		if _, started := p.look(ctx); started {
			return phaseCheck, nil
		}
		return p.result.notStarted(failure.CauseEngine, err.Error())
	}
	paths := spec.ImageOutputs(p.claim.Spec)
	// Root needs no gift, and in a read-only root none can be made.
	if u == nil || u.UID == 0 || p.claim.Spec.ReadOnlyRoot || len(paths) == 0 {
		return phaseCheck, nil
	}
	return p.spans.step(ctx, "give", p.result, func(ctx context.Context) (phase, error) {
		return p.give(ctx, paths, *u)
	})
}

// give retries until EnginePatience after the first error is over. It ends the member only when the container
// certainly does not run: an engine may still carry out the start that a killed process asked for. The
// phase start then takes the container as started.
func (p *givePhase) give(ctx context.Context, paths []string, u spec.UserID) (phase, error) {
	var patience time.Time
	for wait := p.timing.backoff(); ; {
		_ = failpoint.Hit("agent.give.before")
		err := p.giveOnce(ctx, paths, u)
		_ = failpoint.Hit("agent.give.after")
		switch {
		case err == nil:
			return phaseCheck, nil
		case ctx.Err() != nil:
			return "", context.Cause(ctx)
		case patience.IsZero(): // a slow engine is no faulty one
			patience = time.Now().Add(p.timing.EnginePatience)
		}
		if cause := giftCause(err, patience); cause != "" {
			unstarted, started := p.look(ctx)
			if started {
				return phaseCheck, nil
			}
			if unstarted {
				return p.result.notStarted(cause, err.Error())
			}
		}
		p.log.Warn("change of folder owners failed, will retry", "err", err)
		if err := wait.wait(ctx); err != nil {
			return "", err
		}
	}
}

// giftCause returns the cause with which a failed gift ends the member, "" if the gift is to be retried. A path that
// leads to a place where no machine could give a folder is the fault of the image or the job file, not of the engine.
func giftCause(err error, patience time.Time) failure.ExitCause {
	switch {
	case errors.Is(err, node.ErrBadImage):
		return failure.CauseImageInvalid
	case errors.Is(err, node.ErrBadPath):
		return failure.CauseOutputPath
	case errors.Is(err, node.ErrNoContainer):
		return failure.CauseVanished
	case time.Now().After(patience):
		return failure.CauseEngine
	}
	return ""
}

// look reports whether the container certainly has not started, and whether it certainly has. Neither holds for an
// engine that does not answer.
func (p *givePhase) look(ctx context.Context) (unstarted, started bool) {
	c, err := p.runtime.Inspect(ctx, p.name())
	unstarted = errors.Is(err, node.ErrNoContainer) || err == nil && c.State == node.ContainerCreated
	return unstarted, err == nil && !unstarted
}

// giveOnce makes one try within a turn, which it holds for a bounded time: see node.FolderGiver.
func (p *givePhase) giveOnce(ctx context.Context, paths []string, u spec.UserID) error {
	done, err := p.turns.take(ctx)
	if err != nil {
		return err
	}
	defer done()
	return p.runtime.GiveFolders(ctx, p.name(), paths, u)
}
