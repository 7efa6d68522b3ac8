package queue

import (
	"cmp"
	"slices"

	"berth"
	"berth/placement/cluster"
)

// HoldEnd is the end of a running job that gives way to every other job. It lets quotas admit another job.
type HoldEnd struct {
	Job   berth.JobID
	Quota berth.TenantID // with a quota that counts the job, and bars the other one
}

// HoldEnds returns the jobs that must end so that all quotas admit one more job of the contender. running has the jobs
// that give way; ending reports the ones that end in any case, which count as
// ended. None of the returned jobs can be left out. The jobs of other tenants, and then the newest ones, stay if there
// is a choice.
//
// HoldEnds returns nothing if the ends cannot help, such as for a spent budget, or if the jobs that end suffice. ok
// reports whether the quotas admit the job in the end.
func (r *Shares) HoldEnds(
	x *Contender, e *Entry, running []*cluster.Holder, ending func(*cluster.Holder) bool,
) (list []HoldEnd, ok bool) {
	var ends, others []*cluster.Holder
	for _, h := range running {
		if ending(h) {
			ends = append(ends, h)
		} else {
			others = append(others, h)
		}
	}
	if r.admits(x, e, ends) {
		return nil, true
	}
	all := slices.Concat(ends, others)
	if !r.admits(x, e, all) {
		return nil, false
	}
	tenant := r.queue.Account(e.Tenant)
	slices.SortFunc(others, func(a, b *cluster.Holder) int {
		own := func(h *cluster.Holder) int {
			if r.queue.Account(h.Tenant) == tenant {
				return 1
			}
			return 0
		}
		return cmp.Or(cmp.Compare(own(a), own(b)), b.StartedAt.Compare(a.StartedAt), cmp.Compare(a.Job, b.Job))
	})
	for _, h := range others {
		less := slices.DeleteFunc(slices.Clone(all), func(o *cluster.Holder) bool { return o == h })
		if r.admits(x, e, less) {
			all = less
			continue
		}
		list = append(list, HoldEnd{Job: h.Job, Quota: r.barring(x, e, h)})
	}
	return list, true
}

// admits reports whether all quotas would admit one more job of the contender if some running jobs had ended.
func (r *Shares) admits(x *Contender, e *Entry, ended []*cluster.Holder) bool {
	for ; x != &r.Root; x = x.Parent {
		if r.barsWithout(x, e, ended) {
			return false
		}
	}
	return true
}

// barring returns the first account, from the contender's own upward, with a quota that bars the job and counts h.
func (r *Shares) barring(x *Contender, e *Entry, h *cluster.Holder) berth.TenantID {
	for ; x != &r.Root; x = x.Parent {
		if r.barsWithout(x, e, nil) && r.queue.Account(h.Tenant).Below(x.Account) {
			return x.Account.ID
		}
	}
	return ""
}

// barsWithout reports whether a quota of the contender's account itself bars one more job, if some running jobs had
// ended. The GPU hours that they have spent stay spent.
func (r *Shares) barsWithout(x *Contender, e *Entry, ended []*cluster.Holder) bool {
	a := x.Account
	if !a.Known || x.own {
		return false
	}
	held := x.Held.plus(x.going)
	spent := a.Budget.SpentAt(r.Now, held.GPUMilli)
	for _, h := range ended {
		if r.queue.Account(h.Tenant).Below(a) {
			held.add(berth.Capacity{}.Sub(h.Capacity), h.Preemptible, -1)
		}
	}
	return !a.bars(held, e.Class.All, e.Preemptible, spent, func(Bar) bool { return false })
}
