package placement

import "slices"

// bounds looks at a glance whether the job could displace any of its own band
// or a higher one.
func (r *run) bounds(x *seat, e *entry) {
	r.peers = false
	switch r.policy.Order {
	case SRSF:
		r.peers = r.policy.Outrank > 0
	case Fair:
		r.peers = len(r.snapshot.accounts) > 0
	case Priority, FIFO:
		r.peers = x.guaranteed(r, e)
	}
}

// may reports whether the job may displace a holder, and why.
//
//   - One that cannot be preempted, stops already, has run for less than the
//     minimum, or has given way to this job before, is left alone.
//   - One of a lower band goes, unless its tenant is another and has no more than
//     its guarantee.
//   - One of a tenant that borrows goes for a tenant that stays within its
//     guarantee.
//   - In fair order, one of the same band goes if its tenant has, without it,
//     still at least the share that the claimant's has with the job: so it can
//     never be displaced back.
//   - In order srsf, one of the same band goes if it has Outrank times the
//     service to go.
func (r *run) may(x *seat, e *entry, v victim) (PreemptReason, bool) {
	h := v.holder
	if h.told == r.number || slices.Contains(h.PreemptedFor, e.ID) {
		return "", false
	}
	theirs := v.seat
	ours, their := siblings(x, theirs)
	mine, band := r.policy.band(e.Priority), v.band
	if mine > band && (their == nil || !shielded(theirs, their)) {
		return PreemptBand, true
	}
	if their != nil && ours.account.guarantees(ours.held.Capacity, e.class.all) && their.account.borrows(their.held.Capacity) {
		return PreemptQuota, true
	}
	if mine != band {
		return "", false
	}
	switch r.policy.Order {
	case Fair:
		if their == nil || shielded(theirs, their) {
			return "", false
		}
		we := amountsOf(ours.held.Capacity).plus(ours.past, 1).plus(amountsOf(e.class.all), 1).dominant(r.owned) / ours.account.weight()
		they := amountsOf(their.held.Capacity).plus(their.past, 1).plus(amountsOf(h.capacity), -1).dominant(r.owned) / their.account.weight()
		return PreemptShare, we <= they
	case SRSF:
		return PreemptRank, r.policy.Outrank > 0 && r.policy.running(h, r.now) > e.rank*r.policy.Outrank
	case Priority, FIFO:
		return "", false
	}
	panic("placement: no such order")
}

// shielded reports whether a holder's tenant, or one between it and top, has no
// more than what is guaranteed to it.
func shielded(x, top *seat) bool {
	for ; x != nil; x = x.parent {
		if a := x.account; a.known && a.guaranteed() && !a.borrows(x.held.Capacity) {
			return true
		}
		if x == top {
			break
		}
	}
	return false
}

// guaranteed reports whether anything is guaranteed to the account.
func (a *account) guaranteed() bool {
	for _, x := range resources {
		if x.of(a.Guarantee) > 0 {
			return true
		}
	}
	return false
}

// guaranteed reports whether the job stays within its tenant's guarantee.
func (x *seat) guaranteed(r *run, e *entry) bool {
	for ; x != &r.root; x = x.parent {
		if x.account.guarantees(x.held.Capacity, e.class.all) {
			return true
		}
	}
	return false
}

// seatOf is the seat that a holder is charged to.
func (r *run) seatOf(h *holder) *seat { return r.seats[r.snapshot.account(h.Tenant)] }

// siblings are the seats in which two accounts part: below the same one. They
// are nil if one is above the other, or both are the same.
func siblings(a, b *seat) (x, y *seat) {
	for x = a; x.parent != nil; x = x.parent {
		for y = b; y.parent != nil; y = y.parent {
			if x.parent == y.parent && x != y {
				return x, y
			}
			if x == y {
				return nil, nil
			}
		}
	}
	return nil, nil
}
