package placement_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"berth"
	"berth/placement"
)

// hall is a cluster of equal machines for tests of estimates. Run times are limits.
type hall struct {
	*placement.Snapshot
	now     time.Time
	running []placement.Running
	limits  map[berth.JobID]time.Duration
	tenants map[berth.JobID]berth.TenantID
	gangs   map[berth.JobID][2]int // members and GPUs of each
}

// newHall returns a cluster of empty machines m0, m1 and so on with this number of GPUs each, and tenants x and y.
func newHall(machines, gpus int) *hall {
	h := &hall{placement.NewSnapshot(), epoch, nil, map[berth.JobID]time.Duration{}, map[berth.JobID]berth.TenantID{},
		map[berth.JobID][2]int{}}
	for _, id := range []berth.TenantID{"x", "y"} {
		h.UpsertTenant(placement.Tenant{ID: id, Weight: 1})
	}
	for i := range machines {
		m := placement.Machine{ID: berth.MachineID(fmt.Sprint("m", i)), Epoch: 1, State: berth.MachineReady,
			Total: berth.Capacity{CPUMilli: 64000, MemoryMiB: 64000, GPUMilli: int64(gpus) * 1000}}
		for d := range gpus {
			m.GPUs = append(m.GPUs, placement.Device{Index: d, Model: "A", Healthy: true})
		}
		h.UpsertMachine(m)
	}
	return h
}

// wait adds a waiting job, one second younger than the job before it.
func (h *hall) wait(id berth.JobID, tenant berth.TenantID, members, gpus int, limit time.Duration,
	edit ...func(*placement.Job)) {
	r := gpuRequest(gpus, members)
	h.DefineClass(r.Class(), r)
	at := epoch.Add(time.Duration(len(h.limits)-10_000) * time.Second)
	j := placement.Job{ID: id, Tenant: tenant, Class: r.Class(), Version: 1, Priority: 500, SubmittedAt: at,
		EligibleAt: at, TimeLimit: limit}
	for _, e := range edit {
		e(&j)
	}
	h.limits[id], h.tenants[id], h.gangs[id] = limit, tenant, [2]int{members, gpus}
	h.UpsertJob(j)
}

// used adds the grants to the use of the machines, or subtracts them with times -1.
func (h *hall) used(ranks []berth.Grant, times int64) {
	for _, g := range ranks {
		m, _ := h.Machine(g.Machine)
		m.GPUs = slices.Clone(m.GPUs)
		if m.Used = m.Used.Add(g.Capacity); times < 0 {
			m.Used = m.Used.Sub(g.Capacity).Sub(g.Capacity)
		}
		for _, d := range g.GPUs {
			m.GPUs[d.Index].UsedMilli += times * d.Milli
		}
		h.UpsertMachine(m)
	}
}

// start carries out a plan, and returns the started jobs.
func (h *hall) start(plan placement.Plan) (ids []berth.JobID) {
	for _, s := range plan.Start {
		j, _ := h.Job(s.Job)
		h.RemoveJob(s.Job)
		h.used(s.Ranks, 1)
		r := placement.Running{Job: s.Job, Tenant: j.Tenant, Class: j.Class, Version: 1, Ranks: s.Ranks, Priority: j.Priority,
			Preemptible: j.Preemptible, SubmittedAt: j.SubmittedAt, StartedAt: h.now, TimeLimit: j.TimeLimit}
		h.UpsertRunning(r)
		h.running, ids = append(h.running, r), append(ids, s.Job)
	}
	return ids
}

// run starts a job on an empty place, before the jobs of a test wait.
func (h *hall) run(t *testing.T, id berth.JobID, tenant berth.TenantID, members, gpus int, limit time.Duration,
	edit ...func(*placement.Job)) {
	t.Helper()
	h.wait(id, tenant, members, gpus, limit, edit...)
	if got := h.start(placement.Planner{}.Plan(h.Snapshot, h.now)); !slices.Equal(got, []berth.JobID{id}) {
		t.Fatalf("started %v, want %s", got, id)
	}
}

