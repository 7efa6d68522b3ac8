package agent

import (
	"berth"
	"berth/wire"
)

// hear takes a set of assignments, which may be older than the last one: a report may have been
// answered while the long poll was on its way. Orders only add up, at any age, and the server
// refuses the claim of an obsolete reservation.
func (s *Supervisor) hear(set []wire.Assignment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range set {
		if m := s.members[a.Alloc]; m != nil {
			s.order(m, a)
		} else if offered(a) && !s.outbox.isGone(a.Alloc) {
			s.start(newMember(s, a.Alloc, a.Job, 0, a.Attempt))
		}
	}
}

// assign takes the machine's full set of assignments.
func (s *Supervisor) assign(set []wire.Assignment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range set {
		if m := s.members[a.Alloc]; m != nil {
			s.order(m, a)
			continue
		}
		if s.outbox.isGone(a.Alloc) {
			// The server may have stored the report under way before the order to forget,
			// and then it waits for another one: nothing else would answer the order.
			if a.Orders.Forget {
				s.outbox.addGone(a.Alloc)
			}
			continue
		}
		if !begins(a) {
			continue
		}
		if offered(a) { // the claim decides whether the member belongs to this machine
			s.start(newMember(s, a.Alloc, a.Job, 0, a.Attempt))
			continue
		}
		m := newMember(s, a.Alloc, a.Job, a.Rank, a.Attempt)
		m.adopts, m.known = true, true
		switch {
		case a.State == berth.AllocReserved:
			m.withdrawn = true
		case a.State == berth.AllocOrphaned, a.State == berth.AllocReleased, a.Orders.Forget:
			m.abandon()
		}
		m.order(a)
		s.start(m)
	}
}

// order passes an assignment's orders to its member. An assignment of another job
// under the member's id comes from a restored database that has given the id again:
// the agent obeys none of it, and the registration that follows puts the container
// in quarantine.
func (s *Supervisor) order(m *member, a wire.Assignment) {
	if m.job == a.Job {
		m.order(a)
		return
	}
	m.log.Error("server gave this member's id to another job, registering again", "other_job", a.Job)
	s.control.endSession()
}

// offered reports whether an assignment is a reservation to be claimed.
func offered(a wire.Assignment) bool {
	return a.State == berth.AllocReserved && !stops(a.Orders)
}

// begins reports whether an assignment without a member here needs one.
func begins(a wire.Assignment) bool {
	switch a.State {
	case berth.AllocReserved:
		return true // to be claimed, or to be reported as never started
	case berth.AllocActive, berth.AllocExited:
		return true // an earlier process claimed it; with or without a container, it is ours
	case berth.AllocOrphaned, berth.AllocReleased:
		return a.Orders.Forget || a.Orders.Kill
	default:
		return false // a newer server's
	}
}

// refuse abandons members whose reports the server no longer takes.
func (s *Supervisor) refuse(stale []berth.AllocationID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range stale {
		if m := s.members[id]; m != nil {
			m.log.Warn("member is no longer assigned, removing it")
			m.abandon()
		}
	}
}

// ordered passes on orders to start.
func (s *Supervisor) ordered(started []berth.AllocationID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range started {
		if m := s.members[id]; m != nil {
			m.orders.start()
		}
	}
}
