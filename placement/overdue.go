package placement

// noteReserved notes that an overdue job of the contender has a start reserved.
func (r *shares) noteReserved(x *contender, e *entry) {
	if !e.overdue || r.policy.Order != Fair {
		return
	}
	for ; x != &r.root; x = x.parent {
		x.reserved = x.reserved.plus(amountsOf(e.class.all), 1)
		if x.reservedFor == nil {
			x.reservedFor = e
		}
	}
}

// mustYieldTo returns the overdue job of the same tenant subtree whose reserved
// start this job would delay, or nil. With the younger job the subtree would hold
// its part of the cluster, and the older one would come after other tenants' jobs:
// those would take its start in the next plan, and so again in each plan after
// that. A subtree that has the whole cluster to itself never yields.
func (r *shares) mustYieldTo(x *contender, e *entry) (older *entry) {
	for ; x != &r.root; x = x.parent {
		if x.reserved == (amounts{}) || x.part >= 1 {
			continue
		}
		if amountsOf(x.held.Capacity).plus(x.reserved, -1).plus(amountsOf(e.class.all), 1).dominant(r.owned) >= x.part {
			return x.reservedFor
		}
	}
	return nil
}
