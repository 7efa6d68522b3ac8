package placement_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"berth"
	"berth/placement"
	"berth/spec"
)

// arena runs jobs in virtual time, as a leader and its machines would in real time.
type arena struct {
	t           interface{ Fatalf(string, ...any) }
	s           *placement.Snapshot
	planner     placement.Planner
	now         time.Time
	jobs        map[berth.JobID]placement.Job
	lasts       map[berth.JobID]time.Duration // actual run time of each job
	machines    map[berth.MachineID]placement.Machine
	running     map[berth.JobID]placement.Running
	tenants     map[berth.TenantID]placement.Tenant
	nominations []placement.Nomination
	requests    map[string]spec.Request
	failing     map[berth.JobID]time.Time // gangs that lost a member, and the time when the other members have stopped
	stops       map[berth.JobID]stop      // jobs that users have ordered to stop
	refuses     func(berth.JobID) bool    // the database refuses the preemption of a job; nil: none
	apart       bool                      // no device is shared by two tenants
	pools       []placement.Pool
	windows     []placement.Window
}

func newArena(t interface{ Fatalf(string, ...any) }, p placement.Planner) *arena {
	return &arena{
		t: t, s: placement.NewSnapshot(), planner: p, now: epoch,
		jobs: map[berth.JobID]placement.Job{}, lasts: map[berth.JobID]time.Duration{}, machines: map[berth.MachineID]placement.Machine{},
		running: map[berth.JobID]placement.Running{}, tenants: map[berth.TenantID]placement.Tenant{},
		requests: map[string]spec.Request{}, failing: map[berth.JobID]time.Time{},
		stops: map[berth.JobID]stop{},
	}
}

func (a *arena) machine(gpus int) {
	id := berth.MachineID(fmt.Sprintf("m%d", len(a.machines)))
	m := placement.Machine{ID: id, Epoch: 1, State: berth.MachineReady, Total: berth.Capacity{CPUMilli: 64000, MemoryMiB: 64000, GPUMilli: int64(gpus) * 1000}}
	for i := range gpus {
		m.GPUs = append(m.GPUs, placement.Device{Index: i, Model: "A", Healthy: true})
	}
	a.machines[id] = m
	a.s.UpsertMachine(m)
}

func (a *arena) tenant(t placement.Tenant) {
	a.tenants[t.ID] = t
	a.s.UpsertTenant(t)
}

func gpuRequest(gpus, members int) spec.Request {
	return spec.Request{CPUMilli: 1000, MemoryMiB: 1000, GPUs: gpus, GPUMilli: 1000, Members: members, Execution: spec.AtLeastOnce}
}

func (a *arena) job(r spec.Request, j placement.Job, lasts time.Duration) {
	a.s.DefineClass(r.Class(), r)
	a.requests[r.Class()] = r
	j.ID = berth.JobID(fmt.Sprintf("j%02d", len(a.lasts)))
	j.Class, j.Version = r.Class(), 1
	j.SubmittedAt, j.EligibleAt = a.now, a.now
	a.jobs[j.ID], a.lasts[j.ID] = j, lasts
	a.s.UpsertJob(j)
}

// fresh builds a new snapshot from the same rows.
func (a *arena) fresh() *placement.Snapshot {
	s := placement.NewSnapshot()
	if a.apart {
		s.KeepTenantsApart()
	}
	for _, id := range sorted(a.tenants) {
		s.UpsertTenant(a.tenants[id])
	}
	for _, id := range sorted(a.running) {
		s.UpsertRunning(a.running[id])
	}
	for _, id := range sorted(a.jobs) {
		s.DefineClass(a.jobs[id].Class, a.requests[a.jobs[id].Class])
		s.UpsertJob(a.jobs[id])
	}
	for _, id := range sorted(a.machines) {
		s.UpsertMachine(a.machines[id])
	}
	s.SetNominations(a.nominations)
	placement.SetPools(s, a.pools)
	placement.SetWindows(s, a.windows)
	return s
}

// plan computes a plan and applies it.
func (a *arena) plan() placement.Plan {
	p := a.decide()
	a.enact(p)
	return p
}

