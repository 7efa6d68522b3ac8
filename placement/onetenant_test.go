package placement_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"berth"
	"berth/placement"
	"berth/spec"
)

// onePerMachine is the rule of a pool p that accepts all tenants, one at a time on each machine.
var onePerMachine = []placement.Pool{{Name: "p", Open: true, OneTenant: true}}

// wholes returns a snapshot with machines of 8 cores in pool p, which are used by one tenant at a time. Each job in by
// is on its machine with 2 cores.
func wholes(machines int, by ...placement.Running) *placement.Snapshot {
	s := placement.NewSnapshot()
	placement.SetPools(s, onePerMachine)
	for i := range machines {
		m := placement.Machine{ID: berth.MachineID(fmt.Sprintf("m%d", i+1)), Epoch: 1, State: berth.MachineReady, Pool: "p",
			Total: berth.Capacity{CPUMilli: 8000}}
		for _, r := range by {
			for _, g := range r.Ranks {
				if g.Machine == m.ID {
					m.Used = m.Used.Add(g.Capacity)
				}
			}
		}
		s.UpsertMachine(m)
	}
	for _, r := range by {
		s.UpsertRunning(r)
	}
	return s
}

// holdsCores returns a running job of a tenant with cores of a machine.
func holdsCores(id berth.JobID, t berth.TenantID, machine berth.MachineID, n int64) placement.Running {
	return placement.Running{Job: id, Tenant: t, Version: 1, Attempt: 1, StartedAt: epoch, SubmittedAt: epoch,
		Ranks: []berth.Grant{{Machine: machine, Epoch: 1, Capacity: berth.Capacity{CPUMilli: 1000 * n}}}}
}

// wants adds a waiting job that requests cores.
func wants(s *placement.Snapshot, n int64, j placement.Job) {
	r := spec.Request{CPUMilli: 1000 * n, Members: 1}
	s.DefineClass(r.Class(), r)
	j.Class, j.Version = r.Class(), 1
	if j.SubmittedAt.IsZero() {
		j.SubmittedAt = epoch
	}
	j.EligibleAt = j.SubmittedAt
	s.UpsertJob(j)
}

// startedBy lists the jobs that a plan starts, in order.
func startedBy(p placement.Plan) (list []berth.JobID) {
	for _, start := range p.Start {
		list = append(list, start.Job)
	}
	return list
}

func TestAMachineOfOneTenantTakesItsJobsOnly(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct {
		by   []placement.Running
		used int64 // cores that the row of the machine counts
		want []berth.JobID
	}{
		"unused":            {nil, 0, []berth.JobID{"ja"}},
		"used by a":         {[]placement.Running{holdsCores("r1", "a", "m1", 2)}, 2, []berth.JobID{"ja"}},
		"used by b":         {[]placement.Running{holdsCores("r1", "b", "m1", 1), holdsCores("r2", "b", "m1", 1)}, 2, []berth.JobID{"jb"}},
		"used by both":      {[]placement.Running{holdsCores("r1", "a", "m1", 1), holdsCores("r2", "b", "m1", 1)}, 2, nil},
		"used by no job":    {nil, 2, nil},
		"in part by no job": {[]placement.Running{holdsCores("r1", "a", "m1", 1)}, 2, nil},
		"a late row":        {[]placement.Running{holdsCores("r1", "b", "m1", 2)}, 0, []berth.JobID{"jb"}},
	} {
		for _, pack := range []placement.Pack{placement.BestFit, placement.LeastFragmentation} {
			s := wholes(1, x.by...)
			m, _ := s.Machine("m1")
			m.Used.CPUMilli = 1000 * x.used
			s.UpsertMachine(m)
			wants(s, 1, placement.Job{ID: "ja", Tenant: "a"})
			wants(s, 1, placement.Job{ID: "jb", Tenant: "b"})
			p := placement.Planner{Pack: pack}
			if got := startedBy(p.Plan(s, epoch)); !slices.Equal(got, x.want) {
				t.Errorf("%s, pack %d: starts %v, want %v", name, pack, got, x.want)
			}
			placement.SetPools(s, nil)
			if got := startedBy(p.Plan(s, epoch)); len(got) != 2 {
				t.Errorf("%s, pack %d, without the rule: starts %v", name, pack, got)
			}
			placement.SetPools(s, onePerMachine)
			if got := startedBy(p.Plan(s, epoch)); !slices.Equal(got, x.want) {
				t.Errorf("%s, pack %d, with the rule again: starts %v, want %v", name, pack, got, x.want)
			}
		}
	}
}

