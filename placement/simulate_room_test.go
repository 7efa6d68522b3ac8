package placement_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"berth"
	"berth/placement"
	"berth/spec"
)

// ask adds a waiting job with a request, one second younger than the job before it.
func (h *hall) ask(id berth.JobID, tenant berth.TenantID, r spec.Request, limit time.Duration) {
	h.wait(id, tenant, r.Members, max(1, r.GPUs), limit, func(j *placement.Job) {
		h.DefineClass(r.Class(), r)
		j.Class = r.Class()
	})
}

// occupy starts a job with a request, before the jobs of a test wait.
func (h *hall) occupy(t *testing.T, id berth.JobID, tenant berth.TenantID, r spec.Request, limit time.Duration) {
	t.Helper()
	h.ask(id, tenant, r, limit)
	if got := h.start(placement.Planner{}.Plan(h.Snapshot, h.now)); !slices.Equal(got, []berth.JobID{id}) {
		t.Fatalf("started %v, want %s", got, id)
	}
}

// share is the request of a share of one device.
func share(milli int64) spec.Request {
	r := gpuRequest(1, 1)
	r.GPUMilli = milli
	return r
}

// expectReserved checks the estimate of a job, with reserved starts and without them: the latter is never reserved.
func (h *hall) expectReserved(t *testing.T, id berth.JobID, hours float64) {
	t.Helper()
	for _, backfill := range []int{0, 4} {
		p := fair
		p.Backfill = backfill
		h.expect(t, p, map[berth.JobID]float64{id: hours})
		f := placement.Planner{Policy: p}.Forecast(h.Snapshot, h.now)
		if got := f.Estimate(id).Reserved; got != (backfill > 0) {
			t.Errorf("backfill %d: %s is reserved: %v", backfill, id, got)
		}
	}
}

// TestAnEstimateCountsDisk: 200 of 1,000 MiB are free, and a job needs 500.
func TestAnEstimateCountsDisk(t *testing.T) {
	t.Parallel()
	h := newHall(1, 8)
	m, _ := h.Machine("m0")
	m.Total.DiskMiB = 1000
	h.UpsertMachine(m)
	disk := func(mib int64) spec.Request {
		r := gpuRequest(1, 1)
		r.DiskMiB = mib
		return r
	}
	h.occupy(t, "large", "x", disk(800), 10*time.Hour)
	h.occupy(t, "small", "x", disk(10), time.Hour)
	h.ask("waits", "x", disk(500), time.Hour)
	h.expectReserved(t, "waits", 10)
}

// TestAnEstimateFillsTheDisk: two jobs that need 600 and 500 of 1,000 MiB run one after the other.
func TestAnEstimateFillsTheDisk(t *testing.T) {
	t.Parallel()
	h := newHall(1, 8)
	m, _ := h.Machine("m0")
	m.Total.DiskMiB = 1000
	h.UpsertMachine(m)
	disk := func(gpus int, mib int64) spec.Request {
		r := gpuRequest(gpus, 1)
		r.DiskMiB = mib
		return r
	}
	h.occupy(t, "all", "x", disk(8, 0), time.Hour)
	h.ask("first", "x", disk(1, 600), 2*time.Hour)
	h.ask("second", "x", disk(1, 500), time.Hour)
	h.expect(t, fair, map[berth.JobID]float64{"first": 1, "second": 3})
}

// TestAnEstimateKeepsTenantsApart: half of a GPU is free, but a job of another tenant uses the other half.
func TestAnEstimateKeepsTenantsApart(t *testing.T) {
	t.Parallel()
	h := newHall(0, 0)
	h.KeepTenantsApart()
	for id, m := range newHall(1, 1).machines() {
		m.ID = id
		h.UpsertMachine(m)
	}
	h.occupy(t, "a", "x", share(500), 10*time.Hour)
	h.ask("waits", "y", share(500), time.Hour)
	h.expectReserved(t, "waits", 10)
}

// machines returns the machines of a hall, by id.
func (h *hall) machines() map[berth.MachineID]placement.Machine {
	list := map[berth.MachineID]placement.Machine{}
	for i := 0; ; i++ {
		m, ok := h.Machine(berth.MachineID(fmt.Sprint("m", i)))
		if !ok {
			return list
		}
		list[m.ID] = m
	}
}