// decide computes a plan and checks that it depends on the rows alone.
func (a *arena) decide() placement.Plan {
	p := a.planner.Plan(a.s, a.now)
	if diff := cmp.Diff(p, a.planner.Plan(a.s, a.now)); diff != "" {
		a.t.Fatalf("a second plan differs:\n%s", diff)
	}
	if diff := cmp.Diff(p, a.planner.Plan(a.fresh(), a.now)); diff != "" {
		a.t.Fatalf("the plan of a fresh snapshot differs (-incremental +fresh):\n%s", diff)
	}
	return p
}

// enact checks a plan and applies it.
func (a *arena) enact(p placement.Plan) {
	p = a.accepted(p)
	for _, x := range p.Preempt {
		r, ok := a.running[x.Job]
		switch {
		case !ok, r.Stopping, !r.Preemptible, a.now.Sub(r.StartedAt) < a.planner.Policy.MinRuntime:
			a.t.Fatalf("preempts %+v, which may not be: %+v", x, r)
		case slices.Contains(r.PreemptedFor, x.For):
			a.t.Fatalf("preempts %s twice for %s", x.Job, x.For)
		}
		r.Stopping, r.StopBy, r.PreemptedFor = true, a.now.Add(time.Minute), append(slices.Clone(r.PreemptedFor), x.For)
		a.running[x.Job] = r
		a.s.UpsertRunning(r)
	}
	for _, start := range p.Start {
		a.start(start)
	}
	a.nominations = slices.DeleteFunc(a.nominations, func(m placement.Nomination) bool {
		return slices.ContainsFunc(p.Release, func(o placement.Nomination) bool { return cmp.Equal(o, m) })
	})
	if len(p.Yield) > 0 {
		a.nominations = slices.DeleteFunc(a.nominations, func(m placement.Nomination) bool { return m.Repair && slices.Contains(p.Yield, m.For) })
	}
	for _, start := range p.Start { // the commit deletes the nominations of started jobs
		a.nominations = slices.DeleteFunc(a.nominations, func(m placement.Nomination) bool { return m.For == start.Job })
	}
	a.nominations = append(a.nominations, p.Nominate...)
	a.s.SetNominations(a.nominations)
	a.checkNominations()
}

// fail ends the first member of a gang. The other members are ordered to stop, and their capacity is
// nominated for the gang's repair.
func (a *arena) fail(r placement.Running) {
	gone := r.Ranks[0]
	a.machines[gone.Machine] = vacate(a.machines[gone.Machine], gone)
	a.s.UpsertMachine(a.machines[gone.Machine])
	r.Ranks, r.Stopping, r.StopBy = slices.Clone(r.Ranks[1:]), true, a.now.Add(20*time.Second)
	a.running[r.Job], a.failing[r.Job] = r, r.StopBy
	a.s.UpsertRunning(r)
	for _, g := range r.Ranks {
		a.nominations = append(a.nominations, placement.Nomination{
			For: r.Job, Machine: g.Machine, Capacity: g.Capacity, GPUs: g.GPUs, Victim: r.Job, ExpiresAt: a.now.Add(80 * time.Second), Repair: true,
		})
	}
	a.s.SetNominations(a.nominations)
}

func (a *arena) start(start berth.Start) {
	j, ok := a.jobs[start.Job]
	if !ok {
		a.t.Fatalf("starts %s, which does not wait", start.Job)
	}
	delete(a.jobs, start.Job)
	a.s.RemoveJob(start.Job)
	for _, g := range start.Ranks {
		m := occupy(a.machines[g.Machine], g)
		for _, d := range m.GPUs {
			if d.UsedMilli > 1000 {
				a.t.Fatalf("%s gets a GPU of %s twice", start.Job, m.ID)
			}
		}
		if !m.Used.Fits(m.Total) {
			a.t.Fatalf("machine %s is over its capacity", m.ID)
		}
		a.machines[g.Machine] = m
		a.s.UpsertMachine(m)
	}
	r := placement.Running{
		Job: j.ID, Tenant: j.Tenant, Class: j.Class, Version: j.Version, Attempt: start.Attempt, Priority: j.Priority, Preemptible: j.Preemptible,
		SubmittedAt: j.SubmittedAt, Ranks: start.Ranks, StartedAt: a.now, TimeLimit: j.TimeLimit, PreemptedFor: j.PreemptedFor,
	}
	a.running[j.ID] = r
	a.s.UpsertRunning(r)
}