// A machine takes another tenant's jobs when the last job has left, and a commit under way counts as a use.
func TestAMachineChangesItsTenantWhenTheLastJobHasLeft(t *testing.T) {
	t.Parallel()
	s := wholes(1)
	wants(s, 1, placement.Job{ID: "ja", Tenant: "a"})
	assumed := placement.Planner{}.Plan(s, epoch).Start
	s.Assume(assumed)
	wants(s, 1, placement.Job{ID: "jb", Tenant: "b"})
	wants(s, 1, placement.Job{ID: "jc", Tenant: "a"})
	if got := startedBy(placement.Planner{}.Plan(s, epoch)); !slices.Equal(got, []berth.JobID{"jc"}) {
		t.Errorf("next to a commit of a under way: starts %v", got)
	}
	s.RemoveJob("jc")
	m, _ := s.Machine("m1")
	m.Used = berth.Capacity{CPUMilli: 1000}
	s.UpsertMachine(m)
	s.UpsertRunning(holdsCores("ja", "a", "m1", 1))
	s.RemoveJob("ja")
	s.Drop(assumed)
	if got := startedBy(placement.Planner{}.Plan(s, epoch)); got != nil {
		t.Errorf("next to a job of a: starts %v", got)
	}
	s.RemoveRunning("ja")
	m.Used = berth.Capacity{}
	s.UpsertMachine(m)
	if got := startedBy(placement.Planner{}.Plan(s, epoch)); !slices.Equal(got, []berth.JobID{"jb"}) {
		t.Errorf("on an empty machine: starts %v", got)
	}
}

func TestAnotherTenantsMachineIsTheReasonWithoutAName(t *testing.T) {
	t.Parallel()
	s := wholes(1, holdsCores("r1", "secret", "m1", 2))
	wants(s, 1, placement.Job{ID: "ja", Tenant: "a"})
	w, ok := placement.Planner{}.Why(s, "ja", epoch)
	if !ok {
		t.Fatal("the job is not known")
	}
	at := slices.IndexFunc(w.Fit.Clauses, func(c placement.Clause) bool { return c.Name == "machine_tenant" })
	if at < 0 || w.Fit.Clauses[at].After != 1 || w.Fit.FitNow != 0 || w.Fit.FitEver != 1 {
		t.Fatalf("explained as %+v", w.Fit)
	}
	for _, text := range []string{w.Fit.Summary, w.Fit.Short} {
		if !strings.Contains(text, "in use by another tenant") || strings.Contains(text, "secret") {
			t.Errorf("the reason is %q", text)
		}
	}
}

// While a start of tenant a is reserved on a machine that b uses, no job of b that runs longer starts there, even if
// the machine has room for both.
func TestAReservedStartIsNotDelayedByAnotherTenantsPresence(t *testing.T) {
	t.Parallel()
	r := holdsCores("r1", "b", "m1", 2)
	r.TimeLimit = time.Hour
	s := wholes(1, r)
	wants(s, 2, placement.Job{ID: "ja", Tenant: "a"}) // first in the queue
	wants(s, 1, placement.Job{ID: "jb", Tenant: "b", SubmittedAt: epoch.Add(time.Second), TimeLimit: 10 * time.Hour})
	wants(s, 1, placement.Job{ID: "jc", Tenant: "b", SubmittedAt: epoch.Add(2 * time.Second), TimeLimit: time.Minute})
	p := placement.Planner{Policy: placement.Policy{Order: placement.FIFO, Backfill: 2}}.Plan(s, epoch.Add(time.Minute))
	if got := startedBy(p); !slices.Equal(got, []berth.JobID{"jc"}) {
		t.Errorf("starts %v, want the job of b alone that ends before the jobs of b that run", got)
	}
}

