package placement_test

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"berth"
	"berth/placement"
	"berth/spec"
)

// shareRequest is a request of members for a share of a device each.
func shareRequest(milli int64, members int) spec.Request {
	r := gpuRequest(1, members)
	r.GPUMilli = milli
	return r
}

// apart fails if shares of two tenants meet on a device.
func (a *arena) keptApart(t *rapid.T) {
	owners := map[device]berth.TenantID{}
	for _, id := range sorted(a.running) {
		r := a.running[id]
		for _, g := range r.Ranks {
			for _, d := range g.GPUs {
				at := device{g.Machine, d.Index}
				if by, ok := owners[at]; ok && by != r.Tenant {
					t.Fatalf("device %d of %s has shares of tenants %q and %q", d.Index, g.Machine, by, r.Tenant)
				}
				owners[at] = r.Tenant
			}
		}
	}
}

// TestTenantsNeverMeetOnADevice runs random jobs for shares of devices and for whole devices under
// random policies, with preemption, reserved starts and nominations. No device is ever shared by
// two tenants, plans depend on the rows alone, and every job runs in the end.
func TestTenantsNeverMeetOnADevice(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := placement.Planner{Policy: placement.Policy{
			Order:     rapid.SampledFrom([]placement.Order{placement.Fair, placement.Priority, placement.FIFO}).Draw(t, "order"),
			BandWidth: rapid.SampledFrom([]int{1, 100}).Draw(t, "band"), Exponent: 1,
			Backfill: rapid.IntRange(0, 3).Draw(t, "backfill"), Preempt: rapid.Bool().Draw(t, "preempt"),
			NominationFor: 10 * time.Minute, Outrank: rapid.SampledFrom([]float64{0, 2}).Draw(t, "outrank"),
			AssumeRun: time.Hour * time.Duration(rapid.IntRange(0, 1).Draw(t, "assume")),
		}}
		if rapid.Bool().Draw(t, "worth") {
			p.Pack = placement.LeastFragmentation
		}
		a := newArena(t, p)
		a.apart = true
		a.s.KeepTenantsApart()
		for range rapid.IntRange(1, 2).Draw(t, "machines") {
			a.machine(rapid.IntRange(1, 3).Draw(t, "gpus"))
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
			r := shareRequest(rapid.SampledFrom([]int64{250, 500, 500, 700}).Draw(t, "share"), rapid.SampledFrom([]int{1, 1, 2}).Draw(t, "members"))
			if rapid.IntRange(0, 3).Draw(t, "whole") == 0 {
				r = gpuRequest(1, 1)
			}
			a.job(r, j, lasts)
		}
		for range 40 * n {
			a.plan()
			a.keptApart(t)
			if !a.advance() {
				break
			}
		}
		a.settled(t)
	})
}

// sharing returns a machine with one GPU and a job of tenant a that has a share of it, known to a
// snapshot that keeps tenants apart.
func sharing(used int64, by ...placement.Running) *placement.Snapshot {
	s := placement.NewSnapshot()
	s.KeepTenantsApart()
	s.UpsertMachine(placement.Machine{
		ID: "m1", Epoch: 1, State: berth.MachineReady, Total: berth.Capacity{CPUMilli: 8000, MemoryMiB: 8192, GPUMilli: 1000},
		Used: berth.Capacity{GPUMilli: used}, GPUs: []placement.Device{{Model: "H100", Healthy: true, UsedMilli: used}},
	})
	for _, r := range by {
		s.UpsertRunning(r)
	}
	return s
}

// holder is a running job with a share of the device.
func holder(id berth.JobID, t berth.TenantID, milli int64) placement.Running {
	return placement.Running{Job: id, Tenant: t, Ranks: []berth.Grant{{
		Machine: "m1", Epoch: 1, Capacity: berth.Capacity{GPUMilli: milli}, GPUs: []berth.DeviceShare{{Milli: milli}}}}}
}

