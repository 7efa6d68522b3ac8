package autoscale_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/internal/control/autoscale"
	"berth/internal/control/cloud"
	"berth/internal/control/scaler"
	"berth/placement"
	"berth/spec"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const gpus = 4 // of each machine

// offered returns an offer of the provider lab.
func offered(kind string, price float64) db.OfferRow {
	return db.OfferRow{Provider: "lab", Offer: cloud.Offer{CPUs: 32, MemoryMiB: 1 << 17, GPUs: gpus, GPUType: "H100", Price: price,
		Offering: cloud.Offering{Region: "here", Type: kind, Market: cloud.OnDemand}}}
}

// full returns facts about a cluster whose only machine is full for ten hours, with the tenants root, a and b
// below it, and a policy of root that lets a job burst that waits for more than an hour.
func full() *autoscale.Facts {
	f := &autoscale.Facts{
		Mirror: autoscale.Mirror{At: now, Classes: map[string]spec.Request{},
			Tenants: []placement.Tenant{{ID: "root", Weight: 1}, {ID: "a", Parent: "root", Weight: 1}, {ID: "b", Parent: "root", Weight: 1}}},
		Now: now, Policies: map[berth.TenantID]spec.Burst{}, Notes: map[berth.JobID]db.BurstNote{},
		Accounts: cloud.Accounts{Providers: map[string]cloud.Account{"lab": {Regions: []string{"here"}}}},
		Offers:   []db.OfferRow{offered("big", 8)},
		Planner:  placement.Planner{Policy: placement.Policy{Order: placement.FIFO}},
	}
	m := scaler.MachineOf(f.Offers[0].Offer, "onprem")
	m.Pool, m.Used = spec.DefaultPool, m.Total
	grant := berth.Grant{Machine: m.ID, Capacity: m.Total}
	for i := range m.GPUs {
		m.GPUs[i].UsedMilli = 1000
		grant.GPUs = append(grant.GPUs, berth.DeviceShare{Index: i, Milli: 1000})
	}
	f.Machines = []placement.Machine{m}
	f.Running = []placement.Running{{Job: "running", Tenant: "root", Class: "-", StartedAt: now.Add(-time.Hour), SubmittedAt: now.Add(-time.Hour),
		Remaining: 11 * time.Hour, Ranks: []berth.Grant{grant}}}
	f.Policies["root"] = spec.Burst{Allow: []string{"lab/here"}, When: &spec.BurstWhen{PlannedWaitOver: spec.Duration(time.Hour)}}
	f.Policies["a"], f.Policies["b"] = f.Policies["root"], f.Policies["root"]
	return f
}

// wait adds a waiting gang whose members need a machine each.
func wait(f *autoscale.Facts, id string, t berth.TenantID, members int) {
	r := spec.Request{Members: members, GPUs: gpus, GPUMilli: 1000, Execution: spec.AtLeastOnce}
	f.Classes[r.Class()] = r
	f.Waiting = append(f.Waiting, placement.Job{ID: berth.JobID(id), Tenant: t, Class: r.Class(), Version: 1, Remaining: time.Hour,
		SubmittedAt: now.Add(-time.Minute).Add(time.Duration(len(f.Waiting)) * time.Second), EligibleAt: now.Add(-time.Minute)})
}

// launched adds a machine of the scaler. Its row, if it has joined, is without use.
func launched(f *autoscale.Facts, id berth.MachineID, t berth.TenantID, s cloud.LaunchState, m berth.MachineState) *db.FleetMachine {
	l := db.FleetMachine{Record: cloud.Record{Machine: id, N: 1, State: s, Pool: spec.DefaultPool, Provider: "lab", Offering: f.Offers[0].Offering,
		Price: 8, Actor: db.ScalerActor, CreatedAt: now.Add(-time.Hour), Tenant: t}}
	if m != "" {
		row := scaler.MachineOf(f.Offers[0].Offer, id)
		row.Pool, row.State = spec.DefaultPool, m
		f.Machines = append(f.Machines, row)
		l.JoinedAt, l.EmptySince = now.Add(-time.Hour), now.Add(-30*time.Second)
	}
	if m == berth.MachineDraining {
		l.DrainActor, l.DrainedAt = db.ScalerActor, now.Add(-time.Second)
	}
	f.Fleet = append(f.Fleet, l)
	return &f.Fleet[len(f.Fleet)-1]
}