// A short job of another tenant may use a machine before a reserved start, but makes no room for a longer job of its
// tenant, even where the capacity of the reserved start would be free in time.
func TestAShortJobKeepsAReservedMachineClosedToItsTenant(t *testing.T) {
	t.Parallel()
	r := holdsCores("r1", "c", "m2", 8)
	r.TimeLimit = time.Hour
	s := wholes(2, r)
	gang := spec.Request{CPUMilli: 5000, Members: 2}
	s.DefineClass(gang.Class(), gang)
	s.UpsertJob(placement.Job{ID: "ja", Tenant: "a", Class: gang.Class(), Version: 1, SubmittedAt: epoch, EligibleAt: epoch})
	wants(s, 5, placement.Job{ID: "jb", Tenant: "b", SubmittedAt: epoch.Add(time.Second), TimeLimit: time.Minute})
	wants(s, 3, placement.Job{ID: "jc", Tenant: "b", SubmittedAt: epoch.Add(2 * time.Second), TimeLimit: 10 * time.Hour})
	p := placement.Planner{Policy: placement.Policy{Order: placement.FIFO, Backfill: 2}}.Plan(s, epoch.Add(time.Minute))
	if got := startedBy(p); !slices.Equal(got, []berth.JobID{"jb"}) {
		t.Errorf("starts %v, want the job of b alone that ends before the reserved start of a", got)
	}
}

// All jobs of another tenant leave a machine for a job of a higher band, and no more than that: further jobs of the
// tenant use the same machine, and later plans order nothing.
func TestAMachineIsPreemptedAsAWhole(t *testing.T) {
	t.Parallel()
	running := []placement.Running{
		holdsCores("r1", "b", "m1", 2), holdsCores("r2", "b", "m1", 2), holdsCores("r3", "b", "m2", 2), holdsCores("r4", "b", "m2", 2), holdsCores("r5", "b", "m2", 2),
	}
	for i := range running {
		running[i].Preemptible, running[i].Priority = true, 100
	}
	s := wholes(2, running...)
	planner := placement.Planner{Policy: placement.Policy{Order: placement.Priority, BandWidth: 100, Preempt: true,
		NominationFor: 10 * time.Minute}}
	for _, id := range []berth.JobID{"ja", "jb", "jc"} {
		wants(s, 2, placement.Job{ID: id, Tenant: "a", Priority: 500})
	}
	p := planner.Plan(s, epoch.Add(time.Minute))
	var victims []berth.JobID
	for _, o := range p.Preempt {
		victims = append(victims, o.Job)
	}
	slices.Sort(victims)
	if !slices.Equal(victims, []berth.JobID{"r1", "r2"}) || len(p.Start) > 0 {
		t.Fatalf("preempts %v and starts %v, want the two jobs of m1", victims, startedBy(p))
	}
	s.SetNominations(p.Nominate)
	for _, r := range running[:2] {
		r.Stopping, r.StopBy = true, epoch.Add(2*time.Minute)
		s.UpsertRunning(r)
	}
	if p := planner.Plan(s, epoch.Add(time.Minute+time.Second)); len(p.Preempt) > 0 || len(p.Start) > 0 {
		t.Errorf("the next plan preempts %+v and starts %v", p.Preempt, startedBy(p))
	}
}

// A scaler learns that a job needs a machine if all machines with room are another tenant's.
func TestAnotherTenantsMachinesLeaveADemand(t *testing.T) {
	t.Parallel()
	s := wholes(1, holdsCores("r1", "b", "m1", 2))
	for _, id := range []berth.JobID{"ja", "jb"} {
		wants(s, 1, placement.Job{ID: id, Tenant: "a"})
	}
	p := placement.Planner{Demand: true}.Plan(s, epoch)
	if len(p.Start) > 0 || len(p.Demand) != 1 || p.Demand[0].Machines != 1 || p.Demand[0].Members != 2 {
		t.Errorf("starts %v, demand %+v; want one machine for both jobs", startedBy(p), p.Demand)
	}
	wants(s, 1, placement.Job{ID: "jc", Tenant: "c"})
	if p := (placement.Planner{Demand: true}).Plan(s, epoch); len(p.Demand) != 1 || p.Demand[0].Machines != 2 {
		t.Errorf("demand %+v; want a machine for each tenant", p.Demand)
	}
}