// end takes a job off its machines. A preempted or failed job waits again.
func (a *arena) end(r placement.Running) {
	delete(a.running, r.Job)
	a.s.RemoveRunning(r.Job)
	for _, g := range r.Ranks {
		a.machines[g.Machine] = vacate(a.machines[g.Machine], g)
		a.s.UpsertMachine(a.machines[g.Machine])
	}
	_, ordered := a.stops[r.Job]
	again := r.Stopping && (!ordered || a.stops[r.Job].again)
	delete(a.failing, r.Job)
	delete(a.stops, r.Job)
	for i := range a.nominations { // the ended job no longer holds the nominated capacity
		if a.nominations[i].Victim == r.Job {
			a.nominations[i].Victim = ""
		}
	}
	a.s.SetNominations(a.nominations)
	if !again {
		return
	}
	j := placement.Job{
		ID: r.Job, Tenant: r.Tenant, Class: r.Class, Version: r.Version, Attempt: r.Attempt, Priority: r.Priority, Preemptible: r.Preemptible,
		SubmittedAt: r.SubmittedAt, EligibleAt: r.SubmittedAt, TimeLimit: r.TimeLimit, PreemptedFor: r.PreemptedFor,
	}
	a.jobs[j.ID] = j
	a.s.UpsertJob(j)
}

// ends returns the time when a running job actually ends.
func (a *arena) ends(r placement.Running) time.Time {
	if at, ok := a.failing[r.Job]; ok {
		return at
	}
	if s, ok := a.stops[r.Job]; ok {
		return s.at
	}
	if r.Stopping {
		return r.StopBy
	}
	return r.StartedAt.Add(a.lasts[r.Job])
}

// advance moves the time to the next end of a job. It returns false if no job runs.
func (a *arena) advance() bool {
	if len(a.running) == 0 {
		return false
	}
	next := slices.MinFunc(slices.Collect(maps.Values(a.running)), func(x, y placement.Running) int { return a.ends(x).Compare(a.ends(y)) })
	a.now = a.ends(next)
	for _, id := range sorted(a.running) {
		if r := a.running[id]; !a.ends(r).After(a.now) {
			a.end(r)
		}
	}
	return true
}

// held returns the GPU capacity in use by each tenant and its subtenants, in thousandths.
func (a *arena) held() map[berth.TenantID]int64 {
	held := map[berth.TenantID]int64{}
	for _, r := range a.running {
		for _, g := range r.Ranks {
			for id := r.Tenant; id != ""; id = a.tenants[id].Parent {
				held[id] += g.Capacity.GPUMilli
			}
		}
	}
	return held
}

