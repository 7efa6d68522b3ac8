package agent

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"berth/activities/node"
	"berth/internal/lib/failpoint"
	"berth/internal/machine/mounts"
)

// removePhase removes the container, its folder, its secrets and its network, without a
// limit of time. Its context is the machine's: the member's has ended.
type removePhase struct {
	*identity
	log     *slog.Logger
	timing  Timing
	runtime node.Runtime
	state   string // the agent's folder
	kept    *keptFolders
	vault   vaultDir
	mounts  *mounts.Table
	stuck   *stuckBoard
	network string // of its job, created on this engine; "": none
	walls   *walls
	fencing *fencing
	helpers *sync.WaitGroup // they may still use the container
}

// Do waits for the member's helpers, which may still use its folder, then removes the container,
// its folder and its entry in the fence's list.
func (p *removePhase) Do(ctx context.Context) (phase, error) {
	p.helpers.Wait()
	if !p.known { // without a rank it never had a container
		return phaseGone, nil
	}
	if err := p.clear(ctx); err != nil {
		return "", err
	}
	if err := p.fencing.clear(ctx); err != nil {
		return "", err
	}
	return phaseGone, nil
}

// clear removes the container before the folder, since a container may still write into its
// folder. It repeats a failed removal until the agent stops. A container that runs although the engine
// was to remove it for long counts as stuck.
func (p *removePhase) clear(ctx context.Context) error {
	_ = failpoint.Hit("agent.remove.before")
	begun := time.Now()
	for wait := p.timing.backoff(); ; {
		err := p.runtime.Remove(ctx, p.name())
		if err == nil {
			p.stuck.drop(p.alloc)
			err = errors.Join(p.mounts.Remove(ctx, p.name()), p.vault.remove(p.name()), p.leaveFolder())
		} else if time.Since(begun) > p.timing.DeafAfter && p.runs(ctx) {
			p.stuck.add(p.identity, false)
		}
		if err == nil {
			_ = failpoint.Hit("agent.remove.after")
			p.leaveNetwork(ctx)
			return nil
		}
		if ctx.Err() != nil {
			return err
		}
		p.log.Warn("cannot remove leftovers, will retry", "err", err)
		if err := wait.wait(ctx); err != nil {
			return err
		}
	}
}

// leaveFolder removes the folder of the member, or keeps it for the debug job that holds the member.
func (p *removePhase) leaveFolder() error {
	if p.kept.wants(p.alloc) {
		return p.kept.put(p.name(), p.alloc)
	}
	return removeScratch(p.state, p.name())
}

// runs reports whether the engine says that the container runs.
func (p *removePhase) runs(ctx context.Context) bool {
	c, err := p.runtime.Inspect(ctx, p.name())
	return err == nil && c.State == node.ContainerRunning
}

// leaveNetwork removes the network of the member's job with its rules if this was the network's last member. If
// the removal fails, the sweep removes the network.
func (p *removePhase) leaveNetwork(ctx context.Context) {
	if p.network == "" {
		return
	}
	err := p.walls.remove(ctx, p.network)
	if err != nil && !errors.Is(err, node.ErrNetworkInUse) && ctx.Err() == nil {
		p.log.Warn("cannot remove the network, will be swept", "network", p.network, "err", err)
	}
}