// codes returns the codes of the notes by job, as text.
func codes(o autoscale.Outcome) string {
	list := make([]string, len(o.Notes))
	for i, n := range o.Notes {
		list[i] = string(n.Job) + ":" + n.Code
	}
	slices.Sort(list)
	return fmt.Sprint(list)
}

// requested renders the requests of an outcome.
func requested(o autoscale.Outcome) string {
	var list []string
	for _, r := range o.Requests {
		list = append(list, fmt.Sprintf("%d %s in %s for %s %v", r.Machines, r.Type, r.Pool, r.Tenant, r.Jobs))
	}
	return fmt.Sprint(list)
}

func TestDecide(t *testing.T) {
	t.Parallel()

	for _, c := range []struct {
		name     string
		change   func(*autoscale.Facts)
		requests string
		codes    string
		drain    []berth.MachineID
		undrain  []berth.MachineID
		stop     []berth.MachineID
	}{
		{name: "a job that waits too long gets a machine",
			change: func(f *autoscale.Facts) { wait(f, "j1", "a", 1) }, requests: "[1 big in default for a [j1]]", codes: "[j1:launched]"},
		{name: "a job without a policy for waits gets none", change: func(f *autoscale.Facts) {
			f.Policies["a"] = spec.Burst{Allow: []string{"lab/here"}}
			wait(f, "j1", "a", 1)
		}, requests: "[]", codes: "[]"},
		{name: "a job whose wait is within the budget waits", change: func(f *autoscale.Facts) {
			f.Policies["a"] = spec.Burst{Allow: []string{"lab/here"}, When: &spec.BurstWhen{PlannedWaitOver: spec.Duration(20 * time.Hour)}}
			wait(f, "j1", "a", 1)
		}, requests: "[]", codes: "[j1:waits]"},
		{name: "a job that waits for its quota gets none", change: func(f *autoscale.Facts) {
			f.Tenants[1].Limit.GPUMilli = 1000
			wait(f, "j1", "a", 1)
		}, requests: "[]", codes: "[]"},
		{name: "a gang gets all its machines in one request",
			change: func(f *autoscale.Facts) { wait(f, "j1", "a", 3) }, requests: "[3 big in default for a [j1]]", codes: "[j1:launched]"},
		{name: "a gang beyond the limit gets no machine", change: func(f *autoscale.Facts) {
			f.Policies["a"] = limited(f.Policies["a"], 2)
			wait(f, "j1", "a", 3)
		}, requests: "[]", codes: "[j1:max]"},
		{name: "tenants share the limit of a tenant above", change: func(f *autoscale.Facts) {
			for _, t := range []berth.TenantID{"root", "a", "b"} {
				f.Policies[t] = limited(f.Policies[t], 2)
			}
			launched(f, "m1", "b", cloud.LaunchServing, berth.MachineSuspect)
			wait(f, "j1", "a", 1)
			wait(f, "j2", "b", 1)
		}, requests: "[1 big in default for a [j1]]", codes: "[j1:launched j2:max]"},
		{name: "tenants share the growth of a tenant above", change: func(f *autoscale.Facts) {
			p := f.Policies["root"]
			p.Grow = &spec.BurstGrow{Machines: 2, Per: spec.Duration(time.Minute)}
			f.Policies["root"] = p
			f.Growth = []db.Grown{{Tenant: "b", At: now.Add(-2 * time.Minute)}, {Tenant: "b", At: now.Add(-time.Second)}}
			wait(f, "j1", "a", 1)
			wait(f, "j2", "b", 1)
		}, requests: "[1 big in default for a [j1]]", codes: "[j1:launched j2:growth]"},
		{name: "tenants share the money of a tenant above", change: func(f *autoscale.Facts) {
			f.Spent = map[berth.TenantID]db.Spent{"root": {Room: 15}, "a": {Room: 15}, "b": {Room: 15}}
			wait(f, "j1", "a", 1)
			wait(f, "j2", "b", 1)
		}, requests: "[1 big in default for a [j1]]", codes: "[j1:launched j2:budget]"},
		{name: "a machine that boots covers the job", change: func(f *autoscale.Facts) {
			launched(f, "m1", "a", cloud.LaunchSent, "")
			wait(f, "j1", "a", 1)
		}, requests: "[]", codes: "[j1:covered]"},
		{name: "a machine that boots covers the job although its offer costs more now", change: func(f *autoscale.Facts) {
			launched(f, "m1", "a", cloud.LaunchSent, "")
			f.Offers[0].Price = 9
			f.Offers = append(f.Offers, offered("other", 8))
			wait(f, "j1", "a", 1)
			demands(f, func(r *spec.Request) { r.MaxPrice = 8 })
		}, requests: "[]", codes: "[j1:covered]"},
		{name: "a machine that boots covers the job although its offer is gone", change: func(f *autoscale.Facts) {
			launched(f, "m1", "a", cloud.LaunchSent, "")
			row := scaler.MachineOf(f.Offers[0].Offer, "m0")
			f.Joined = map[string]autoscale.Joined{"lab/here/big": {Row: row, At: now.Add(-time.Hour)}}
			f.Offers = []db.OfferRow{offered("other", 8)}
			wait(f, "j1", "a", 1)
			demands(f, func(r *spec.Request) { r.Residency = []string{"he"} })
		}, requests: "[]", codes: "[j1:covered]"},
		{name: "a launch of unknown outcome counts", change: func(f *autoscale.Facts) {
			launched(f, "m1", "a", cloud.LaunchUnresolved, "")
			wait(f, "j1", "a", 1)
			wait(f, "j2", "a", 1)
		}, requests: "[1 big in default for a [j2]]", codes: "[j1:covered j2:launched]"},
		{name: "a job keeps its machine that boots although its wait is short now", change: func(f *autoscale.Facts) {
			launched(f, "m1", "a", cloud.LaunchRunning, "")
			wait(f, "j1", "a", 1)
			f.Running[0].Remaining = time.Hour + time.Minute
			f.Notes["j1"] = db.BurstNote{Job: "j1", Code: "launched", Machines: []berth.MachineID{"m1"}}
		}, requests: "[]", codes: "[j1:launched]"},
		{name: "a job on premises alone gets none", change: func(f *autoscale.Facts) {
			wait(f, "j1", "a", 1)
			demands(f, func(r *spec.Request) { r.Site = spec.SiteOnPrem })
		}, requests: "[]", codes: "[j1:site]"},
		{name: "a job below the price of all offers gets none", change: func(f *autoscale.Facts) {
			wait(f, "j1", "a", 1)
			demands(f, func(r *spec.Request) { r.MaxPrice = 7.99 })
		}, requests: "[]", codes: "[j1:job_price]"},
		{name: "a job at the price of an offer gets a machine", change: func(f *autoscale.Facts) {
			wait(f, "j1", "a", 1)
			demands(f, func(r *spec.Request) { r.MaxPrice = 8 })
		}, requests: "[1 big in default for a [j1]]", codes: "[j1:launched]"},
		{name: "a job for spot machines alone gets none on demand", change: func(f *autoscale.Facts) {
			wait(f, "j1", "a", 1)
			demands(f, func(r *spec.Request) { r.Spot = spec.SpotOnly })
		}, requests: "[]", codes: "[j1:spot]"},
		{name: "a residency of the inputs excludes an offer", change: func(f *autoscale.Facts) {
			wait(f, "j1", "a", 1)
			demands(f, func(r *spec.Request) { r.Residency = []string{"eu"} })
		}, requests: "[]", codes: "[j1:residency]"},
		{name: "few waiting jobs get no machine", change: func(f *autoscale.Facts) {
			crowd(f, "root", spec.BurstWaiting{Jobs: 3})
			wait(f, "j1", "a", 1)
			wait(f, "j2", "b", 1)
		}, requests: "[]", codes: "[j1:waits j2:waits]"},
		{name: "a number of waiting jobs of the tenants below gets machines", change: func(f *autoscale.Facts) {
			crowd(f, "root", spec.BurstWaiting{Jobs: 2})
			wait(f, "j1", "a", 1)
			wait(f, "j2", "b", 1)
		}, requests: "[1 big in default for a [j1] 1 big in default for b [j2]]", codes: "[j1:launched j2:launched]"},
		{name: "the rule of a tenant counts no job of its sibling", change: func(f *autoscale.Facts) {
			crowd(f, "a", spec.BurstWaiting{Jobs: 2})
			wait(f, "j1", "a", 1)
			wait(f, "j2", "b", 1)
		}, requests: "[1 big in default for b [j2]]", codes: "[j1:waits j2:launched]"},
		{name: "jobs that have not waited long enough do not count", change: func(f *autoscale.Facts) {
			crowd(f, "root", spec.BurstWaiting{Jobs: 2, For: spec.Duration(time.Minute)})
			wait(f, "j1", "a", 1) // has waited for a minute
			wait(f, "j2", "b", 1) // and this one for a second less
			f.Waiting[1].EligibleAt = f.Waiting[1].SubmittedAt
		}, requests: "[]", codes: "[j1:waits j2:waits]"},
		{name: "a job that has not waited long enough waits on", change: func(f *autoscale.Facts) {
			crowd(f, "root", spec.BurstWaiting{Jobs: 1, For: spec.Duration(time.Minute)})
			wait(f, "j1", "a", 1)
			wait(f, "j2", "b", 1)
			f.Waiting[1].EligibleAt = f.Waiting[1].SubmittedAt
		}, requests: "[1 big in default for a [j1]]", codes: "[j1:launched j2:waits]"},
		{name: "time in which a job did not wait for room does not count", change: func(f *autoscale.Facts) {
			crowd(f, "root", spec.BurstWaiting{Jobs: 1, For: spec.Duration(10 * time.Minute)})
			wait(f, "j1", "a", 1) // both are submitted an hour ago
			wait(f, "j2", "a", 1)
			for i, unaged := range []time.Duration{51 * time.Minute, 50 * time.Minute} {
				f.Waiting[i].SubmittedAt = now.Add(-time.Hour)
				f.Waiting[i].EligibleAt, f.Waiting[i].Unaged = now.Add(-time.Hour), unaged
			}
		}, requests: "[1 big in default for a [j2]]", codes: "[j1:waits j2:launched]"},
		{name: "a region outside the residency is forbidden", change: func(f *autoscale.Facts) {
			p := f.Policies["a"]
			p.Residency = []string{"eu"}
			f.Policies["a"] = p
			wait(f, "j1", "a", 1)
		}, requests: "[]", codes: "[j1:forbidden]"},
		{name: "an offer above the price is refused", change: func(f *autoscale.Facts) {
			p := f.Policies["a"]
			p.MaxPricePerHour = 5
			f.Policies["a"] = p
			wait(f, "j1", "a", 1)
		}, requests: "[]", codes: "[j1:price]"},
		{name: "nothing is launched while admission is paused", change: func(f *autoscale.Facts) {
			f.Paused = true
			wait(f, "j1", "a", 1)
		}, requests: "[]", codes: "[]"},
		{name: "an offer that was refused is closed", change: func(f *autoscale.Facts) {
			refused(f, now.Add(time.Minute), false)
			wait(f, "j1", "a", 1)
		}, requests: "[]", codes: "[j1:closed]"},
		{name: "one machine is tried after the time of a refusal", change: func(f *autoscale.Facts) {
			refused(f, now.Add(-time.Minute), false)
			wait(f, "j1", "a", 1)
			wait(f, "j2", "b", 1)
		}, requests: "[1 big in default for a [j1]]", codes: "[j1:launched j2:closed]"},
		{name: "nothing is tried while another launch probes", change: func(f *autoscale.Facts) {
			refused(f, now.Add(-time.Minute), true)
			wait(f, "j1", "a", 1)
		}, requests: "[]", codes: "[j1:closed]"},
		{name: "a pool of the tenant comes first", change: func(f *autoscale.Facts) {
			f.Accounts.Providers["lab"] = cloud.Account{Regions: []string{"here"}, Pools: map[string]json.RawMessage{"open": nil, "own": nil, "other": nil}}
			f.Pools = []placement.Pool{{Name: "other", Tenants: []berth.TenantID{"b"}}, {Name: "own", Tenants: []berth.TenantID{"root"}}}
			wait(f, "j1", "a", 1)
		}, requests: "[1 big in own for a [j1]]", codes: "[j1:launched]"},
		{name: "a free machine of a pool of another tenant is no room", change: func(f *autoscale.Facts) {
			f.Pools = []placement.Pool{{Name: "theirs", Tenants: []berth.TenantID{"b"}}}
			m := scaler.MachineOf(f.Offers[0].Offer, "free")
			m.Pool = "theirs"
			f.Machines = append(f.Machines, m)
			wait(f, "j1", "a", 1)
		}, requests: "[1 big in default for a [j1]]", codes: "[j1:launched]"},
		{name: "jobs that wait for their quota take no room", change: func(f *autoscale.Facts) {
			f.Running[0].Remaining = 2 * time.Hour // 50 minutes remain
			f.Running[0].StartedAt = now.Add(-70 * time.Minute)
			f.Tenants[2].Limit.GPUMilli = 1000
			wait(f, "j1", "b", 1)
			wait(f, "j2", "a", 1)
		}, requests: "[]", codes: "[j2:waits]"},
		{name: "a machine under maintenance is no room", change: func(f *autoscale.Facts) {
			m := scaler.MachineOf(f.Offers[0].Offer, "free")
			m.Pool = spec.DefaultPool
			f.Machines = append(f.Machines, m)
			f.Windows = []placement.Window{{ID: 1, Machine: "free", Lead: now.Add(-time.Hour), Closes: now.Add(-time.Minute)}}
			wait(f, "j1", "a", 1)
		}, requests: "[1 big in default for a [j1]]", codes: "[j1:launched]"},
		{name: "a job that does not fit the machine that joined gets no further machine", change: func(f *autoscale.Facts) {
			launched(f, "m1", "a", cloud.LaunchServing, berth.MachineReady)
			f.Machines[1].Total.MemoryMiB = 100_000
			wait(f, "j1", "a", 1)
			needs(f, 120_000)
		}, requests: "[]", codes: "[j1:no_fit]"},
		{name: "a machine with less than its offer says nothing about the next one", change: func(f *autoscale.Facts) {
			l := launched(f, "m1", "a", cloud.LaunchServing, berth.MachineReady)
			l.Shape = cloud.Shape{GPUs: gpus, GPUType: "H100"}
			f.Machines[1].Used = f.Machines[1].Total // by another job
			f.Machines[1].GPUs[0].Healthy = false
			wait(f, "j1", "a", 1)
		}, requests: "[1 big in default for a [j1]]", codes: "[j1:launched]"},
		{name: "a machine that joined with less than its offer is replaced", change: func(f *autoscale.Facts) {
			l := launched(f, "m1", "a", cloud.LaunchServing, berth.MachineDraining)
			l.DrainActor = "cloud"
			wait(f, "j1", "a", 1)
		}, requests: "[1 big in default for a [j1]]", codes: "[j1:launched]"},
		{name: "nor once that machine is gone", change: func(f *autoscale.Facts) {
			row := scaler.MachineOf(f.Offers[0].Offer, "m1")
			row.Total.MemoryMiB = 100_000
			f.Joined = map[string]autoscale.Joined{"lab/here/big": {Row: row, At: now.Add(-23 * time.Hour)}}
			wait(f, "j1", "a", 1)
			needs(f, 120_000)
		}, requests: "[]", codes: "[j1:no_fit]"},
		{name: "a day later the offer is tried again", change: func(f *autoscale.Facts) {
			row := scaler.MachineOf(f.Offers[0].Offer, "m1")
			row.Total.MemoryMiB = 100_000
			f.Joined = map[string]autoscale.Joined{"lab/here/big": {Row: row, At: now.Add(-24 * time.Hour)}}
			wait(f, "j1", "a", 1)
			needs(f, 120_000)
		}, requests: "[1 big in default for a [j1]]", codes: "[j1:launched]"},
		{name: "a job does not fit the whole nominal memory", change: func(f *autoscale.Facts) {
			wait(f, "j1", "a", 1)
			needs(f, 1<<17)
		}, requests: "[]", codes: "[j1:no_fit]"},
		{name: "a closed pool does not stop the next pool", change: func(f *autoscale.Facts) {
			f.Accounts.Providers["lab"] = cloud.Account{Regions: []string{"here"}, Settings: json.RawMessage("{}"), Pools: map[string]json.RawMessage{"open": nil}}
			f.Breakers = []db.ProbedBreaker{{Breaker: cloud.Breaker{Scope: cloud.ScopePool, Step: 1,
				Key: breakerOf(cloud.ScopePool, "open", f.Offers[0])}}}
			wait(f, "j1", "a", 1)
		}, requests: "[1 big in default for a [j1]]", codes: "[j1:launched]"},
		{name: "a gang waits for the machine that tries its offer", change: func(f *autoscale.Facts) {
			refused(f, now.Add(-time.Minute), true)
			launched(f, "m1", "a", cloud.LaunchSent, "")
			wait(f, "j1", "a", 2)
			f.Notes["j1"] = db.BurstNote{Job: "j1", Code: "launched", Machines: []berth.MachineID{"m1"}}
		}, requests: "[]", codes: "[j1:launched]"},
		{name: "a machine whose offer was removed boots", change: func(f *autoscale.Facts) {
			launched(f, "m1", "a", cloud.LaunchRunning, "").Offering.Type = "removed"
			wait(f, "j1", "a", 1)
			f.Notes["j1"] = db.BurstNote{Job: "j1", Code: "launched", Machines: []berth.MachineID{"m1"}}
		}, requests: "[]", codes: "[j1:launched]"},
		{name: "an empty machine is drained at once beyond the spend of a tenant above", change: func(f *autoscale.Facts) {
			spent(f, 60, 40)
			launched(f, "m1", "a", cloud.LaunchServing, berth.MachineReady)
			launched(f, "m2", "a", cloud.LaunchServing, berth.MachineDraining)
			wait(f, "j1", "a", 2)
		}, requests: "[]", codes: "[j1:budget]", drain: []berth.MachineID{"m1"}},
		{name: "below that share of the limit it stays", change: func(f *autoscale.Facts) {
			spent(f, 60, 39)
			launched(f, "m1", "a", cloud.LaunchServing, berth.MachineReady)
		}, requests: "[]", codes: "[]"},
		{name: "an empty machine is drained",
			change:   func(f *autoscale.Facts) { empty(launched(f, "m1", "a", cloud.LaunchServing, berth.MachineReady)) },
			requests: "[]", codes: "[]", drain: []berth.MachineID{"m1"}},
		{name: "an empty machine of a tenant without a policy is drained", change: func(f *autoscale.Facts) {
			empty(launched(f, "m1", "a", cloud.LaunchServing, berth.MachineReady))
			clear(f.Policies)
		}, requests: "[]", codes: "[]", drain: []berth.MachineID{"m1"}},
		{name: "a machine that was empty for a moment stays",
			change: func(f *autoscale.Facts) { launched(f, "m1", "a", cloud.LaunchServing, berth.MachineReady) }, requests: "[]", codes: "[]"},
		{name: "a used machine stays", change: func(f *autoscale.Facts) {
			l := launched(f, "m1", "a", cloud.LaunchServing, berth.MachineReady)
			empty(l) // read before the job started
			f.Machines[1].Used = berth.Capacity{CPUMilli: 1}
		}, requests: "[]", codes: "[]"},
		{name: "an idling machine returns for a job", change: func(f *autoscale.Facts) {
			launched(f, "m1", "a", cloud.LaunchServing, berth.MachineDraining).DrainedAt = now.Add(-time.Minute)
			wait(f, "j1", "a", 1)
		}, requests: "[]", codes: "[j1:covered]", undrain: []berth.MachineID{"m1"}},
		{name: "an idling machine is terminated after a while", change: func(f *autoscale.Facts) {
			launched(f, "m1", "a", cloud.LaunchServing, berth.MachineDraining).DrainedAt = now.Add(-autoscale.IdlingFor)
		}, requests: "[]", codes: "[]", stop: []berth.MachineID{"m1"}},
		{name: "a machine that an admin drains is left alone", change: func(f *autoscale.Facts) {
			l := launched(f, "m1", "a", cloud.LaunchServing, berth.MachineDraining)
			l.DrainActor, l.DrainedAt = "operator:x", now.Add(-time.Hour)
			wait(f, "j1", "a", 1)
		}, requests: "[1 big in default for a [j1]]", codes: "[j1:launched]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := full()
			c.change(f)
			o := autoscale.Decide(*f)
			if requested(o) != c.requests || codes(o) != c.codes || !slices.Equal(o.Drain, c.drain) || !slices.Equal(o.Undrain, c.undrain) ||
				!slices.Equal(o.Stop, c.stop) {
				t.Errorf("requests %s, notes %s, drain %v, undrain %v, stop %v\nwant %s, %s, %v, %v, %v", requested(o), codes(o), o.Drain, o.Undrain,
					o.Stop, c.requests, c.codes, c.drain, c.undrain, c.stop)
			}
		})
	}
}

