package placement

import "slices"

// rights are the jobs that one blocked job may displace, by their tenants.
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
//   - One that was overdue when it started goes for neither of the last two
//     reasons: others who come one after the other would never let it end.
type rights struct {
	entry     *entry
	band      int
	tenants   []toward  // by account.index
	peers     tenantSet // of whom one in the same band, or a higher one, may go
	borrowers bool      // some may go whatever their band
}

// toward is what a claim may do to the jobs of one tenant.
type toward struct {
	lower    bool // displace those of lower bands
	borrower bool // displace any
	equal    bool // of the same band, for its share
	mine     float64
	their    *contender
}

// grantRights computes the rights of a job.
func (r *preemption) grantRights(x *contender, e *entry) {
	t := &r.rights
	*t = rights{entry: e, band: r.policy.band(e.Priority),
		tenants: slices.Grow(t.tenants[:0], len(r.shares.contenders))[:len(r.shares.contenders)]}
	var last *contender // of ours
	mine := 0.0
	for i, theirs := range r.shares.contenders {
		w := toward{lower: true}
		if ours, their := siblings(x, theirs); their != nil {
			shield := r.shares.guarantees && shielded(theirs, their)
			w = toward{lower: !shield, their: their}
			w.borrower = r.shares.guarantees && ours.account.guarantees(ours.held.Capacity, e.class.all) &&
				their.account.borrows(their.held.Capacity)
			if r.policy.Order == Fair && !shield {
				if ours != last {
					last = ours
					mine = amountsOf(ours.held.Capacity).plus(ours.past, 1).plus(amountsOf(e.class.all),
						1).dominant(r.shares.owned) / ours.account.weight()
				}
				w.mine = mine
				w.equal = w.mine <= amountsOf(their.held.Capacity).plus(their.past,
					1).dominant(r.shares.owned)/their.account.weight()
			}
		}
		t.tenants[i] = w
		t.borrowers = t.borrowers || w.borrower
		if w.borrower || w.equal || r.policy.Order == SRSF && r.policy.Outrank > 0 {
			t.peers.put(theirs.account.index)
		}
	}
}

// may reports whether the claim may displace a holder, and why.
func (r *preemption) may(v victim) (PreemptReason, bool) {
	h, t := v.holder, &r.rights
	if h.stopped == r.number || slices.Contains(h.PreemptedFor, t.entry.ID) {
		return "", false
	}
	w := &t.tenants[h.owner.account]
	switch {
	case v.band < t.band && w.lower:
		return PreemptBand, true
	case w.borrower:
		return PreemptQuota, true
	case v.band != t.band, r.policy.settled(h):
		return "", false
	}
	switch r.policy.Order {
	case Fair:
		if !w.equal {
			return "", false
		}
		they := amountsOf(w.their.held.Capacity).plus(w.their.past, 1).plus(amountsOf(h.capacity),
			-1).dominant(r.shares.owned) / w.their.account.weight()
		return PreemptShare, w.mine <= they
	case SRSF:
		return PreemptRank, r.policy.Outrank > 0 && r.policy.running(h, r.now) > t.entry.rank*r.policy.Outrank
	case Priority, FIFO:
		return "", false
	}
	panic("placement: no such order")
}
