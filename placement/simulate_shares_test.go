package placement_test

import (
	"testing"
	"time"

	"berth"
	"berth/placement"
)

// TestAnEstimateDividesTheClusterAgain: once the last job of tenant y has ended, the cluster is tenant x's alone, so its
// younger jobs no longer wait behind the overdue gang.
func TestAnEstimateDividesTheClusterAgain(t *testing.T) {
	t.Parallel()
	h := newHall(4, 8)
	h.run(t, "x1", "x", 1, 8, 20*time.Hour)
	h.run(t, "x2", "x", 1, 8, 20*time.Hour)
	h.run(t, "y1", "y", 1, 8, time.Hour)
	h.wait("gang", "x", 4, 8, time.Hour)
	h.wait("one", "x", 1, 1, 5*time.Hour)
	p := fair
	p.Overdue = time.Hour
	h.expect(t, p, map[berth.JobID]float64{"gang": 20, "one": 1})
}

// TestAnEstimateDividesBelowATenant: the same with the tenants y and x below one, next to a third that stays.
func TestAnEstimateDividesBelowATenant(t *testing.T) {
	t.Parallel()
	h := newHall(5, 8)
	h.UpsertTenant(placement.Tenant{ID: "all", Weight: 4})
	h.UpsertTenant(placement.Tenant{ID: "other", Weight: 1})
	for _, id := range []berth.TenantID{"x", "y"} {
		h.UpsertTenant(placement.Tenant{ID: id, Parent: "all", Weight: 1})
	}
	h.run(t, "o", "other", 1, 8, 40*time.Hour)
	h.run(t, "x1", "x", 1, 8, 20*time.Hour)
	h.run(t, "x2", "x", 1, 8, 20*time.Hour)
	h.run(t, "y1", "y", 1, 8, time.Hour)
	h.wait("gang", "x", 4, 8, time.Hour)
	h.wait("one", "x", 1, 1, 5*time.Hour)
	p := fair
	p.Overdue = time.Hour
	h.expect(t, p, map[berth.JobID]float64{"gang": 20, "one": 1}) // 17 of 40 GPUs are less than 4/5
}

// TestAnEstimatePassesAnImpossibleJob: no younger job waits behind an overdue gang with more members than the machines
// hold.
func TestAnEstimatePassesAnImpossibleJob(t *testing.T) {
	t.Parallel()
	h := newHall(2, 8)
	h.run(t, "a", "x", 1, 8, 10*time.Hour)
	h.run(t, "c", "x", 1, 4, 5*time.Hour)
	h.run(t, "b", "y", 1, 4, 10*time.Hour)
	h.wait("gang", "y", 2, 8, time.Hour)
	h.wait("never", "x", 5, 4, time.Hour)
	h.wait("short", "x", 1, 4, time.Hour)
	p := fair
	p.Backfill, p.Overdue = 1, 4*time.Hour
	h.expect(t, p, map[berth.JobID]float64{"gang": 10, "never": -1, "short": 5})
}

// TestAnEstimateSpendsABudget: the hours of a job that has ended stay spent.
func TestAnEstimateSpendsABudget(t *testing.T) {
	t.Parallel()
	for budget, want := range map[float64]float64{3: -1, 5.5: 5} {
		h := newHall(1, 1)
		h.run(t, "a", "x", 1, 1, 5*time.Hour)
		h.UpsertTenant(placement.Tenant{ID: "x", Weight: 1, Budget: placement.Budget{GPUHours: budget, At: epoch}})
		h.wait("waits", "x", 1, 1, time.Hour)
		h.wait("other", "y", 1, 1, time.Hour)
		p := fair
		p.Backfill = 0
		h.expect(t, p, map[berth.JobID]float64{"waits": want, "other": map[float64]float64{-1: 5, 5: 6}[want]})
	}
}

// TestAnEstimateStartsOnAnAlternative: a job that the plan starts on other hardware holds the request of that hardware.
func TestAnEstimateStartsOnAnAlternative(t *testing.T) {
	t.Parallel()
	h := newHall(2, 8)
	h.UpsertTenant(placement.Tenant{ID: "x", Weight: 1, Limit: berth.Capacity{GPUMilli: 8000}})
	few, many := gpuRequest(2, 1), gpuRequest(4, 1)
	h.DefineClass(few.Class(), few)
	h.DefineClass(many.Class(), many)
	h.run(t, "now", "x", 1, 6, 3*time.Hour)
	h.wait("either", "x", 1, 4, time.Hour, func(j *placement.Job) {
		j.Alternatives = []placement.Alternative{{Class: many.Class()}, {Class: few.Class()}}
	})
	h.wait("next", "x", 1, 4, time.Hour)
	h.expect(t, fair, map[berth.JobID]float64{"next": 3})
}

// TestAnEstimateOfAnAgedJob: in order priority, a job ages by the clock of its tenant.
func TestAnEstimateOfAnAgedJob(t *testing.T) {
	t.Parallel()
	h := newHall(1, 1)
	h.run(t, "now", "x", 1, 1, time.Hour)
	h.UpsertTenant(placement.Tenant{ID: "x", Weight: 1, Stalled: 2 * time.Hour})
	h.wait("older", "x", 1, 1, time.Hour)
	h.wait("younger", "y", 1, 1, time.Hour)
	p := placement.Policy{Order: placement.Priority, BandWidth: 100, Aging: time.Hour}
	h.expect(t, p, map[berth.JobID]float64{"younger": 1, "older": 2})
}
