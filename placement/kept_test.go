package placement_test

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"berth"
	"berth/placement"
	"berth/spec"
)

// drawCluster returns a small cluster with gangs, quotas, nested tenants and a random policy.
func drawCluster(t *rapid.T) *cluster { return drawClusterOf(t, false) }

// drawMixed is drawCluster with gangs of unlike members among the others.
func drawMixed(t *rapid.T) *cluster { return drawClusterOf(t, true) }

func drawClusterOf(t *rapid.T, mixed bool) *cluster {
	x := size{
		machines: rapid.IntRange(1, 12).Draw(t, "machines"), waiting: rapid.IntRange(0, 60).Draw(t, "waiting"),
		classes: rapid.IntRange(1, 24).Draw(t, "classes"), tenants: rapid.IntRange(1, 6).Draw(t, "tenants"),
		churn: rapid.IntRange(0, 8).Draw(t, "churn"), seed: rapid.Uint64().Draw(t, "seed"),
	}
	c := saturated(x, func(class int) spec.Request {
		r := benchRequest(class)
		if class%5 == 0 {
			r.Members = 1 + class%3
		}
		if class%10 == 0 {
			r.SameLabel = "tier"
		}
		if mixed && class%7 == 3 {
			r = withHead(r)
		}
		return r
	})
	if rapid.Bool().Draw(t, "data") {
		c.needData()
	}
	quotas := rapid.Bool().Draw(t, "quotas")
	for i := range c.tenants {
		if !quotas {
			break
		}
		switch n := &c.tenants[i]; i {
		case 1:
			n.Limit = berth.Capacity{GPUMilli: 12_000}
		case 2:
			n.Parent = c.tenants[0].ID
		case 3:
			n.Parent, n.Guarantee = c.tenants[0].ID, berth.Capacity{GPUMilli: 8000}
		case 4:
			n.Guarantee, n.Borrow = berth.Capacity{CPUMilli: 64_000}, placement.BorrowPreemptible
		}
	}
	c.planner = placement.Planner{
		Pack:     rapid.SampledFrom([]placement.Pack{placement.BestFit, placement.LeastFragmentation}).Draw(t, "pack"),
		Estimate: rapid.Bool().Draw(t, "estimate"),
		Policy: placement.Policy{
			Order:     rapid.SampledFrom([]placement.Order{placement.Fair, placement.Priority, placement.FIFO, placement.SRSF}).Draw(t, "order"),
			BandWidth: rapid.SampledFrom([]int{1, 100, 300}).Draw(t, "band width"),
			Overdue:   rapid.SampledFrom([]time.Duration{0, time.Hour, 24 * time.Hour}).Draw(t, "overdue"),
			Aging:     time.Hour, HalfLife: 24 * time.Hour, EntryPenalty: time.Minute, Exponent: 1,
			Backfill: rapid.IntRange(0, 6).Draw(t, "backfill"), AssumeRun: rapid.SampledFrom([]time.Duration{0, 24 * time.Hour}).Draw(t, "assume"),
			Preempt: rapid.Bool().Draw(t, "preempt"), PreemptAfter: time.Minute, MinRuntime: 10 * time.Minute, Outrank: 2,
			NominationFor: rapid.SampledFrom([]time.Duration{0, 25 * time.Second}).Draw(t, "nomination for"),
		},
	}
	if c.planner.Pack == placement.LeastFragmentation {
		var asked []placement.Asked
		for _, r := range c.classes {
			asked = append(asked, placement.Asked{Request: r, Count: 1})
		}
		mix, err := placement.GivenMix(asked)
		if err != nil {
			t.Fatal(err)
		}
		c.mix = mix
	}
	return c
}

// TestKeptPlansAreFreshPlans checks that a snapshot with caches from earlier plans yields the same
// plans as a new snapshot of the same rows.
func TestKeptPlansAreFreshPlans(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := drawMixed(t)
		c.apart = rapid.Bool().Draw(t, "apart")
		c.spreadOverPools()
		c.load()
		for range rapid.IntRange(1, 12).Draw(t, "plans") {
			if rapid.IntRange(0, 2).Draw(t, "close pools") == 0 {
				c.closePools(t)
			}
			c.distrustSome(t)
			c.stopSome(t)
			c.planAsFresh(t)
		}
	})
}

// distrustSome changes the trust in a tenant, and the verdicts about some machines.
func (c *cluster) distrustSome(t *rapid.T) {
	if rapid.IntRange(0, 2).Draw(t, "distrust") == 0 {
		i := rapid.IntRange(0, len(c.tenants)-1).Draw(t, "distrusted")
		c.tenants[i].Untrusted = !c.tenants[i].Untrusted
		c.s.UpsertTenant(c.tenants[i])
		placement.SetPools(c.s, c.pools)
	}
	for _, id := range sorted(c.machines) {
		if rapid.IntRange(0, 9).Draw(t, "judged") == 0 {
			m := c.machines[id]
			m.Unmet = rapid.SampledFrom([]string{"", "runc is old", "no seccomp"}).Draw(t, "unmet")
			c.machines[id] = m
			c.s.UpsertMachine(m)
		}
	}
}