// TestPoliciesKeepTheirPromises runs random jobs under random policies to their end. Under every
// policy, capacity and limits hold, gangs start whole, plans depend on the rows alone, no job is
// preempted twice for the same job, and every job that its limits allow runs in the end.
func TestPoliciesKeepTheirPromises(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := placement.Planner{Policy: placement.Policy{
			Order:     rapid.SampledFrom([]placement.Order{placement.Fair, placement.Priority, placement.FIFO, placement.SRSF}).Draw(t, "order"),
			Overdue:   time.Hour * time.Duration(rapid.IntRange(0, 1).Draw(t, "overdue")),
			BandWidth: rapid.SampledFrom([]int{1, 100}).Draw(t, "band"), Aging: time.Minute * time.Duration(rapid.IntRange(0, 1).Draw(t, "aging")),
			HalfLife: time.Hour * time.Duration(rapid.IntRange(0, 1).Draw(t, "half life")), EntryPenalty: time.Minute,
			Backfill: rapid.IntRange(0, 3).Draw(t, "backfill"), Preempt: rapid.Bool().Draw(t, "preempt"),
			PreemptAfter: time.Minute * time.Duration(rapid.IntRange(0, 1).Draw(t, "after")), MinRuntime: time.Minute * time.Duration(rapid.IntRange(0, 2).Draw(t, "minimum")),
			NominationFor: 10 * time.Minute, Outrank: rapid.SampledFrom([]float64{0, 1, 2}).Draw(t, "outrank"), Exponent: 1, AssumeRun: time.Hour * time.Duration(rapid.IntRange(0, 1).Draw(t, "assume")),
		}}
		if rapid.Bool().Draw(t, "worth") {
			p.Pack = placement.LeastFragmentation
		}
		a := newArena(t, p)
		for range rapid.IntRange(1, 3).Draw(t, "machines") {
			a.machine(rapid.SampledFrom([]int{2, 4}).Draw(t, "gpus"))
		}
		for _, id := range []berth.TenantID{"a", "b", "group"} {
			tenant := placement.Tenant{ID: id, Weight: float64(rapid.IntRange(1, 3).Draw(t, "weight"))}
			tenant.Guarantee.GPUMilli = 1000 * int64(rapid.IntRange(0, 2).Draw(t, "guarantee"))
			if rapid.Bool().Draw(t, "limited") {
				tenant.Limit.GPUMilli = 1000 * int64(rapid.IntRange(2, 4).Draw(t, "limit"))
			}
			if id != "group" && rapid.Bool().Draw(t, "grouped") {
				tenant.Parent = "group"
			}
			a.tenant(tenant)
		}
		n := rapid.IntRange(1, 14).Draw(t, "jobs")
		for range n {
			lasts := time.Minute * time.Duration(rapid.IntRange(1, 30).Draw(t, "lasts"))
			j := placement.Job{
				Tenant:   rapid.SampledFrom([]berth.TenantID{"", "a", "b"}).Draw(t, "tenant"),
				Priority: rapid.SampledFrom([]int{200, 250, 500}).Draw(t, "priority"), Preemptible: rapid.IntRange(0, 3).Draw(t, "preemptible") > 0,
			}
			if rapid.IntRange(0, 2).Draw(t, "has limit") > 0 {
				j.TimeLimit = lasts + time.Minute*time.Duration(rapid.IntRange(0, 5).Draw(t, "slack"))
			}
			a.job(gpuRequest(rapid.IntRange(1, 2).Draw(t, "size"), rapid.SampledFrom([]int{1, 1, 1, 2}).Draw(t, "members")), j, lasts)
		}
		fails, stops := rapid.IntRange(0, 6).Draw(t, "fails"), rapid.IntRange(0, 4).Draw(t, "all stops")
		refusals := rapid.IntRange(0, 4).Draw(t, "refusals")
		a.refuses = func(berth.JobID) bool {
			if refusals == 0 || !rapid.Bool().Draw(t, "refused") {
				return false
			}
			refusals--
			return true
		}
		for range 40 * n {
			a.plan()
			stops -= a.drawStops(t, stops)
			for _, id := range sorted(a.running) {
				if r := a.running[id]; fails > 0 && len(r.Ranks) > 1 && !r.Stopping && rapid.Bool().Draw(t, "fail") {
					fails--
					a.fail(r)
					a.plan()
				}
			}
			held := a.held()
			for id, tenant := range a.tenants {
				if limit := tenant.Limit.GPUMilli; limit > 0 && held[id] > limit {
					t.Fatalf("tenant %s holds %d of at most %d", id, held[id], limit)
				}
			}
			if !a.advance() {
				break
			}
		}
		a.settled(t)
	})
}

// settled checks that no waiting job is left that could run.
func (a *arena) settled(t *rapid.T) {
	for range 3 { // until all nominations have expired
		a.now = a.now.Add(a.planner.Policy.NominationFor + 2*time.Minute)
		for a.plan(); a.advance(); a.plan() {
		}
	}
	if len(a.running) > 0 {
		t.Fatalf("%d jobs still run after all this time", len(a.running))
	}
	if len(a.nominations) > 0 && len(a.jobs) == 0 {
		t.Fatalf("nominations are left: %+v", a.nominations)
	}
	for _, id := range sorted(a.jobs) {
		w, _ := a.planner.Why(a.s, id, a.now)
		if len(w.Blockers) == 0 {
			t.Fatalf("%s never started and nothing is in its way: %+v", id, w)
		}
		if !slices.ContainsFunc(w.Blockers, func(b placement.Blocker) bool { return b.Code == "limit" || b.Code == "unsatisfiable" }) {
			t.Fatalf("%s never started: %+v", id, w.Blockers)
		}
	}
}

