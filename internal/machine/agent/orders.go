package agent

import "berth"

// hear takes what an answer tells that may be older than one before it, as a
// long poll's is once a report was answered meanwhile. Orders only add up,
// whatever their age, and a reservation that is none any more costs a claim
// that is refused.
func (s *Supervisor) hear(set []berth.Assignment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range set {
		if r := s.ranks[a.Alloc]; r != nil {
			s.order(r, a)
		} else if offered(a) && !s.gone[a.Alloc] {
			s.takeUp(a.Alloc, a.Job, a.Attempt)
		}
	}
}

// assign takes the machine's full set of assignments.
func (s *Supervisor) assign(set []berth.Assignment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range set {
		if r := s.ranks[a.Alloc]; r != nil {
			s.order(r, a)
			continue
		}
		if s.gone[a.Alloc] || !begins(a) {
			continue
		}
		if offered(a) {
			s.takeUp(a.Alloc, a.Job, a.Attempt)
			continue
		}
		r := newRank(s, a.Alloc, a.Job, a.Rank, a.Attempt)
		r.adopts, r.named = true, true
		switch {
		case a.State == berth.AllocReserved:
			r.withdrawn = true
		case a.State == berth.AllocOrphaned, a.State == berth.AllocReleased, a.Orders.Forget:
			r.abandon()
		}
		r.order(a)
		s.start(r)
	}
}

// order gives a rank its orders. An assignment of another job under the rank's id
// comes from a restored database that has given the id again: none of it is
// obeyed, and the registration that follows puts the container in quarantine.
func (s *Supervisor) order(r *rank, a berth.Assignment) {
	if r.job == a.Job {
		r.order(a)
		return
	}
	r.log.Error("server gave this member's id to another job, registering again", "other_job", a.Job)
	s.control.endSession()
}

// offered reports whether an assignment is a reservation to be claimed.
func offered(a berth.Assignment) bool {
	return a.State == berth.AllocReserved && !stops(a.Orders)
}

// begins reports whether an assignment that has no rank here asks for one.
func begins(a berth.Assignment) bool {
	switch a.State {
	case berth.AllocReserved:
		return true // to be claimed, or to be told that it never will be
	case berth.AllocActive, berth.AllocExited:
		return true // an earlier process claimed it; with or without a container, it is ours
	case berth.AllocOrphaned, berth.AllocReleased:
		return a.Orders.Forget || a.Orders.Kill
	default:
		return false // a newer server's
	}
}

// refuse drops ranks whose reports the server does not take any more.
func (s *Supervisor) refuse(stale []berth.AllocationID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range stale {
		if r := s.ranks[id]; r != nil {
			r.log.Warn("rank is not current any more and goes")
			r.abandon()
		}
	}
}

// ordered hands out orders to start.
func (s *Supervisor) ordered(started []berth.AllocationID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range started {
		if r := s.ranks[id]; r != nil {
			r.orderStart()
		}
	}
}

// stops reports whether the orders end a rank.
func stops(o berth.Orders) bool { return o.Stop || o.Kill || o.Checkpoint }