// untrusted reports whether the tenant, or a tenant above it, is untrusted.
func (c *cluster) untrusted(id berth.TenantID) bool {
	for _, x := range c.tenants {
		if x.ID == id {
			return x.Untrusted || x.Parent != "" && c.untrusted(x.Parent)
		}
	}
	return false
}

// stopSome orders some running jobs to stop, as users do. The leader may not know by when a job stops.
func (c *cluster) stopSome(t *rapid.T) {
	for range rapid.IntRange(0, min(2, len(c.running.list))).Draw(t, "stops") {
		r, _ := c.running.take(c.running.list[rapid.IntRange(0, len(c.running.list)-1).Draw(t, "stopped")].Job)
		r.Stopping = true
		r.StopBy = rapid.SampledFrom([]time.Time{{}, c.now.Add(-time.Second), c.now.Add(benchGrace)}).Draw(t, "stops by")
		c.stopping = append(c.stopping, r)
		c.s.UpsertRunning(r)
	}
}

// spreadOverPools puts the machines into three pools.
func (c *cluster) spreadOverPools() {
	for i, id := range sorted(c.machines) {
		m := c.machines[id]
		m.Pool = []string{"", "p", "q"}[i%3]
		c.machines[id] = m
	}
}

// closePools gives the pools other rules.
func (c *cluster) closePools(t *rapid.T) {
	c.pools = nil
	for _, name := range rapid.SliceOfDistinct(rapid.SampledFrom([]string{"", "p", "q"}), rapid.ID[string]).Draw(t, "pools") {
		p := placement.Pool{Name: name}
		for _, tenant := range c.tenants {
			if rapid.IntRange(0, 2).Draw(t, "takes") == 0 {
				p.Tenants = append(p.Tenants, tenant.ID)
			}
		}
		c.pools = append(c.pools, p)
	}
	placement.SetPools(c.s, c.pools)
}

// planAsFresh plans on the kept snapshot, checks that a new snapshot of the rows yields the same plan,
// and applies the plan.
func (c *cluster) planAsFresh(t *rapid.T) {
	kept := c.s
	p := c.planner.Plan(kept, c.now)
	c.load()
	if diff := cmp.Diff(c.planner.Plan(c.s, c.now), p); diff != "" {
		t.Fatalf("the plan differs (-fresh +kept):\n%s", diff)
	}
	c.s = kept
	for _, x := range p.Start {
		j, _ := kept.Job(x.Job)
		for _, g := range x.Ranks {
			if unmet := c.machines[g.Machine].Unmet; unmet != "" && c.untrusted(j.Tenant) {
				t.Fatalf("a job of the untrusted tenant %s starts on %s: %s", j.Tenant, g.Machine, unmet)
			}
		}
	}
	c.enact(p)
	c.pass()
}

// TestLongKeptPlansAreFreshPlans checks that kept and new snapshots yield the same plans after many
// changes to a cluster of hundreds of machines, where most plans look at few machines.
func TestLongKeptPlansAreFreshPlans(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			c := saturated(size{machines: 240, waiting: 1200, classes: 120, tenants: 12, churn: 12, seed: seed}, benchRequest)
			c.planner.Policy.NominationFor = time.Duration(seed%2) * 25 * time.Second
			if seed >= 2 {
				c.bind()
			}
			if seed%2 == 1 {
				c.needData()
			}
			c.apart = seed == 1 || seed == 2
			var asked []placement.Asked
			for _, r := range c.classes {
				asked = append(asked, placement.Asked{Request: r, Count: 1})
			}
			mix, err := placement.GivenMix(asked)
			if err != nil {
				t.Fatal(err)
			}
			c.mix = mix
			c.load()
			starts, preempted := 0, 0
			for round := range 40 {
				kept := c.s
				p := c.planner.Plan(kept, c.now)
				c.load()
				if diff := cmp.Diff(c.planner.Plan(c.s, c.now), p); diff != "" {
					t.Fatalf("plan %d differs (-fresh +kept):\n%s", round, diff)
				}
				c.s = kept
				starts, preempted = starts+len(p.Start), preempted+len(p.Preempt)
				c.enact(p)
				c.pass()
			}
			if starts == 0 || preempted == 0 {
				t.Errorf("%d starts and %d preemptions: nothing was tried", starts, preempted)
			}
		})
	}
}

// TestTheRestOfTheQueueChangesNothing checks that a plan that ends as soon as no class fits makes the
// same decisions as a plan that walks the whole queue.
func TestTheRestOfTheQueueChangesNothing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := drawMixed(t)
		c.planner.MaxStarts = rapid.IntRange(0, 9).Draw(t, "max starts")
		c.load()
		brief, whole := c.planner, c.planner
		brief.Estimate, whole.Estimate = false, true
		for range rapid.IntRange(1, 12).Draw(t, "plans") {
			p := brief.Plan(c.s, c.now)
			all := whole.Plan(c.s, c.now)
			all.Estimates = nil
			if diff := cmp.Diff(all, p); diff != "" {
				t.Fatalf("the plan differs (-whole +brief):\n%s", diff)
			}
			c.enact(p)
			c.pass()
		}
	})
}

