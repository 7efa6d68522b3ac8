package docker

import (
	"time"

	"berth/activities/node"
)

// SetSearchTime sets the bound of the search for folders of outputs.
func (e *Engine) SetSearchTime(d time.Duration) { e.searchTime = d }

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