// TestAnEstimateCountsWholeDevices: three devices with a free share of 0.4 each are no whole one, and the end of one
// job frees one device, not two.
func TestAnEstimateCountsWholeDevices(t *testing.T) {
	t.Parallel()
	h := newHall(1, 4)
	for i := range 4 {
		h.occupy(t, berth.JobID(fmt.Sprint("a", i)), "x", share(600), time.Duration(10+i)*time.Hour)
	}
	h.ask("first", "x", share(1000), 5*time.Hour)
	h.expectReserved(t, "first", 10)
	h.ask("second", "x", share(1000), 5*time.Hour)
	h.expect(t, fair, map[berth.JobID]float64{"first": 10, "second": 11})
}

// TestAnEstimateCountsItsOwnDevices: a job waits for a GPU of its model, not for any GPU of the machine.
func TestAnEstimateCountsItsOwnDevices(t *testing.T) {
	t.Parallel()
	h := newHall(1, 4)
	m, _ := h.Machine("m0")
	m.GPUs = slices.Clone(m.GPUs)
	for i := range m.GPUs {
		m.GPUs[i].Model = []string{"A", "A", "B", "B"}[i]
	}
	h.UpsertMachine(m)
	model := func(name string, gpus int) spec.Request {
		r := gpuRequest(gpus, 1)
		r.GPUTypes = []string{name}
		return r
	}
	for i, name := range []string{"A", "A", "B"} {
		h.occupy(t, berth.JobID(fmt.Sprint("a", i)), "x", model(name, 1), time.Duration(2+i)*time.Hour)
	}
	h.ask("one", "x", model("A", 1), 10*time.Hour)
	h.ask("two", "x", model("A", 1), time.Hour)
	h.ask("b", "x", model("B", 2), time.Hour)
	h.expect(t, fair, map[berth.JobID]float64{"one": 2, "two": 3, "b": 4})
}

// TestAnEstimateOfAStartOfThePlan: without reserved starts, the jobs that the plan starts return their capacity as well.
func TestAnEstimateOfAStartOfThePlan(t *testing.T) {
	t.Parallel()
	h := newHall(1, 1)
	h.wait("first", "x", 1, 1, time.Hour)
	h.wait("second", "x", 1, 1, time.Hour)
	for _, backfill := range []int{0, 4} {
		p := fair
		p.Backfill = backfill
		h.expect(t, p, map[berth.JobID]float64{"second": 1})
	}
}

// TestAnEstimateEndsWithAWindow: a machine whose maintenance window nears takes a long job when the window ends.
func TestAnEstimateEndsWithAWindow(t *testing.T) {
	t.Parallel()
	h := newHall(1, 1)
	placement.SetWindows(h.Snapshot, []placement.Window{{ID: 1, Machine: "m0", Closes: h.now.Add(5 * time.Hour),
		Lead: h.now.Add(4 * time.Hour), Ends: h.now.Add(7 * time.Hour)}})
	h.wait("short", "x", 1, 1, time.Hour)
	h.wait("long", "x", 1, 1, 6*time.Hour)
	for _, backfill := range []int{0, 4} {
		p := fair
		p.Backfill = backfill
		h.expect(t, p, map[berth.JobID]float64{"long": 7})
	}
}

// mixedHall is a cluster of machines with devices of two models, with disk, and with jobs that use shares of devices.
type mixedHall struct {
	*hall
	requests map[berth.JobID]spec.Request
	apart    bool
}

// drawMixedHall returns a busy mixed cluster with a queue.
func drawMixedHall(r *rand.Rand, jobs int) *mixedHall {
	h := &mixedHall{newHall(0, 0), map[berth.JobID]spec.Request{}, r.IntN(2) == 0}
	if h.apart {
		h.KeepTenantsApart()
	}
	for id, m := range newHall(2+r.IntN(3), 1+r.IntN(8)).machines() {
		m.ID, m.Total.DiskMiB = id, 1000
		for i := range m.GPUs {
			m.GPUs[i].Model = []string{"A", "B"}[i*2/len(m.GPUs)]
		}
		h.UpsertMachine(m)
	}
	for i := range jobs {
		q := gpuRequest(1+r.IntN(2), 1+r.IntN(10)/9)
		if milli := []int64{250, 500, 600, 1000}[r.IntN(4)]; milli < 1000 {
			q.GPUs, q.GPUMilli = 1, milli
		}
		q.GPUTypes = [][]string{nil, {"A"}, {"B"}}[r.IntN(3)]
		q.DiskMiB = []int64{0, 0, 100, 600}[r.IntN(4)]
		id := berth.JobID(fmt.Sprintf("j%03d", i))
		h.requests[id] = q
		h.ask(id, []berth.TenantID{"x", "y"}[r.IntN(2)], q, time.Duration(1+r.IntN(600))*time.Minute)
	}
	h.start(placement.Planner{Policy: fair}.Plan(h.Snapshot, h.now))
	return h
}

