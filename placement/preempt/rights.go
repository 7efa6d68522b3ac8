package preempt

import (
	"slices"

	"berth/placement/cluster"
	"berth/placement/queue"
)

// rights decides which running jobs one blocked job may preempt, by the tenants of both.
//
//   - Never: a job that is not preemptible, stops already, has run for less than
//     MinRuntime, or was preempted for this blocked job before.
//   - Band: a job of a lower band, except another tenant's if that tenant holds no
//     more than its guarantee.
//   - Quota: a job of a borrowing tenant, for a tenant that stays within its guarantee.
//   - Share: in fair order, a job of the same band, if its tenant without that job still
//     has at least the share of the blocked job's tenant with the blocked job. So the
//     victim can never preempt back by the same rule. As for Band, tenants within
//     their guarantee are exempt.
//   - Rank: in order srsf, a job of the same band with more than Outrank times the
//     remaining service.
//
// The order of the queue changes nothing about Band: in order fifo, where bands do not order
// jobs, a job of a higher band may preempt too.
//
// A debug job, which gives way to every other job, may be preempted in any case: from its start on, without regard to
// tenants and guarantees, and by jobs that may not preempt others yet.
//
// A job that was overdue at its start is exempt from Share and Rank: otherwise a stream of
// other jobs could preempt it again and again, so that it never ends.
type rights struct {
	entry     *queue.Entry
	band      int       // of the blocked job
	tenants   []toward  // by Account.Index of the victim
	peers     tenantSet // tenants with possible victims in the same band or a higher one
	borrowers bool      // some victims may be of any band
}

// toward is the rights of the blocked job over the jobs of one tenant. Shares are compared
// between siblings in the tree of accounts; see queue.Siblings.
type toward struct {
	lower    bool             // may preempt jobs of lower bands
	borrower bool             // may preempt jobs of any band: the tenant borrows
	equal    bool             // may preempt jobs of the same band for share, as far as mine allows
	mine     float64          // share of our sibling with the blocked job, over weight
	their    *queue.Contender // the sibling on the victim's side; nil: the same subtree
}

// grantRights computes the rights of a blocked job, with the contender x.
func (r *Search) grantRights(x *queue.Contender, e *queue.Entry) {
	t := &r.rights
	*t = rights{entry: e, band: r.policy.Band(e.Priority),
		tenants: slices.Grow(t.tenants[:0], len(r.shares.Contenders))[:len(r.shares.Contenders)]}
	var last *queue.Contender // the sibling on our side that mine is of
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

// may reports whether the blocked job may preempt a holder, and by which rule.
func (r *Search) may(v victim) (Reason, bool) {
	h, t := v.Holder, &r.rights
	if h.Stopped == r.Number || slices.Contains(h.PreemptedFor, t.entry.ID) {
		return "", false
	}
	w := &t.tenants[h.Owner.Account]
	switch yields := cluster.GivesWay(h.Priority); {
	case yields || r.onlyYielding:
		return Band, yields
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
		// The share of the victim's tenant without the victim.
		they := queue.AmountsOf(w.their.Held.Capacity).Plus(w.their.Past, 1).Plus(queue.AmountsOf(h.Capacity),
			-1).Dominant(r.shares.Owned) / w.their.Account.ShareWeight()
		return Share, w.mine <= they
	case queue.SRSF:
		if most := r.policy.MaxOutranked; most > 0 && len(h.PreemptedFor) >= most {
			return "", false
		}
		return Rank, r.policy.Outrank > 0 && r.policy.Running(h, r.Now) > t.entry.Rank*r.policy.Outrank
	case queue.Priority, queue.FIFO:
		return "", false
	}
	panic("placement: no such order")
}