// TestBandsComeFirst checks that no job starts while a job of the same class in a higher band waits,
// unless the started job ends before its room is needed.
func TestBandsComeFirst(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := placement.Policy{
			Order:     rapid.SampledFrom([]placement.Order{placement.Fair, placement.Priority, placement.SRSF}).Draw(t, "order"),
			BandWidth: 100, Aging: time.Minute, Exponent: 1, Backfill: rapid.IntRange(0, 3).Draw(t, "backfill"), AssumeRun: time.Hour,
		}
		a := newArena(t, placement.Planner{Policy: p})
		a.machine(4)
		a.machine(2)
		for i := range 3 {
			a.tenant(placement.Tenant{ID: berth.TenantID(fmt.Sprintf("t%d", i)), Weight: float64(i)})
		}
		for range 20 {
			for range rapid.IntRange(0, 4).Draw(t, "arrivals") {
				j := placement.Job{
					Tenant:    berth.TenantID(fmt.Sprintf("t%d", rapid.IntRange(0, 2).Draw(t, "tenant"))),
					Priority:  50 * rapid.IntRange(0, 10).Draw(t, "priority"),
					TimeLimit: time.Hour * time.Duration(rapid.IntRange(0, 1).Draw(t, "limit")),
				}
				a.job(gpuRequest(rapid.IntRange(1, 3).Draw(t, "size"), 1), j, time.Minute*time.Duration(rapid.IntRange(1, 60).Draw(t, "lasts")))
			}
			for _, start := range a.plan().Start {
				r := a.running[start.Job]
				for _, j := range a.jobs {
					if j.Class == r.Class && j.Priority/100 > r.Priority/100 && (p.Backfill == 0 || r.TimeLimit == 0) {
						t.Fatalf("%s of priority %d starts before %s of priority %d", r.Job, r.Priority, j.ID, j.Priority)
					}
				}
			}
			a.advance()
		}
	})
}

// TestSharesComeOutEven checks that the GPUs are divided as Webster's method of apportionment
// divides seats, on a cluster that every tenant alone could fill: (GPUs - 1/2) / weight of any
// tenant is at most (GPUs + 1/2) / weight of any other. The claim "within one job of the exact
// part" would be too strong: with weights 3, 1, 1, 1, 1 and 16 GPUs, Webster's method may give
// 8 GPUs to the first tenant, whose exact part is 6.9.
func TestSharesComeOutEven(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a := newArena(t, placement.Planner{})
		gpus := 0
		for range rapid.IntRange(1, 3).Draw(t, "machines") {
			a.machine(8)
			gpus += 8
		}
		weights := map[berth.TenantID]float64{}
		for i := range rapid.IntRange(1, 5).Draw(t, "tenants") {
			id := berth.TenantID(fmt.Sprintf("t%d", i))
			weights[id] = float64(rapid.IntRange(1, 4).Draw(t, "weight"))
			a.tenant(placement.Tenant{ID: id, Weight: weights[id]})
		}
		for _, id := range sorted(weights) {
			for range gpus {
				a.job(gpuRequest(1, 1), placement.Job{Tenant: id}, time.Hour)
			}
		}
		a.plan()
		held := a.held()
		for id, w := range weights {
			for other, v := range weights {
				last, next := (float64(held[id])/1000-0.5)/w, (float64(held[other])/1000+0.5)/v
				if last > next+1e-9 {
					t.Fatalf("%s of weight %v has %d GPUs of %d, and %s of weight %v only %d",
						id, w, held[id]/1000, gpus, other, v, held[other]/1000)
				}
			}
		}
	})
}