// crowd gives a tenant and the tenants below it a policy by which only numbers of waiting jobs burst.
func crowd(f *autoscale.Facts, t berth.TenantID, r spec.BurstWaiting) {
	for _, x := range []berth.TenantID{"root", "a", "b"} {
		if t == "root" || t == x {
			f.Policies[x] = spec.Burst{Allow: []string{"lab/here"}, When: &spec.BurstWhen{Waiting: []spec.BurstWaiting{r}}}
		}
	}
}

// needs sets the memory that the last job needs, in MiB.
func needs(f *autoscale.Facts, memory int64) {
	demands(f, func(r *spec.Request) { r.MemoryMiB = memory })
}

// demands changes the request of the last job.
func demands(f *autoscale.Facts, change func(*spec.Request)) {
	j := &f.Waiting[len(f.Waiting)-1]
	r := f.Classes[j.Class]
	change(&r)
	j.Class = r.Class()
	f.Classes[j.Class] = r
}

// breakerOf returns the key of a breaker of a launch in a pool.
func breakerOf(scope cloud.Scope, pool string, o db.OfferRow) string {
	for _, b := range (cloud.Request{Pool: pool, Provider: o.Provider, Offering: o.Offering}).Breakers() {
		if b.Scope == scope {
			return b.Key
		}
	}
	return ""
}

