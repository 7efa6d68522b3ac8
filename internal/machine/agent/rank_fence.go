package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"berth"
	"berth/activities/node"
	"berth/internal/machine/deadman"
)

// alone reports whether the rank must never have a second live container.
func (r *member) alone() bool { return r.claim.Spec.Execution == berth.AtMostOne }

// listed is the rank as the deadman is told of it.
func (r *member) listed() deadman.Rank {
	return deadman.Rank{Name: r.name(), Container: r.container, Grace: r.grace(), Gate: r.scratch.gate()}
}

// fenceIt puts a container of at_most_one work under the fence, before it runs.
func (r *member) fenceIt(c node.Container) {
	if !r.alone() {
		return
	}
	r.container = c.ID
	if c.State != node.ContainerExited {
		r.sup.fence.list(r.listed())
	}
}

// awaitFence waits until the container may be started: the lease is fresh, and a
// deadman will end it when it is not any more. It returns an exit where that
// will not be.
func (r *member) awaitFence(patience time.Time) (*berth.Exit, error) {
	for {
		err := r.sup.fence.admits(r.listed())
		switch {
		case err == nil:
			return nil, nil
		case errors.Is(err, errFenced):
			x := notStarted(berth.CauseFenced, r.fencedText())
			return &x, nil
		case stops(r.orders.standing()):
			x := notStarted(berth.CauseNotStarted, "stopped before it was started")
			return &x, nil
		case errors.Is(err, errNotYet):
		case time.Now().After(patience):
			x := notStarted(berth.CauseEngine, err.Error())
			return &x, nil
		default:
			if err := r.sup.fence.demand(r.ctx); err != nil {
				r.log.Warn("no deadman answers; tried again", "err", err)
			}
		}
		if err := sleep(r.ctx, fencePoll); err != nil {
			return nil, err
		}
	}
}

// fencePoll is how often a rank looks whether it may start.
const fencePoll = 20 * time.Millisecond

func (r *member) fencedText() string {
	return fmt.Sprintf("fenced: the control plane had not heard machine %s for %s", r.sup.cfg.Machine, berth.Duration(r.sup.fence.cfg.After))
}

// mustBeSeen checks that the deadman finds the container's processes. What it
// cannot see it cannot end: such a container is ended now.
func (r *member) mustBeSeen() error {
	for deadline := time.Now().Add(r.timing().EnginePatience); ; {
		pids, err := deadman.Processes(r.container)
		if err == nil && len(pids) > 0 {
			return nil
		}
		if c, err := r.runtime().Inspect(r.ctx, r.name()); err == nil && c.State != node.ContainerRunning {
			return nil // it has ended already
		}
		if time.Now().After(deadline) {
			r.intend(berth.CauseEngine, "it cannot be fenced: no process is in a cgroup named after its container")
			r.signal("SIGKILL")
			return nil
		}
		if err := sleep(r.ctx, fencePoll); err != nil {
			return err
		}
	}
}

// endSurely kills what lives of a listed container and takes it off the list.
func (r *member) endSurely(ctx context.Context, container string) error {
	for wait := r.timing().backoff(); container != ""; {
		n, err := deadman.Kill(container)
		if err == nil && n == 0 {
			break
		}
		r.log.Warn("processes outlived their container; killed", "processes", n, "err", err)
		if err := wait.wait(ctx); err != nil {
			return err
		}
	}
	r.sup.fence.drop(container)
	return nil
}

// concluded makes an end of at_most_one work true, whatever the engine thinks of
// it: no process of the container lives. It notes an end that the fence made.
func (r *member) concluded(x berth.Exit) (berth.Exit, error) {
	if !r.alone() {
		return x, nil
	}
	if r.container == "" {
		r.container = r.sup.fence.containerOf(r.name())
	}
	if err := r.endSurely(r.ctx, r.container); err != nil {
		return x, err
	}
	if r.scratch == nil {
		return x, nil
	}
	if at, closed := deadman.GateClosed(r.scratch.gate()); closed && x.Cause != berth.CauseFenced && !x.FinishedAt.Before(at) {
		x.Cause, x.Message = berth.CauseFenced, r.fencedText()
	}
	return x, nil
}

// endFenced ends what is listed of a rank that was abandoned and cleared.
func (r *member) endFenced() error {
	if !r.known {
		return nil
	}
	return r.endSurely(r.sup.ctx, r.sup.fence.containerOf(r.name()))
}
