package agent

import (
	"context"
	"errors"
	"sync"
)

// errContainerOver is the reason for the end of sessions whose container has ended.
var errContainerOver = errors.New("the container has ended")

// door admits sessions of users to a member's container while the container runs. The phase watch opens and
// closes it. All methods may be called concurrently.
type door struct {
	mu     sync.Mutex
	ctx    context.Context // nil while the door is closed
	cancel context.CancelCauseFunc
}

// open lets sessions in until close, or until ctx ends.
func (d *door) open(ctx context.Context) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ctx, d.cancel = context.WithCancelCause(ctx)
}

// close ends the contexts of all sessions, with the reason.
func (d *door) close(why error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ctx != nil {
		d.cancel(why)
		d.ctx = nil
	}
}

// enter returns a context that ends when the container does; ok is false while no container runs.
func (d *door) enter() (ctx context.Context, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ctx, d.ctx != nil
}
