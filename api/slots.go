package api

import (
	"context"
	"sync"

	"berth"
)

// slots bound the number of concurrent calls, and share that number among tenants: a free
// slot goes to the waiting tenant that holds the fewest, and no tenant holds more than
// most. Within a tenant the order is first come, first served.
//
// Invariants, under mu: free + the sum of held is constant; a caller waits only while
// free is 0 or its tenant holds most; a share exists only while its tenant holds a slot
// or waits for one.
type slots struct {
	most int // slots of one tenant
	room int // callers of one tenant that may wait

	mu      sync.Mutex
	free    int
	shares  map[berth.TenantID]*share
	arrival uint64 // of the next caller that waits
}

// share is one tenant's part of the slots.
type share struct {
	held    int
	waiting []*slotWaiter
}

// slotWaiter is a waiting call. arrival orders calls of different tenants.
type slotWaiter struct {
	ready   chan struct{} // closed when the slot is granted
	arrival uint64
}

// newSlots returns total slots, at least one, of which a tenant may hold most. room
// bounds the waiting calls of a tenant.
func newSlots(total, most, room int) *slots {
	return &slots{most: max(most, 1), room: room, free: max(total, 1), shares: map[berth.TenantID]*share{}}
}

// take waits for a slot. The caller returns it with give. take fails with unavailable at
// once if too many of the tenant's calls wait, and when ctx ends.
func (s *slots) take(ctx context.Context, tenant berth.TenantID) error {
	s.mu.Lock()
	mine := s.shares[tenant]
	if mine == nil {
		mine = &share{}
		s.shares[tenant] = mine
	}
	if s.free > 0 && mine.held < s.most {
		s.grant(mine)
		s.mu.Unlock()
		return nil
	}
	if len(mine.waiting) >= s.room {
		s.mu.Unlock()
		return berth.Errorf(berth.CodeUnavailable,
			"tenant %s has %d calls that wait for the server already; try again", tenant, s.room)
	}
	w := &slotWaiter{ready: make(chan struct{}), arrival: s.arrival}
	s.arrival++
	mine.waiting = append(mine.waiting, w)
	s.mu.Unlock()
	select {
	case <-w.ready:
		return nil
	case <-ctx.Done():
		s.leave(tenant, w)
		return berth.Errorf(berth.CodeUnavailable, "the server had no time for the call; try again")
	}
}

// leave withdraws a waiting call. If the slot was granted meanwhile, leave returns the
// slot: ctx may end at the same moment as the grant.
func (s *slots) leave(tenant berth.TenantID, w *slotWaiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	mine := s.shares[tenant]
	for i, x := range mine.waiting {
		if x == w {
			mine.waiting = append(mine.waiting[:i:i], mine.waiting[i+1:]...)
			s.clean(tenant, mine)
			return
		}
	}
	s.put(tenant, mine)
}

// give returns a slot.
func (s *slots) give(tenant berth.TenantID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.put(tenant, s.shares[tenant])
}

// put frees a slot of the tenant and grants free slots to waiting calls; s.mu is held.
func (s *slots) put(tenant berth.TenantID, mine *share) {
	s.free++
	mine.held--
	s.clean(tenant, mine)
	for s.free > 0 {
		next := s.next()
		if next == nil {
			return
		}
		w := next.waiting[0]
		next.waiting = next.waiting[1:]
		s.grant(next)
		close(w.ready)
	}
}

// grant counts a slot as held; s.mu is held.
func (s *slots) grant(to *share) {
	s.free--
	to.held++
}

// clean removes the share of a tenant without slots and waiting calls; s.mu is held.
func (s *slots) clean(tenant berth.TenantID, mine *share) {
	if mine.held == 0 && len(mine.waiting) == 0 {
		delete(s.shares, tenant)
	}
}

// next picks the tenant's share that gets a free slot: fewest slots first, and among
// equals the longest wait. nil: no waiting call may have a slot.
func (s *slots) next() *share {
	var best *share
	for _, x := range s.shares {
		if len(x.waiting) == 0 || x.held >= s.most {
			continue
		}
		if best == nil || x.held < best.held || x.held == best.held && x.waiting[0].arrival < best.waiting[0].arrival {
			best = x
		}
	}
	return best
}
