package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"berth/activities/node"
	"berth/failure"
	"berth/internal/machine/deadman"
	"berth/spec"
)

// fencing keeps one member of at_most_one work under the machine's fence: the member is listed
// before its container runs, and removed from the list once none of its processes lives. For
// other work its methods do nothing.
type fencing struct {
	*core
	fence   *fence
	orders  *orders
	scratch *scratch

	container string // id; "" before there is a container
}

// listing describes the member to the deadman.
func (f *fencing) listing() deadman.Rank {
	return deadman.Rank{Name: f.name(), Container: f.container, Grace: f.claim.grace(), Gate: f.scratch.gate()}
}

// list lists the member's container in the fence file, before the container runs.
func (f *fencing) list(c node.Container) {
	if !f.claim.atMostOne() {
		return
	}
	f.container = c.ID
	if c.State != node.ContainerExited {
		f.fence.list(f.listing())
	}
}

// fencePoll is the time between two looks at the fence.
const fencePoll = 20 * time.Millisecond

// admit waits until the container may be started: the lease is fresh, and a deadman
// will end the container when the lease is not. If that cannot be, it returns the
// member's exit.
func (f *fencing) admit(patience time.Time) (*failure.Exit, error) {
	for {
		err := f.fence.admits(f.listing())
		switch {
		case err == nil:
			return nil, nil
		case errors.Is(err, errFenced):
			x := notStarted(failure.CauseFenced, f.text())
			return &x, nil
		case stops(f.orders.standing()):
			x := notStarted(failure.CauseNotStarted, "stopped before the container was started")
			return &x, nil
		case errors.Is(err, errNotYet):
		case time.Now().After(patience):
			x := notStarted(failure.CauseEngine, err.Error())
			return &x, nil
		default:
			if err := f.fence.demand(f.ctx); err != nil {
				f.log.Warn("deadman does not answer, will retry", "err", err)
			}
		}
		if err := sleep(f.ctx, fencePoll); err != nil {
			return nil, err
		}
	}
}

// text is the message of an exit by the fence.
func (f *fencing) text() string {
	after := spec.Duration(f.fence.cfg.After)
	return fmt.Sprintf("fenced: machine %s had no contact with the control plane for %s", f.machine, after)
}

// visible waits until the deadman can find the container's processes. It returns
// false for a running container that stays invisible: the deadman could not end it.
func (f *fencing) visible() (bool, error) {
	for deadline := time.Now().Add(f.timing.EnginePatience); ; {
		pids, err := deadman.Processes(f.container)
		if err == nil && len(pids) > 0 {
			return true, nil
		}
		if c, err := f.runtime.Inspect(f.ctx, f.name()); err == nil && c.State != node.ContainerRunning {
			return true, nil // it has ended already
		}
		if time.Now().After(deadline) {
			return false, nil
		}
		if err := sleep(f.ctx, fencePoll); err != nil {
			return false, err
		}
	}
}

// conclude enforces the end of at_most_one work: when it returns, no process of the container
// lives, regardless of the engine's report. It returns the exit, which names the fence as its
// cause if the fence has ended the container.
func (f *fencing) conclude(x failure.Exit) (failure.Exit, error) {
	if !f.claim.atMostOne() {
		return x, nil
	}
	if f.container == "" {
		f.container = f.fence.containerOf(f.name())
	}
	if err := f.kill(f.ctx, f.container); err != nil {
		return x, err
	}
	if !f.scratch.isOpen() {
		return x, nil
	}
	at, closed := deadman.GateClosed(f.scratch.gate())
	if closed && x.Cause != failure.CauseFenced && !x.FinishedAt.Before(at) {
		x.Cause, x.Message = failure.CauseFenced, f.text()
	}
	return x, nil
}

// clear takes an abandoned member off the list after its removal.
func (f *fencing) clear(ctx context.Context) error {
	return f.kill(ctx, f.fence.containerOf(f.name()))
}

// kill kills the processes that are left of a listed container, until none is, and
// takes the container off the list.
func (f *fencing) kill(ctx context.Context, container string) error {
	for wait := f.timing.backoff(); container != ""; {
		n, err := deadman.Kill(container)
		if err == nil && n == 0 {
			break
		}
		f.log.Warn("killed processes that outlived their container", "processes", n, "err", err)
		if err := wait.wait(ctx); err != nil {
			return err
		}
	}
	f.fence.drop(container)
	return nil
}
