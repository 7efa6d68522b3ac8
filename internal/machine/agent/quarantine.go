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

	mu   sync.Mutex
	list map[berth.AllocationID]quarantined
}

// quarantined is one container. It runs, or its state was unknown when the agent listed it.
type quarantined struct {
	name    string
	unknown bool
}

// reset empties the list: each registration brings a new verdict.
func (q *quarantine) reset() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.list = map[berth.AllocationID]quarantined{}
}

// add puts a container under quarantine.
func (q *quarantine) add(id berth.AllocationID, c node.Container) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.list[id] = quarantined{c.Name, c.State == node.ContainerUnknown}
}

// has reports whether the allocation's container is under quarantine.
func (q *quarantine) has(id berth.AllocationID) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	_, ok := q.list[id]
	return ok
}

// watch reports the end of containers in quarantine. An ended container is removed
// by the verdict of the next registration.
//
// A container of unknown state may turn out to have never started: its start hung and then failed. It holds no work,
// so it leaves the quarantine too, and the stray sweep removes it. It must be seen so twice: a start that an earlier
// process ordered may not have taken the container's lock at the first look.
func (q *quarantine) watch(ctx context.Context, b beat, every time.Duration) {
	unstarted := map[berth.AllocationID]bool{} // at the look before
	for b.sleep(ctx, every) == nil {
		q.mu.Lock()
		watched := maps.Clone(q.list)
		q.mu.Unlock()
		before := unstarted
		unstarted = map[berth.AllocationID]bool{}
		for id, one := range watched {
			c, err := q.runtime.Inspect(ctx, one.name)
			switch {
			case errors.Is(err, node.ErrNoContainer), err == nil && c.State == node.ContainerExited:
				q.log.Info("quarantined container ended", "container", one.name)
				q.release(id)
			case err != nil || c.State != node.ContainerCreated || !one.unknown:
			case before[id]:
				q.log.Info("quarantined container was never started", "container", one.name)
				q.release(id)
			default:
				unstarted[id] = true
			}
		}
	}
}

// release removes an allocation from quarantine and reports its end.
func (q *quarantine) release(id berth.AllocationID) {
	q.mu.Lock()
	delete(q.list, id)
	q.mu.Unlock()
	q.outbox.addGone(id)
}
