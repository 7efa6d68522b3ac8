package dispatch

import (
	"context"
	"sync"

	"berth"
)

// waitingStarts bounds the jobs of one tenant in a startQueue. The sweep finds further ones
// in the rows.
const waitingStarts = sweepBatch

// startQueue holds jobs for the start of their workflows. It returns one job of each tenant
// in turn, so that a tenant with a long backlog delays only its own jobs. A caller reserves
// a job before it waits for room at Temporal, and takes one only once it has room, so that
// the turns at that moment decide. All methods may be called concurrently.
type startQueue struct {
	mu       sync.Mutex
	tenants  map[berth.TenantID][]start // tenants with jobs, the oldest job first
	turns    []berth.TenantID           // the same tenants, in the order of their turns
	queued   int                        // jobs of all tenants
	reserved int                        // callers that will take a job; at most queued
	ready    chan struct{}              // has a value if a job may be free to reserve
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
	q.queued++
	q.signal()
	return true
}

// reserve waits for a job. The caller then calls take or unreserve, once. It returns false
// when the context ends.
func (q *startQueue) reserve(ctx context.Context) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-q.ready:
		}
		if q.tryReserve() {
			return true
		}
	}
}

func (q *startQueue) tryReserve() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.reserved == q.queued {
		return false
	}
	q.reserved++
	if q.reserved < q.queued {
		q.signal() // another caller reserves the next job
	}
	return true
}

// unreserve leaves the reserved job to another caller.
func (q *startQueue) unreserve() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.reserved--
	q.signal()
}

// take removes and returns the next job in turn. The caller has reserved one.
func (q *startQueue) take() start {
	q.mu.Lock()
	defer q.mu.Unlock()
	tenant := q.turns[0]
	q.turns = q.turns[1:]
	waiting := q.tenants[tenant]
	s, waiting := waiting[0], waiting[1:]
	if len(waiting) > 0 {
		q.tenants[tenant] = waiting
		q.turns = append(q.turns, tenant)
	} else {
		delete(q.tenants, tenant)
	}
	q.queued--
	q.reserved--
	return s
}

func (q *startQueue) signal() {
	select {
	case q.ready <- struct{}{}:
	default:
	}
}