// pass moves to the next end of a job; false without one. Jobs without a limit do not end.
func (h *hall) pass() bool {
	next := time.Time{}
	for _, r := range h.running {
		if at := r.StartedAt.Add(r.TimeLimit); r.TimeLimit > 0 && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	if next.IsZero() {
		return false
	}
	h.now = next
	h.running = slices.DeleteFunc(h.running, func(r placement.Running) bool {
		if r.TimeLimit == 0 || r.StartedAt.Add(r.TimeLimit).After(next) {
			return false
		}
		h.RemoveRunning(r.Job)
		h.used(r.Ranks, -1)
		return true
	})
	return true
}

// fair is the policy of most tests.
var fair = placement.Policy{Order: placement.Fair, BandWidth: 100, Backfill: 4}

// expect compares estimates with hours from now; a negative number stands for no estimate.
func (h *hall) expect(t *testing.T, p placement.Policy, want map[berth.JobID]float64) {
	t.Helper()
	f := placement.Planner{Policy: p}.Forecast(h.Snapshot, h.now)
	for id, hours := range want {
		got := f.Estimate(id)
		if got.Start.IsZero() && hours < 0 {
			continue
		}
		if d := got.Start.Sub(h.now); got.Start.IsZero() || math.Abs(d.Hours()-hours) > 1e-6 {
			t.Errorf("%s is estimated to start in %v (%s), want %v h", id, d, got.Start, hours)
		}
	}
}

// TestAnEstimateCountsWhatAccountsHoldThen: the estimate of a job does not rest on the share of its tenant now: until
// the first GPU is free, tenant x will have released all of its own.
func TestAnEstimateCountsWhatAccountsHoldThen(t *testing.T) {
	t.Parallel()
	h := newHall(1, 8)
	h.run(t, "now", "x", 1, 8, time.Hour)
	h.wait("one", "x", 1, 1, time.Hour)
	for i := range 30 {
		h.wait(berth.JobID(fmt.Sprintf("y%02d", i)), "y", 1, 1, time.Hour)
	}
	for _, backfill := range []int{0, 4, 100} {
		p := fair
		p.Backfill = backfill
		h.expect(t, p, map[berth.JobID]float64{"one": 1, "y00": 1, "y06": 1, "y07": 2, "y14": 2, "y15": 3, "y29": 4})
	}
}

// TestAnEstimateFollowsPriorities: within a tenant, bands come first, and then priorities.
func TestAnEstimateFollowsPriorities(t *testing.T) {
	t.Parallel()
	h := newHall(1, 1)
	priority := func(n int) func(*placement.Job) { return func(j *placement.Job) { j.Priority = n } }
	h.run(t, "now", "x", 1, 1, time.Hour)
	h.wait("low", "x", 1, 1, time.Hour, priority(399))
	h.wait("second", "x", 1, 1, time.Hour, priority(500))
	h.wait("first", "x", 1, 1, time.Hour, priority(510))
	h.wait("high", "y", 1, 1, time.Hour, priority(600))
	p := fair
	p.Backfill = 0
	h.expect(t, p, map[berth.JobID]float64{"high": 1, "first": 2, "second": 3, "low": 4})
}

// TestAnEstimateWaitsForQuotas: a job at the limit of its tenant waits for an end of that tenant and delays no job of
// another one, and a job larger than the limit has no estimate.
func TestAnEstimateWaitsForQuotas(t *testing.T) {
	t.Parallel()
	h := newHall(1, 8)
	h.UpsertTenant(placement.Tenant{ID: "x", Weight: 1, Limit: berth.Capacity{GPUMilli: 2000}})
	h.run(t, "x1", "x", 1, 1, 3*time.Hour)
	h.run(t, "x2", "x", 1, 1, 5*time.Hour)
	h.run(t, "y1", "y", 1, 6, time.Hour)
	h.wait("x3", "x", 1, 1, time.Hour)
	h.wait("x4", "x", 1, 1, time.Hour)
	h.wait("x5", "x", 1, 2, time.Hour)
	h.wait("x6", "x", 1, 3, time.Hour)
	h.wait("y2", "y", 1, 6, time.Hour)
	h.wait("y3", "y", 1, 6, time.Hour)
	h.expect(t, fair, map[berth.JobID]float64{"x3": 3, "x4": 4, "x5": 5, "x6": -1, "y2": 1, "y3": 2})
}

// TestAnEstimateOfAGang: a gang waits until all its members have room at once. Only jobs that end before fill the
// gap, and the sum of the parts of two machines is no room for one member.
func TestAnEstimateOfAGang(t *testing.T) {
	t.Parallel()
	h := newHall(2, 8)
	h.run(t, "a", "x", 1, 8, time.Hour)
	h.run(t, "b", "x", 1, 4, 3*time.Hour)
	h.run(t, "c", "x", 1, 4, 4*time.Hour)
	h.wait("gang", "x", 2, 8, time.Hour)
	h.wait("long", "x", 1, 8, 4*time.Hour)
	h.wait("short", "x", 1, 8, 2*time.Hour)
	h.wait("shorter", "x", 1, 2, 30*time.Minute)
	p := fair
	p.Backfill = 1
	h.expect(t, p, map[berth.JobID]float64{"gang": 4, "long": 5, "short": 1, "shorter": 3})
}

// TestAnEstimateStopsNoJob: preemptible jobs run to their limits in a simulation, as no other job may preempt them.
func TestAnEstimateStopsNoJob(t *testing.T) {
	t.Parallel()
	h := newHall(1, 8)
	h.run(t, "low", "x", 1, 8, 5*time.Hour, func(j *placement.Job) { j.Priority, j.Preemptible = 100, true })
	h.wait("high", "y", 1, 8, time.Hour, func(j *placement.Job) { j.Priority = 900 })
	h.wait("next", "y", 1, 8, time.Hour)
	h.expect(t, fair, map[berth.JobID]float64{"high": 5, "next": 6})
}

// TestAnEstimateIsSoonerThanItsReservation: reserved starts count all capacity that is reserved before them as taken
// from now on. The plans until then also use it, so the job starts sooner.
func TestAnEstimateIsSoonerThanItsReservation(t *testing.T) {
	t.Parallel()
	h := newHall(2, 8)
	h.run(t, "a", "x", 1, 8, time.Hour)
	h.run(t, "b", "x", 1, 8, 10*time.Hour)
	h.wait("gang", "x", 2, 8, time.Hour)
	h.wait("one", "x", 1, 8, 2*time.Hour)
	h.expect(t, fair, map[berth.JobID]float64{"gang": 10, "one": 1})
	f := placement.Planner{Policy: fair}.Forecast(h.Snapshot, h.now)
	if f.Estimate("one").Reserved || !f.Estimate("gang").Reserved {
		t.Errorf("reserved: one %v, gang %v; want the gang alone", f.Estimate("one").Reserved, f.Estimate("gang").Reserved)
	}
}

// TestAnEstimateWaitsBehindAnOverdueJob: once a job without a reserved start is overdue, younger jobs of its tenant
// fill no gaps.
func TestAnEstimateWaitsBehindAnOverdueJob(t *testing.T) {
	t.Parallel()
	h := newHall(2, 8)
	h.run(t, "a", "x", 1, 8, 10*time.Hour)
	h.run(t, "b", "x", 1, 4, 10*time.Hour)
	h.run(t, "c", "x", 1, 4, 5*time.Hour)
	h.wait("gang", "x", 2, 8, time.Hour)
	h.wait("long", "x", 1, 4, 8*time.Hour)
	h.wait("short", "x", 1, 4, time.Hour)
	p := fair
	p.Backfill = 1
	h.expect(t, p, map[berth.JobID]float64{"gang": 10, "long": 11, "short": 5})
	p.Overdue = 4 * time.Hour
	h.expect(t, p, map[berth.JobID]float64{"gang": 10, "long": 11, "short": 11})
}

// drawHall returns a busy cluster with a queue. A job of each ten is a gang.
func drawHall(r *rand.Rand, machines, gpus, jobs int) *hall {
	h := newHall(machines, gpus)
	for i := range jobs {
		members, each := 1, 1<<r.IntN(4)
		if r.IntN(10) == 0 {
			members, each = 2, gpus
		}
		h.wait(berth.JobID(fmt.Sprintf("j%03d", i)), []berth.TenantID{"x", "y"}[r.IntN(2)], members, min(each, gpus),
			time.Duration(1+r.IntN(600))*time.Minute)
	}
	h.start(placement.Planner{Policy: fair}.Plan(h.Snapshot, h.now))
	return h
}

// TestEstimatesAreTheStartsOfPlans replays drawn queues with the decisions of plans, in which all jobs end at their
// limits and no job is submitted. The first estimates are the starts, apart from few that differ by the choice of a
// machine.
func TestEstimatesAreTheStartsOfPlans(t *testing.T) {
	t.Parallel()
	planner := placement.Planner{Policy: fair}
	all, exact, near := 0, 0, 0
	for seed := range uint64(12) {
		h := drawHall(rand.New(rand.NewPCG(seed, 15)), 4, 8, 120)
		f, from := planner.Forecast(h.Snapshot, h.now), h.now
		for h.Jobs() > 0 && h.pass() {
			for _, id := range h.start(planner.Plan(h.Snapshot, h.now)) {
				ratio := float64(f.Estimate(id).Start.Sub(from)) / float64(h.now.Sub(from))
				if all++; ratio == 1 {
					exact++
				}
				if ratio > 0.8 && ratio < 1.25 {
					near++
				}
			}
		}
		if h.Jobs() > 0 {
			t.Fatalf("seed %d: %d jobs never start", seed, h.Jobs())
		}
	}
	t.Logf("of %d estimates %d are exact, %d within a quarter", all, exact, near)
	if near*100 < all*90 || exact*100 < all*75 {
		t.Errorf("of %d estimates %d are exact, %d within a quarter; want 75 %% and 90 %%", all, exact, near)
	}
}

// TestNoEstimatePrecedesItsRoom: no estimate is earlier than the time at which enough machines would have room for all
// members if no other job waited.
func TestNoEstimatePrecedesItsRoom(t *testing.T) {
	t.Parallel()
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 16))
		machines, gpus := 1+r.IntN(5), 1+r.IntN(8)
		h := drawHall(r, max(2, machines), gpus, 60)
		f := placement.Planner{Policy: fair}.Forecast(h.Snapshot, h.now)
		for _, e := range f.Estimates() {
			if least := h.room(e.Job, max(2, machines), gpus); e.Start.Before(least) {
				t.Fatalf("seed %d: %s is estimated to start at %s, room is free from %s on", seed, e.Job, e.Start, least)
			}
		}
	}
}