// asks adds a waiting job that requests a quarter of a device.
func asks(s *placement.Snapshot, id berth.JobID, t berth.TenantID) {
	r := shareRequest(250, 1)
	s.DefineClass(r.Class(), r)
	s.UpsertJob(placement.Job{ID: id, Tenant: t, Class: r.Class(), SubmittedAt: epoch, EligibleAt: epoch})
}

func TestADeviceTakesSharesOfItsTenantOnly(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct {
		used int64
		by   []placement.Running
		want []berth.JobID
	}{
		"unused":             {0, nil, []berth.JobID{"ja"}},
		"shared by a":        {500, []placement.Running{holder("r1", "a", 500)}, []berth.JobID{"ja"}},
		"shared by b":        {500, []placement.Running{holder("r1", "b", 250), holder("r2", "b", 250)}, []berth.JobID{"jb"}},
		"shared by both":     {500, []placement.Running{holder("r1", "a", 250), holder("r2", "b", 250)}, nil},
		"used by no job":     {500, nil, nil},
		"in part by no job":  {500, []placement.Running{holder("r1", "a", 250)}, nil},
		"a row that is late": {0, []placement.Running{holder("r1", "b", 500)}, []berth.JobID{"ja"}},
	} {
		for _, pack := range []placement.Pack{placement.BestFit, placement.LeastFragmentation} {
			s := sharing(x.used, x.by...)
			mix, err := placement.GivenMix([]placement.Asked{{Request: shareRequest(250, 1), Count: 1}})
			if err != nil {
				t.Fatal(err)
			}
			s.UseMix(mix)
			asks(s, "ja", "a")
			asks(s, "jb", "b")
			var got []berth.JobID
			for _, start := range (placement.Planner{Pack: pack}).Plan(s, epoch).Start {
				got = append(got, start.Job)
			}
			if !slices.Equal(got, x.want) {
				t.Errorf("%s, pack %d: starts %v, want %v", name, pack, got, x.want)
			}
		}
	}
}

func TestAnotherTenantsShareIsNamedAsTheReason(t *testing.T) {
	t.Parallel()
	s := sharing(500, holder("r1", "b", 500))
	asks(s, "ja", "a")
	w, ok := placement.Planner{}.Why(s, "ja", epoch)
	if !ok {
		t.Fatal("the job is not known")
	}
	at := slices.IndexFunc(w.Fit.Clauses, func(c placement.Clause) bool { return c.Name == "gpu_tenant" })
	if at < 0 || w.Fit.Clauses[at].After != 1 || w.Fit.FitNow != 0 || w.Fit.FitEver != 1 {
		t.Errorf("explained as %+v", w.Fit)
	}
	if w := (placement.Planner{}).WhyNew(s, placement.Job{ID: "jb", Tenant: "b", Class: "new", SubmittedAt: epoch, EligibleAt: epoch},
		shareRequest(300, 1), epoch); w.Fit.FitNow != 1 {
		t.Errorf("a new job of the device's tenant: %+v", w.Fit)
	}
}

// A reserved start of tenant a on a device that b shares holds the device's free share: a longer job
// of b must not extend the use.
func TestAReservedStartIsNotDelayedByAnotherTenantsShares(t *testing.T) {
	t.Parallel()
	r := holder("r1", "b", 500)
	r.StartedAt, r.TimeLimit = epoch, time.Hour
	s := sharing(500, r)
	asks(s, "ja", "a") // first in the queue
	late := shareRequest(250, 1)
	s.UpsertJob(placement.Job{ID: "jb", Tenant: "b", Class: late.Class(), SubmittedAt: epoch.Add(time.Second), EligibleAt: epoch, TimeLimit: 10 * time.Hour})
	s.UpsertJob(placement.Job{ID: "jc", Tenant: "b", Class: late.Class(), SubmittedAt: epoch.Add(2 * time.Second), EligibleAt: epoch, TimeLimit: time.Minute})
	p := placement.Planner{Policy: placement.Policy{Order: placement.FIFO, Backfill: 2}}.Plan(s, epoch.Add(time.Minute))
	if len(p.Start) != 1 || p.Start[0].Job != "jc" {
		t.Errorf("starts %+v, want the job of b alone that ends before the share of b", p.Start)
	}
}
