package queue

// NoteReserved notes that an overdue job of the contender has a start reserved.
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

// MustYieldTo returns the overdue job of the same tenant subtree whose reserved
// start this job would delay, or nil. With the younger job the subtree would hold
// its part of the cluster, and the older one would come after other tenants' jobs:
// those would take its start in the next plan, and so again in each plan after
// that. A subtree that has the whole cluster to itself never yields.
func (r *Shares) MustYieldTo(x *Contender, e *Entry) (older *Entry) {
	for ; x != &r.Root; x = x.Parent {
		if x.reserved == (Amounts{}) || x.Part >= 1 {
			continue
		}
		if AmountsOf(x.Held.Capacity).Plus(x.reserved, -1).Plus(AmountsOf(e.Class.All), 1).Dominant(r.Owned) >= x.Part {
			return x.reservedFor
		}
	}
	return nil
}
