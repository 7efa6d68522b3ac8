package placement_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/placement"
)

// expectNever checks that a job has no estimate, with reserved starts and without them, and that one of its reasons
// contains a text.
func (h *hall) expectNever(t *testing.T, id berth.JobID, reason string) {
	t.Helper()
	for _, backfill := range []int{0, 4} {
		p := fair
		p.Backfill = backfill
		f := placement.Planner{Policy: p}.Forecast(h.Snapshot, h.now)
		if got := f.Estimate(id); !got.Start.IsZero() || got.Reserved {
			t.Errorf("backfill %d: %s is estimated to start in %v, reserved: %v; it never starts", backfill, id,
				got.Start.Sub(h.now), got.Reserved)
		}
		why, _ := f.Why(id)
		var texts []string
		for _, b := range why.Blockers {
			texts = append(texts, b.Code+": "+b.Text)
		}
		if all := strings.Join(texts, "; "); !strings.Contains(all, reason) {
			t.Errorf("backfill %d: %s waits for %q, without %q", backfill, id, all, reason)
		}
	}
}

// TestABarredJobHasNoReservedStart: when the machine is free for the job, its tenant will have spent its budget. The
// plan reserves a start, since the budget is not spent yet.
func TestABarredJobHasNoReservedStart(t *testing.T) {
	t.Parallel()
	h := newHall(1, 8)
	h.run(t, "a", "x", 1, 4, 10*time.Hour)
	h.run(t, "b", "y", 1, 4, 10*time.Hour)
	h.UpsertTenant(placement.Tenant{ID: "x", Weight: 1, Budget: placement.Budget{GPUHours: 30, At: epoch}})
	h.wait("waits", "x", 1, 8, time.Hour)
	h.expectNever(t, "waits", "budget: tenant x will have spent the 30 GPU-hours of its budget before the job has room")
	h.UpsertTenant(placement.Tenant{ID: "x", Weight: 1, Budget: placement.Budget{GPUHours: 41, At: epoch}})
	h.expect(t, fair, map[berth.JobID]float64{"waits": 10})
}

// TestAQuotaThatJobsFillForEver: each job without a known end that starts first fills the quota of its tenant.
func TestAQuotaThatJobsFillForEver(t *testing.T) {
	t.Parallel()
	for reason, tenant := range map[string]placement.Tenant{
		"limit: jobs of tenant x without a known end will use 8 of 12 GPUs of its quota; the job needs 8": {
			Limit: berth.Capacity{GPUMilli: 12_000}},
		"max_running: jobs of tenant x without a known end will fill its limit of running jobs: 1": {MaxRunning: 1},
		"borrowing: jobs of tenant x without a known end will use its guarantee, and this job may not borrow": {
			Borrow: placement.BorrowNothing, Guarantee: berth.Capacity{GPUMilli: 8000}},
	} {
		h := newHall(2, 8)
		tenant.ID, tenant.Weight = "x", 1
		h.run(t, "a", "y", 1, 8, time.Hour)
		h.run(t, "b", "y", 1, 8, time.Hour)
		h.UpsertTenant(tenant)
		h.wait("endless", "x", 1, 8, 0)
		h.wait("waits", "x", 1, 8, time.Hour)
		h.expectNever(t, "waits", reason)
		h.expect(t, fair, map[berth.JobID]float64{"endless": 1})
	}
}

// TestAJobThatNeverHasRoom: one GPU of each machine is in use by a job without a known end. Their free GPUs together
// would be enough.
func TestAJobThatNeverHasRoom(t *testing.T) {
	t.Parallel()
	h := newHall(2, 2)
	h.run(t, "endless 1", "x", 1, 1, 0)
	h.run(t, "short", "x", 1, 1, 2*time.Hour)
	h.run(t, "endless 2", "x", 1, 1, 0)
	h.wait("waits", "x", 1, 2, time.Hour)
	h.expectNever(t, "waits", "no_room: ")
}

// TestJobsWithoutAnEstimateNeverStart replays drawn queues with the decisions of plans. A job of each eight has no
// limit and does not end, so that most jobs never have room at last.
func TestJobsWithoutAnEstimateNeverStart(t *testing.T) {
	t.Parallel()
	planner := placement.Planner{Policy: fair}
	var known, unknown, late, early int // late: known, yet it never starts; early: unknown, yet it starts
	for seed := range uint64(12) {
		r := rand.New(rand.NewPCG(seed, 17))
		h := newHall(4, 8)
		for i := range 120 {
			limit := time.Duration(1+r.IntN(600)) * time.Minute
			if r.IntN(8) == 0 {
				limit = 0
			}
			h.wait(berth.JobID(fmt.Sprintf("j%03d", i)), []berth.TenantID{"x", "y"}[r.IntN(2)], 1, 1<<r.IntN(4), limit)
		}
		h.start(planner.Plan(h.Snapshot, h.now))
		f := planner.Forecast(h.Snapshot, h.now)
		list := f.Estimates()
		for h.pass() {
			h.start(planner.Plan(h.Snapshot, h.now))
		}
		for _, e := range list {
			_, waits := h.Job(e.Job)
			switch {
			case e.Start.IsZero() && !waits:
				early++
			case e.Start.IsZero():
				unknown++
			case waits:
				late++
			default:
				known++
			}
		}
	}
	t.Logf("%d with an estimate start, %d do not; %d without one never start, %d do", known, late, unknown, early)
	if unknown < 100 || (early+late)*20 > known+unknown {
		t.Errorf("%d estimates are wrong, want one in 20 at most", early+late)
	}
}

// TestNoRoomIsFreeAfterTheLastEnd: the free shares of two GPUs are too small for the last job, and no job ends. The
// sums of a machine do not show that, and only the first 512 classes are compared device by device.
func TestNoRoomIsFreeAfterTheLastEnd(t *testing.T) {
	t.Parallel()
	h := newHall(1, 2)
	h.occupy(t, "endless 1", "x", share(600), 0)
	h.occupy(t, "endless 2", "x", share(600), 0)
	for i := range 512 {
		r := gpuRequest(2, 1)
		r.MemoryMiB = int64(1 + i)
		h.ask(berth.JobID(fmt.Sprintf("wide %03d", i)), "x", r, time.Hour)
	}
	h.ask("waits", "x", share(700), time.Hour)
	h.expectNever(t, "waits", "no_room: ")
}

// TestEstimatesOfEqualTenantsAreRepeatable: two tenants have the same jobs, and only the rounding of their past use
// decides which comes first.
func TestEstimatesOfEqualTenantsAreRepeatable(t *testing.T) {
	t.Parallel()
	h := newHall(1, 8)
	h.run(t, "now", "z", 1, 8, time.Hour)
	for gpus := 3; gpus <= 8; gpus++ {
		for _, tenant := range []berth.TenantID{"x", "y"} {
			h.wait(berth.JobID(fmt.Sprint(tenant, gpus)), tenant, 1, gpus, time.Hour)
		}
	}
	p := fair
	p.Backfill, p.HalfLife, p.EntryPenalty = 100, time.Hour, 100*time.Hour
	first := map[berth.JobID]time.Time{}
	for i := range 200 {
		for _, e := range (placement.Planner{Policy: p}).Forecast(h.Snapshot, h.now).Estimates() {
			if i == 0 {
				first[e.Job] = e.Start
			}
			if !e.Start.Equal(first[e.Job]) {
				t.Fatalf("forecast %d estimates the start of %s at %s, the first one at %s", i, e.Job, e.Start,
					first[e.Job])
			}
		}
	}
}
