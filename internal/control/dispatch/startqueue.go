package dispatch

import (
	"context"
	"sync"

	"berth"
)

// waitingStarts is how many jobs of one tenant may wait in a startQueue. The sweep
// finds further ones in the rows.
const waitingStarts = sweepBatch

// startQueue holds jobs whose workflows are to be started. It hands out one job of each
// tenant in turn, so that a tenant with a long backlog delays only its own jobs. All
// methods may be called concurrently.
type startQueue struct {
	mu      sync.Mutex
	tenants map[berth.TenantID][]start // those with jobs, the oldest first
	turns   []berth.TenantID           // the same tenants, in the order of their turns
	ready   chan struct{}              // has a value if a job may wait
}

func newStartQueue() *startQueue {
	return &startQueue{tenants: map[berth.TenantID][]start{}, ready: make(chan struct{}, 1)}
}

// push adds a job. It returns false if too many jobs of its tenant wait.
func (q *startQueue) push(s start) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	waiting, known := q.tenants[s.Tenant]
	if len(waiting) >= waitingStarts {
		return false
	}
	if !known {
		q.turns = append(q.turns, s.Tenant)
	}
	q.tenants[s.Tenant] = append(waiting, s)
	q.signal()
	return true
}

// next waits for a job and removes it. It returns false when the context ends.
func (q *startQueue) next(ctx context.Context) (start, bool) {
	for {
		select {
		case <-ctx.Done():
			return start{}, false
		case <-q.ready:
		}
		if s, ok := q.pop(); ok {
			return s, true
		}
	}
}

func (q *startQueue) pop() (s start, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.turns) == 0 {
		return start{}, false
	}
	tenant := q.turns[0]
	q.turns = q.turns[1:]
	waiting := q.tenants[tenant]
	s, waiting = waiting[0], waiting[1:]
	if len(waiting) > 0 {
		q.tenants[tenant] = waiting
		q.turns = append(q.turns, tenant)
	} else {
		delete(q.tenants, tenant)
	}
	if len(q.turns) > 0 {
		q.signal() // another goroutine takes the next job
	}
	return s, true
}

func (q *startQueue) signal() {
	select {
	case q.ready <- struct{}{}:
	default:
	}
}
