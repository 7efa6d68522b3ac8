package docker

import (
	"context"
	"time"

	"github.com/docker/docker/api/types/filters"

	"berth/activities/node"
)

// SetSearchTime sets the bound of the search for folders of outputs.
func (e *Engine) SetSearchTime(d time.Duration) { e.bounds.search = d }

// SetBounds sets the bounds of all calls.
func (e *Engine) SetBounds(d time.Duration) { e.bounds = bounds{d, d, d, d, d, d, d} }

// SetKernelLog replaces the kernel's log.
func (e *Engine) SetKernelLog(k kernelLog) { e.kernel = k }

// HookEnv are the entries that remove variables of an image from a container with a hook.
func HookEnv() []string { return containerConfig(node.ContainerSpec{}, "GPU-1").Env }

// PlainEnv are the entries of a container without a hook.
func PlainEnv() []string { return containerConfig(node.ContainerSpec{}, noDevices).Env }

// PullWaiters is how many callers wait for pulls.
func (e *Engine) PullWaiters() int {
	e.pulls.mu.Lock()
	defer e.pulls.mu.Unlock()
	n := 0
	for _, p := range e.pulls.byKey {
		n += p.waiters
	}
	return n
}

// SweepOlder sweeps one container of accounts if it is older than an age. Other tests create some at the same time.
func (e *Engine) SweepOlder(ctx context.Context, id string, age time.Duration) error {
	return e.accounts.sweep(ctx, e.bounds, age, filters.Arg("id", id))
}

// AccountsOwner is the label value of this engine's containers of accounts.
func (e *Engine) AccountsOwner() string { return e.accounts.owner }

// AccountsName is the name of the container from which the accounts of an image are read.
func (e *Engine) AccountsName(image string) string { return e.accounts.name(image) }

// UseAccounts marks a container of accounts as in use, as a read does.
func (e *Engine) UseAccounts(name string) { e.accounts.use(name) }

// SetLookTime sets the bound for the state of one container of a list.
func (e *Engine) SetLookTime(d time.Duration) { e.bounds.look = d }
