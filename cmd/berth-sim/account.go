package main

import (
	"slices"
	"time"

	"berth"
	"berth/placement"
)

// account is a tenant's row, with the usage and stall clocks that the leader would write to
// the database.
type account struct {
	placement.Tenant
}

// open adds the tenants to the replay and to its snapshot.
func (r *replay) open(tenants []placement.Tenant) {
	for _, t := range tenants {
		t.Usage.At = origin
		r.tenants[t.ID] = &account{t}
		r.snapshot.UpsertTenant(t)
	}
}

// stalledBy returns the time for which the tenant has been at its limits, up to now. Jobs
// do not age during that time: the wait is their own tenant's doing.
func (a *account) stalledBy(now time.Time) time.Duration {
	if a.StalledSince.IsZero() {
		return a.Stalled
	}
	return a.Stalled + now.Sub(a.StalledSince)
}

// stall runs the stall clocks of the listed tenants and stops all others. It writes only
// the tenants that change.
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

// used charges the tenant with a run that has ended; without a half-life, usage does not
// count and is not kept.
func (r *replay) used(t *task, ran time.Duration) {
	halfLife := r.planner.Policy.HalfLife
	if a := r.tenants[t.tenant]; a != nil && halfLife > 0 {
		a.Usage = a.Usage.Ran(total(t.grants), r.now.Add(-ran), r.now, halfLife)
		r.snapshot.UpsertTenant(a.Tenant)
	}
}

// penalise charges the tenant with the entry penalty of a start; see
// placement.Policy.EntryPenalty.
func (r *replay) penalise(t *task) {
	p := r.planner.Policy
	if a := r.tenants[t.tenant]; a != nil && p.HalfLife > 0 && p.EntryPenalty > 0 {
		a.Usage = a.Usage.Decayed(r.now, p.HalfLife).Charge(total(t.grants), p.EntryPenalty)
		r.snapshot.UpsertTenant(a.Tenant)
	}
}

// save records the latest checkpoint of every running job in the snapshot, since the
// planner prices a preemption by the work since then. Checkpoints come at fixed intervals
// of work, which begins after the start cost.
func (r *replay) save() {
	if !r.planner.Policy.Preempt {
		return
	}
	for _, t := range r.running {
		worked := r.now.Sub(t.started) - t.startCost
		// A job that saves loses nothing by a preemption, and a job before its first
		// checkpoint has nothing to record.
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

// total sums the capacity of the grants.
func total(grants []berth.Grant) berth.Capacity {
	var c berth.Capacity
	for _, g := range grants {
		c = c.Add(g.Capacity)
	}
	return c
}