// keptWhole fails if two tenants have jobs on a machine of a pool that is used by one tenant at a time.
func (a *arena) keptWhole(t *rapid.T) {
	owners := map[berth.MachineID]berth.TenantID{}
	for _, id := range sorted(a.running) {
		r := a.running[id]
		for _, g := range r.Ranks {
			if a.machines[g.Machine].Pool != "p" {
				continue
			}
			if by, ok := owners[g.Machine]; ok && by != r.Tenant {
				t.Fatalf("%s has jobs of tenants %q and %q", g.Machine, by, r.Tenant)
			}
			owners[g.Machine] = r.Tenant
		}
	}
}

// TestTenantsNeverMeetOnAMachine runs random jobs under random policies, with gangs, preemption, reserved starts,
// nominations and repairs. No machine of the pool is ever used by two tenants, plans depend on the rows alone, and every
// job runs in the end.
func TestTenantsNeverMeetOnAMachine(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := placement.Planner{Policy: placement.Policy{
			Order:     rapid.SampledFrom([]placement.Order{placement.Fair, placement.Priority, placement.FIFO}).Draw(t, "order"),
			BandWidth: rapid.SampledFrom([]int{1, 100}).Draw(t, "band"), Exponent: 1,
			Backfill: rapid.IntRange(0, 3).Draw(t, "backfill"), Preempt: rapid.Bool().Draw(t, "preempt"),
			NominationFor: 10 * time.Minute, AssumeRun: time.Hour * time.Duration(rapid.IntRange(0, 1).Draw(t, "assume")),
		}}
		if rapid.Bool().Draw(t, "worth") {
			p.Pack = placement.LeastFragmentation
		}
		a := newArena(t, p)
		a.pools = onePerMachine
		placement.SetPools(a.s, a.pools)
		if a.apart = rapid.Bool().Draw(t, "apart"); a.apart {
			a.s.KeepTenantsApart()
		}
		for i := range rapid.IntRange(1, 3).Draw(t, "machines") {
			a.machine(rapid.IntRange(1, 4).Draw(t, "gpus"))
			if i == 0 || rapid.IntRange(0, 2).Draw(t, "pool") > 0 {
				m := a.machines[berth.MachineID(fmt.Sprintf("m%d", i))]
				m.Pool = "p"
				a.machines[m.ID] = m
				a.s.UpsertMachine(m)
			}
		}
		for _, id := range []berth.TenantID{"a", "b"} {
			a.tenant(placement.Tenant{ID: id, Weight: 1})
		}
		n := rapid.IntRange(2, 14).Draw(t, "jobs")
		for range n {
			lasts := time.Minute * time.Duration(rapid.IntRange(1, 30).Draw(t, "lasts"))
			j := placement.Job{
				Tenant:   rapid.SampledFrom([]berth.TenantID{"a", "b"}).Draw(t, "tenant"),
				Priority: rapid.SampledFrom([]int{200, 500}).Draw(t, "priority"), Preemptible: rapid.IntRange(0, 3).Draw(t, "preemptible") > 0,
			}
			if rapid.IntRange(0, 2).Draw(t, "has limit") > 0 {
				j.TimeLimit = lasts + time.Minute*time.Duration(rapid.IntRange(0, 5).Draw(t, "slack"))
			}
			r := gpuRequest(rapid.IntRange(0, 2).Draw(t, "size"), rapid.SampledFrom([]int{1, 1, 1, 2}).Draw(t, "members"))
			if r.GPUs == 0 {
				r.GPUMilli = 0
			}
			if rapid.IntRange(0, 3).Draw(t, "share") == 0 {
				r = shareRequest(500, 1)
			}
			a.job(r, j, lasts)
		}
		fails := rapid.IntRange(0, 4).Draw(t, "fails")
		for range 40 * n {
			a.plan()
			a.keptWhole(t)
			for _, id := range sorted(a.running) {
				if r := a.running[id]; fails > 0 && len(r.Ranks) > 1 && !r.Stopping && rapid.Bool().Draw(t, "fail") {
					fails--
					a.fail(r)
					a.plan()
					a.keptWhole(t)
				}
			}
			if !a.advance() {
				break
			}
		}
		a.settled(t)
	})
}
