package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"berth"
	"berth/activities/node"
)

// ErrUnneeded is returned by Run when the machine is of no use: see Config.ShutdownAfter.
var ErrUnneeded = errors.New("the machine has no control plane and no work, and may be shut down")

// belt is the second belt of a machine that a cloud has launched: it ends a machine that the control plane
// does not end, because the machine cannot join, is retired, or has lost its control plane. It counts the time
// in which the machine is of no use, in steps of beltEvery:
//
//	lease    work              count
//	-------  ----------------  ---------------------------------------------------------------------------
//	valid    any               0
//	invalid  running           0: a container runs on through an outage
//	invalid  waiting           0 for reportPatience, in which results may still be reported; then grows
//	invalid  none              grows
//	invalid  unknown           stays: the engine does not answer, or not for a container that may run
//
// A lease is invalid if there was none yet, or if it has expired. Waiting are containers that do not run, and
// members. Only time with waiting work uses up reportPatience; a lease or a running container renews it. Without
// this bound an ended container would keep a machine without end if the control plane is gone for good.
//
// The lease is looked at before and after the look at the work, which may take long: a renewal meanwhile sets
// the count to 0. At the limit Run ends all sessions and members first, so that no container can start, then looks
// at lease and work once more, and returns ErrUnneeded only if the machine is of no use. Otherwise the agent has
// to be started again, and the count begins at 0.
//
// A step adds at most twice its length, in monotonic time. So neither a jump of the clock nor a pause of the
// process or of the virtual machine ends a machine whose lease could not be renewed meanwhile.
//
// The zero limit never ends the machine. All methods may be called concurrently.
type belt struct {
	limit time.Duration
	every time.Duration
	look  func(ctx context.Context) (work, error)
	log   *slog.Logger

	waited time.Duration // with waiting work alone and no lease; of watch, and of Run after the end of watch
	unused time.Duration // the count; of watch

	mu     sync.Mutex
	leased time.Time // the last renewal of the lease; zero: none
}

// work is what a machine has to do.
type work int

// The kinds of work: the higher one counts.
const (
	workNone    work = iota
	workWaiting      // a member, or a container that does not run: it may have results to report
	workRunning      // a running container
)

// reportPatience is the time for which a machine without a lease keeps results that it cannot report.
const reportPatience = 24 * time.Hour

// renewed notes a renewal of the machine's lease.
func (b *belt) renewed() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.leased = time.Now()
}

// holdsLease reports whether the lease is valid.
func (b *belt) holdsLease() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.leased.IsZero() && time.Since(b.leased) < berth.MachineLeaseTTL
}

// watch calls end once the machine was of no use for as long as the limit, and returns; or it returns when ctx
// ends.
func (b *belt) watch(ctx context.Context, end func()) {
	if b.limit == 0 {
		return
	}
	tick := time.NewTicker(b.every)
	defer tick.Stop()
	for last := time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := time.Now()
		passed := min(now.Sub(last), 2*b.every)
		last = now
		if b.count(ctx, passed) {
			b.log.Warn("machine has no control plane and no work, shutting down", "for", b.limit)
			end()
			return
		}
	}
}

// count adds a step and reports whether the limit is reached.
func (b *belt) count(ctx context.Context, passed time.Duration) bool {
	if b.holdsLease() {
		b.unused, b.waited = 0, 0
		return false
	}
	found, err := b.look(ctx)
	switch {
	case b.holdsLease(), err == nil && found == workRunning:
		b.unused, b.waited = 0, 0
		return false
	case err != nil:
		return false
	case b.needs(found):
		b.waited += passed
		b.unused = 0
		return false
	}
	if b.unused == 0 {
		b.log.Warn("machine has no control plane and no work, will shut down", "after", b.limit)
	}
	b.unused += passed
	return b.unused >= b.limit
}

// needs reports whether work keeps a machine without a lease.
func (b *belt) needs(found work) bool {
	return found == workRunning || found == workWaiting && b.waited < reportPatience
}

// beltPatience bounds a look at the containers.
const beltPatience = 20 * time.Second

// look returns the work of the machine: containers of any cluster, and members. After a failure of the agent that
// lasts, nothing will be reported, so only running containers count.
func (a *Agent) look(ctx context.Context) (work, error) {
	a.mu.Lock()
	sup, failed := a.sup, a.failed
	a.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, beltPatience)
	defer cancel()
	found, err := a.cfg.Runtime.List(ctx, map[string]string{berth.LabelMachine: string(a.cfg.Machine)})
	if err != nil {
		return workNone, fmt.Errorf("look for containers: %w", err)
	}
	in := func(s node.ContainerState) bool {
		return slices.ContainsFunc(found, func(c node.Container) bool { return c.State == s })
	}
	switch {
	case in(node.ContainerRunning):
		return workRunning, nil
	case in(node.ContainerUnknown):
		return workNone, errors.New("look for containers: the engine does not give the state of one of them")
	case !failed && (len(found) > 0 || sup != nil && sup.size() > 0):
		return workWaiting, nil
	}
	return workNone, nil
}

// fail notes that the agent has failed.
func (a *Agent) fail() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.failed = true
}

// unneeded is called after the end of all sessions and members, and of the belt's watch. It returns ErrUnneeded if
// the machine is of no use. A lease counts unless the agent has failed: a machine that was removed may have one.
func (a *Agent) unneeded(ctx context.Context) error {
	a.mu.Lock()
	a.sup = nil // its members have ended
	failed := a.failed
	a.mu.Unlock()
	found, err := a.look(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("shut down this machine: %w", err)
	case !failed && a.belt.holdsLease():
		return errors.New("shut down this machine: its lease was renewed, the agent has to start again")
	case a.belt.needs(found):
		return errors.New("shut down this machine: a container is left, the agent has to start again")
	}
	return ErrUnneeded
}

// size returns the number of members.
func (s *Supervisor) size() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.members)
}