// room returns the first time at which a job has room in addition to the running jobs.
func (h *hall) room(id berth.JobID, machines, gpus int) time.Time {
	times := []time.Time{h.now}
	for _, r := range h.running {
		times = append(times, r.StartedAt.Add(r.TimeLimit))
	}
	slices.SortFunc(times, time.Time.Compare)
	members, each := h.gangs[id][0], h.gangs[id][1]
	for _, at := range times {
		free := map[berth.MachineID]int{}
		for i := range machines {
			free[berth.MachineID(fmt.Sprint("m", i))] = gpus
		}
		for _, r := range h.running {
			for _, g := range r.Ranks {
				if r.StartedAt.Add(r.TimeLimit).After(at) {
					free[g.Machine] -= len(g.GPUs)
				}
			}
		}
		places := 0
		for _, n := range free {
			places += n / each
		}
		if places >= members {
			return at
		}
	}
	panic("no room for " + id)
}

// TestEstimatesAreRepeatable: equal queues have equal estimates, also where a simulation has more moments than it can
// decide in full.
func TestEstimatesAreRepeatable(t *testing.T) {
	t.Parallel()
	p := placement.Planner{Policy: placement.Policy{Order: placement.Fair, BandWidth: 100, Backfill: 32}}
	var first map[berth.JobID]time.Time
	for range 2 {
		s := longQueue(4_000, 200)
		starts := map[berth.JobID]time.Time{}
		for _, e := range p.Forecast(s, epoch).Estimates() {
			if e.Start.IsZero() {
				t.Fatalf("%s at position %d has no estimate", e.Job, e.Position)
			}
			starts[e.Job] = e.Start
		}
		if first == nil {
			first = starts
		}
		for id, at := range first {
			if !starts[id].Equal(at) {
				t.Fatalf("%s is estimated to start at %s, then at %s", id, at, starts[id])
			}
		}
	}
}

