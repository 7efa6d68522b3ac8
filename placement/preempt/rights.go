package preempt

import (
	"slices"

	"berth/placement/queue"
)

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
	entry     *queue.Entry
	band      int
	tenants   []toward  // by Account.Index
	peers     tenantSet // of whom one in the same band, or a higher one, may go
	borrowers bool      // some may go whatever their band
}

// toward holds the rights of the blocked job over the jobs of one tenant.
type toward struct {
	lower    bool // displace those of lower bands
	borrower bool // displace any
	equal    bool // of the same band, for its share
	mine     float64
	their    *queue.Contender
}

// grantRights computes the rights of a job.
func (r *Search) grantRights(x *queue.Contender, e *queue.Entry) {
	t := &r.rights
	*t = rights{entry: e, band: r.policy.Band(e.Priority),
		tenants: slices.Grow(t.tenants[:0], len(r.shares.Contenders))[:len(r.shares.Contenders)]}
	var last *queue.Contender // of ours
	mine := 0.0
	for i, theirs := range r.shares.Contenders {
		w := toward{lower: true}
		if ours, their := queue.Siblings(x, theirs); their != nil {
			shield := r.shares.Guarantees && queue.Shielded(theirs, their)
			w = toward{lower: !shield, their: their}
			w.borrower = r.shares.Guarantees && ours.Account.Guarantees(ours.Held.Capacity, e.Class.All) &&
				their.Account.Borrows(their.Held.Capacity)
			if r.policy.Order == queue.Fair && !shield {
				if ours != last {
					last = ours
					mine = queue.AmountsOf(ours.Held.Capacity).Plus(ours.Past, 1).Plus(queue.AmountsOf(e.Class.All),
						1).Dominant(r.shares.Owned) / ours.Account.ShareWeight()
				}
				w.mine = mine
				w.equal = w.mine <= queue.AmountsOf(their.Held.Capacity).Plus(their.Past,
					1).Dominant(r.shares.Owned)/their.Account.ShareWeight()
			}
		}
		t.tenants[i] = w
		t.borrowers = t.borrowers || w.borrower
		if w.borrower || w.equal || r.policy.Order == queue.SRSF && r.policy.Outrank > 0 {
			t.peers.put(theirs.Account.Index)
		}
	}
}

// may reports whether the blocked job may displace a holder, and why.
func (r *Search) may(v victim) (Reason, bool) {
	h, t := v.Holder, &r.rights
	if h.Stopped == r.Number || slices.Contains(h.PreemptedFor, t.entry.ID) {
		return "", false
	}
	w := &t.tenants[h.Owner.Account]
	switch {
	case v.band < t.band && w.lower:
		return Band, true
	case w.borrower:
		return Quota, true
	case v.band != t.band, r.policy.Settled(h):
		return "", false
	}
	switch r.policy.Order {
	case queue.Fair:
		if !w.equal {
			return "", false
		}
		they := queue.AmountsOf(w.their.Held.Capacity).Plus(w.their.Past, 1).Plus(queue.AmountsOf(h.Capacity),
			-1).Dominant(r.shares.Owned) / w.their.Account.ShareWeight()
		return Share, w.mine <= they
	case queue.SRSF:
		return Rank, r.policy.Outrank > 0 && r.policy.Running(h, r.Now) > t.entry.Rank*r.policy.Outrank
	case queue.Priority, queue.FIFO:
		return "", false
	}
	panic("placement: no such order")
}