// TestKeptPlansAreFreshPlansOfOtherTenants checks that kept and new snapshots yield the same plans when
// tenants are removed and added and the queue order changes, even for tenants with jobs.
func TestKeptPlansAreFreshPlansOfOtherTenants(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := drawMixed(t)
		all := slices.Clone(c.tenants)
		c.load()
		for range rapid.IntRange(1, 12).Draw(t, "plans") {
			switch i := rapid.IntRange(0, len(all)-1).Draw(t, "tenant"); rapid.IntRange(0, 3).Draw(t, "change") {
			case 0:
				c.s.RemoveTenant(all[i].ID)
				c.tenants = slices.DeleteFunc(slices.Clone(c.tenants), func(x placement.Tenant) bool { return x.ID == all[i].ID })
				if len(c.tenants) == 0 {
					c.tenants = slices.Clone(all[i : i+1])
					c.s.UpsertTenant(all[i])
				}
			case 1:
				c.s.UpsertTenant(all[i])
				if !slices.ContainsFunc(c.tenants, func(x placement.Tenant) bool { return x.ID == all[i].ID }) {
					c.tenants = append(slices.Clone(c.tenants), all[i])
				}
			case 2:
				c.planner.Policy.Order = rapid.SampledFrom([]placement.Order{placement.Fair, placement.Priority, placement.FIFO, placement.SRSF}).Draw(t, "new order")
			}
			c.planAsFresh(t)
		}
	})
}

// TestHoldersAreKnownWhateverComesFirst checks that a plan expects the same released capacity whether
// the machine's row arrived before the rows of its jobs, after those rows, or again.
func TestHoldersAreKnownWhateverComesFirst(t *testing.T) {
	t.Parallel()
	now := epoch.Add(time.Hour)
	m := placement.Machine{
		ID: "m", Epoch: 1, State: berth.MachineReady, Total: berth.Capacity{CPUMilli: 4000, MemoryMiB: 4096},
		Used: berth.Capacity{CPUMilli: 4000, MemoryMiB: 4096},
	}
	run := placement.Running{
		Job: "r", Tenant: "t", Attempt: 1, StartedAt: now, TimeLimit: 90 * time.Minute,
		Ranks: []berth.Grant{{Machine: "m", Epoch: 1, Capacity: m.Used}},
	}
	empty := m
	empty.Used = berth.Capacity{}
	for name, load := range map[string]func(*placement.Snapshot){
		"machine first": func(s *placement.Snapshot) { s.UpsertMachine(m); s.UpsertRunning(run) },
		"holder first":  func(s *placement.Snapshot) { s.UpsertRunning(run); s.UpsertMachine(m) },
		"machine again": func(s *placement.Snapshot) {
			s.UpsertMachine(m)
			s.UpsertRunning(run)
			s.RemoveMachine("m")
			s.UpsertMachine(m)
		},
		"holder again": func(s *placement.Snapshot) {
			s.UpsertMachine(m)
			s.UpsertRunning(run)
			s.RemoveRunning("r")
			s.UpsertRunning(run)
		},
		"both again": func(s *placement.Snapshot) {
			s.UpsertMachine(m)
			s.UpsertRunning(run)
			s.RemoveMachine("m")
			s.RemoveRunning("r")
			s.UpsertMachine(empty)
			s.UpsertRunning(run)
			s.UpsertMachine(m)
		},
	} {
		s := placement.NewSnapshot()
		s.DefineClass("c", spec.Request{CPUMilli: 1000, MemoryMiB: 1024, Members: 1, Execution: spec.AtLeastOnce})
		load(s)
		j := job(1, "c", 500)
		s.UpsertJob(j)
		planner := placement.Planner{Estimate: true, Policy: placement.Policy{Backfill: 1}}
		for range 2 {
			p := planner.Plan(s, now)
			want := []placement.Estimate{{Job: j.ID, Position: 1, Start: now.Add(90 * time.Minute), Reserved: true}}
			if diff := cmp.Diff(want, p.Estimates); diff != "" {
				t.Errorf("%s (-want +got):\n%s", name, diff)
			}
		}
	}
}

// TestAQuestionAboutOneJobIsAnsweredAsOneAboutAll checks that Why for one job, which skips parts of the
// plan, gives the same answer as a forecast of all jobs.
func TestAQuestionAboutOneJobIsAnsweredAsOneAboutAll(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := drawMixed(t)
		c.load()
		all := c.planner.Forecast(c.s, c.now)
		for _, j := range c.waiting.list {
			want, waits := all.Why(j.ID)
			got, ok := c.planner.Why(c.s, j.ID, c.now)
			if ok != waits || !reflect.DeepEqual(got, want) {
				t.Fatalf("job %s: asked alone %v %+v, with all %v %+v", j.ID, ok, got, waits, want)
			}
		}
	})
}