// spent gives root a limit of $100 and a spend.
func spent(f *autoscale.Facts, settled, reserved float64) {
	p := f.Policies["root"]
	p.Spend = &spec.BurstSpend{Period: spec.SpendDay, Limit: 100}
	f.Policies["root"] = p
	f.Spent = map[berth.TenantID]db.Spent{"root": {Settled: settled, Reserved: reserved, Limit: 100, Room: 90 - settled - reserved}}
}

// limited returns a policy with at most n machines.
func limited(b spec.Burst, n int) spec.Burst {
	b.MaxMachines = n
	return b
}

// empty makes a machine empty for longer than it is kept.
func empty(l *db.FleetMachine) { l.EmptySince = now.Add(-time.Hour) }

// refused adds the breaker of a refusal of the offer.
func refused(f *autoscale.Facts, until time.Time, probing bool) {
	f.Breakers = append(f.Breakers, db.ProbedBreaker{Probing: probing, Breaker: cloud.Breaker{Scope: cloud.ScopeOffering,
		Key: "lab/" + f.Offers[0].String(), Until: until, Step: 1, Reason: "no room", At: until.Add(-3 * time.Minute)}})
}

func TestNotesHaveTheirFacts(t *testing.T) {
	t.Parallel()
	f := full()
	f.Policies["a"] = spec.Burst{Allow: []string{"lab/here"}, When: &spec.BurstWhen{PlannedWaitOver: spec.Duration(20 * time.Hour)}}
	wait(f, "j1", "a", 1)
	n := autoscale.Decide(*f).Notes[0]
	if n.Start == nil || !n.Start.Equal(now.Add(10*time.Hour)) || n.Cost != 8 {
		t.Errorf("note %+v: want a start in ten hours, and a cost of an hour", n)
	}
	later := n.Start.Add(10 * time.Second) // the plan of the last pass
	f.Notes["j1"] = db.BurstNote{Job: "j1", Code: n.Code, Start: &later}
	if n := autoscale.Decide(*f).Notes[0]; !n.Start.Equal(later) {
		t.Errorf("the planned start moves from %s to %s: the row would change at each pass", later, n.Start)
	}
	until := now.Add(7 * time.Minute)
	f = full()
	refused(f, until, false)
	wait(f, "j1", "a", 1)
	if n := autoscale.Decide(*f).Notes[0]; n.Until == nil || !n.Until.Equal(until) {
		t.Errorf("note %+v: want the end of the refusal", n)
	}
}
