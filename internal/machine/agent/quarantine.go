package agent

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"time"

	"berth"
	"berth/activities/node"
)

// quarantine lists the containers on this machine that carry its labels and that
// the server does not know. They run on untouched. The server gives the machine new
// work once they have ended. All methods may be called concurrently.
type quarantine struct {
	runtime node.Runtime
	outbox  *outbox
	log     *slog.Logger

	mu    sync.Mutex
	names map[berth.AllocationID]string // of containers
}

// reset empties the list: each registration brings a new verdict.
func (q *quarantine) reset() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.names = map[berth.AllocationID]string{}
}

// add puts a container under quarantine.
func (q *quarantine) add(id berth.AllocationID, container string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.names[id] = container
}

// has reports whether the allocation's container is under quarantine.
func (q *quarantine) has(id berth.AllocationID) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.names[id] != ""
}

// watch reports the end of containers in quarantine. An ended container is removed
// by the verdict of the next registration.
func (q *quarantine) watch(ctx context.Context, b beat, every time.Duration) {
	for b.sleep(ctx, every) == nil {
		q.mu.Lock()
		watched := maps.Clone(q.names)
		q.mu.Unlock()
		for id, name := range watched {
			c, err := q.runtime.Inspect(ctx, name)
			if errors.Is(err, node.ErrNoContainer) || err == nil && c.State == node.ContainerExited {
				q.log.Info("quarantined container ended", "container", name)
				q.release(id)
			}
		}
	}
}

// release removes an allocation from quarantine and reports its end.
func (q *quarantine) release(id berth.AllocationID) {
	q.mu.Lock()
	delete(q.names, id)
	q.mu.Unlock()
	q.outbox.addGone(id)
}
