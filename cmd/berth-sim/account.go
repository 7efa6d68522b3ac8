package main

import (
	"slices"
	"time"

	"berth"
	"berth/placement"
)

// account is a tenant's row, kept as the leader keeps it.
type account struct {
	placement.Tenant
}

// open brings the tenants in.
func (r *replay) open(tenants []placement.Tenant) {
	for _, t := range tenants {
		t.Usage.At = origin
		r.tenants[t.ID] = &account{t}
		r.snapshot.UpsertTenant(t)
	}
}

// stalledBy is how long the tenant has stood at its limits by then.
func (a *account) stalledBy(now time.Time) time.Duration {
	if a.StalledSince.IsZero() {
		return a.Stalled
	}
	return a.Stalled + now.Sub(a.StalledSince)
}

// stall starts and stops the clocks of tenants that stand at their limits.
func (r *replay) stall(ids []berth.TenantID) {
	for id, a := range r.tenants {
		stands := slices.Contains(ids, id)
		switch {
		case stands && a.StalledSince.IsZero():
			a.StalledSince = r.now
		case !stands && !a.StalledSince.IsZero():
			a.Stalled, a.StalledSince = a.stalledBy(r.now), time.Time{}
		default:
			continue
		}
		r.snapshot.UpsertTenant(a.Tenant)
	}
}

// used charges the tenant with a run that is over.
func (r *replay) used(t *task, ran time.Duration) {
	halfLife := r.planner.Policy.HalfLife
	if a := r.tenants[t.tenant]; a != nil && halfLife > 0 {
		a.Usage = a.Usage.Ran(total(t.grants), r.now.Add(-ran), r.now, halfLife)
		r.snapshot.UpsertTenant(a.Tenant)
	}
}

// penalise charges the tenant for a start.
func (r *replay) penalise(t *task) {
	p := r.planner.Policy
	if a := r.tenants[t.tenant]; a != nil && p.HalfLife > 0 && p.EntryPenalty > 0 {
		a.Usage = a.Usage.Decayed(r.now, p.HalfLife).Charge(total(t.grants), p.EntryPenalty)
		r.snapshot.UpsertTenant(a.Tenant)
	}
}

// save tells the engine which checkpoints running jobs have made.
func (r *replay) save() {
	if !r.planner.Policy.Preempt {
		return
	}
	for _, t := range r.running {
		worked := r.now.Sub(t.started) - t.startCost
		if t.saves || t.checkpoint <= 0 || worked < t.checkpoint {
			continue
		}
		h, _ := r.snapshot.Running(t.job)
		at := t.started.Add(t.startCost + worked.Truncate(t.checkpoint))
		if !h.Checkpoint.Equal(at) {
			h.Checkpoint = at
			r.snapshot.UpsertRunning(h)
		}
	}
}

func total(grants []berth.Grant) berth.Capacity {
	var c berth.Capacity
	for _, g := range grants {
		c = c.Add(g.Capacity)
	}
	return c
}
