package queue

// NoteReserved records that an overdue job of the contender has a reserved start. The
// amounts count for the contender and all its ancestors; only the first such job is kept,
// for explanations.
func (r *Shares) NoteReserved(x *Contender, e *Entry) {
	if !e.Overdue || r.policy.Order != Fair {
		return
	}
	for ; x != &r.Root; x = x.Parent {
		x.reserved = x.reserved.Plus(AmountsOf(e.Class.All), 1)
		if x.reservedFor == nil {
			x.reservedFor = e
		}
	}
}

// MustYieldTo returns the overdue job of the same tenant subtree with a reserved start that
// this job would delay, or nil.
//
// With the younger job, the subtree would hold its part of the cluster, and the older job
// would come after other tenants' jobs: these would take its start in the next plan, and
// again in each plan after that. A subtree that has the whole cluster to itself never
// yields.
func (r *Shares) MustYieldTo(x *Contender, e *Entry) (older *Entry) {
	for ; x != &r.Root; x = x.Parent {
		if x.reserved == (Amounts{}) || x.Part >= 1 {
			continue
		}
		// Held includes the reserved amounts, since a reserved start is charged like a
		// start.
		if AmountsOf(x.Held.Capacity).Plus(x.reserved, -1).Plus(AmountsOf(e.Class.All), 1).Dominant(r.Owned) >= x.Part {
			return x.reservedFor
		}
	}
	return nil
}