// longQueue has 100 machines of eight GPUs, and jobs of a GPU or more of that many tenants.
func longQueue(jobs, tenants int) *placement.Snapshot {
	h := newHall(100, 8)
	for i := range tenants {
		h.UpsertTenant(placement.Tenant{ID: berth.TenantID(fmt.Sprint("t", i)), Weight: 1})
	}
	for i := range jobs {
		h.wait(berth.JobID(fmt.Sprintf("j%05d", i)), berth.TenantID(fmt.Sprint("t", i%tenants)), 1, 1+i%4,
			time.Duration(1+i%97)*time.Minute+time.Duration(i)*time.Second)
	}
	return h.Snapshot
}

// BenchmarkForecast estimates the starts of waiting jobs with time limits, of 4 classes, under the default half-life.
func BenchmarkForecast(b *testing.B) {
	for _, x := range [][2]int{{10_000, 10}, {10_000, 100}, {10_000, 10_000}, {100_000, 1}} {
		b.Run(fmt.Sprintf("%d jobs of %d tenants", x[0], x[1]), func(b *testing.B) {
			s := longQueue(x[0], x[1])
			p := placement.Planner{Policy: placement.Policy{Order: placement.Fair, BandWidth: 100, Backfill: 32,
				HalfLife: 7 * 24 * time.Hour, Overdue: 24 * time.Hour}}
			for b.Loop() {
				p.Forecast(s, epoch)
			}
		})
	}
}