// room returns the first time at which a job has room in addition to the running jobs; zero without one.
func (h *mixedHall) room(id berth.JobID) time.Time {
	times := []time.Time{h.now}
	for _, r := range h.running {
		times = append(times, r.StartedAt.Add(r.TimeLimit))
	}
	slices.SortFunc(times, time.Time.Compare)
	for _, at := range times {
		places := 0
		for machine, m := range h.machines() {
			places += h.places(id, machine, m, at)
		}
		if places >= h.requests[id].Members {
			return at
		}
	}
	return time.Time{}
}

// places returns the number of members of a job that have room on a machine at a time.
func (h *mixedHall) places(id berth.JobID, machine berth.MachineID, m placement.Machine, at time.Time) int {
	q, free := h.requests[id], m.Total
	left, foreign := make([]int64, len(m.GPUs)), make([]bool, len(m.GPUs))
	for i := range left {
		left[i] = 1000
	}
	for _, r := range h.running {
		for _, g := range r.Ranks {
			if g.Machine != machine || !r.StartedAt.Add(r.TimeLimit).After(at) {
				continue
			}
			free = free.Sub(g.Capacity)
			for _, d := range g.GPUs {
				left[d.Index] -= d.Milli
				foreign[d.Index] = foreign[d.Index] || h.apart && r.Tenant != h.tenants[id]
			}
		}
	}
	n := int(min(free.CPUMilli/q.CPUMilli, free.MemoryMiB/q.MemoryMiB))
	if q.DiskMiB > 0 {
		n = min(n, int(free.DiskMiB/q.DiskMiB))
	}
	for ; n > 0; n-- { // each device serves a member once
		slots := 0
		for i, d := range m.GPUs {
			if !foreign[i] && (q.GPUTypes == nil || q.GPUTypes[0] == d.Model) {
				slots += min(n, int(left[i]/q.GPUMilli))
			}
		}
		if slots >= n*q.GPUs {
			break
		}
	}
	return n
}

// TestNoEstimatePrecedesItsRoomOnMixedMachines is TestNoEstimatePrecedesItsRoom with shares of devices, two models of
// devices, disk, and tenants that share no device.
func TestNoEstimatePrecedesItsRoomOnMixedMachines(t *testing.T) {
	t.Parallel()
	checked := 0
	for seed := range uint64(60) {
		h := drawMixedHall(rand.New(rand.NewPCG(seed, 17)), 80)
		p := fair
		p.Backfill = []int{0, 4, 32}[seed%3]
		for _, e := range (placement.Planner{Policy: p}).Forecast(h.Snapshot, h.now).Estimates() {
			least := h.room(e.Job)
			if !e.Start.IsZero() && (least.IsZero() || e.Start.Before(least)) {
				t.Fatalf("seed %d: %s (%+v) is estimated to start at %s, room is free from %s on", seed, e.Job,
					h.requests[e.Job], e.Start, least)
			}
			checked++
		}
	}
	if checked < 1000 {
		t.Errorf("%d estimates were checked", checked)
	}
}

// TestEstimatesOnMixedMachinesAreTheStartsOfPlans is TestEstimatesAreTheStartsOfPlans on mixed machines, where the
// simulation does not know on which device a share lies.
func TestEstimatesOnMixedMachinesAreTheStartsOfPlans(t *testing.T) {
	t.Parallel()
	planner := placement.Planner{Policy: fair}
	all, exact, near := 0, 0, 0
	for seed := range uint64(24) {
		h := drawMixedHall(rand.New(rand.NewPCG(seed, 18)), 80)
		f, from := planner.Forecast(h.Snapshot, h.now), h.now
		for h.Jobs() > 0 && h.pass() {
			for _, id := range h.start(planner.Plan(h.Snapshot, h.now)) {
				ratio := float64(f.Estimate(id).Start.Sub(from)) / float64(h.now.Sub(from))
				if all++; ratio == 1 {
					exact++
				}
				if ratio > 0.5 && ratio < 2 {
					near++
				}
			}
		}
	}
	t.Logf("of %d estimates %d are exact, %d within a factor of two", all, exact, near)
	if near*100 < all*75 {
		t.Errorf("of %d estimates %d are within a factor of two; want 75 %%", all, near)
	}
}
