package autoscale_test

import (
	"fmt"
	"testing"
	"time"

	"berth"
	"berth/internal/control/autoscale"
	"berth/internal/control/scaler"
	"berth/placement"
	"berth/spec"
)

// large returns facts about a cluster with full machines, whose jobs end at different times, and with tenants whose
// jobs wait.
func large(machines, running, waiting, tenants int, when spec.BurstWhen) *autoscale.Facts {
	f := full()
	f.Machines, f.Running, f.Tenants = nil, nil, []placement.Tenant{{ID: "root", Weight: 1}}
	r := spec.Request{Members: 1, GPUs: 1, GPUMilli: 1000, Execution: spec.AtLeastOnce}
	f.Classes[r.Class()] = r
	each := running / machines // at most the GPUs of a machine
	for i := range machines {
		m := scaler.MachineOf(f.Offers[0].Offer, berth.MachineID(fmt.Sprintf("m%05d", i)))
		m.Pool, m.GPUs = spec.DefaultPool, m.GPUs[:each]
		m.Total.GPUMilli = int64(each) * 1000
		m.Used.GPUMilli = m.Total.GPUMilli
		for g := range m.GPUs {
			m.GPUs[g].UsedMilli = 1000
			n := i*each + g
			f.Running = append(f.Running, placement.Running{Job: berth.JobID(fmt.Sprintf("r%06d", n)), Tenant: "root", Class: r.Class(), Version: 1,
				Attempt: 1, StartedAt: now.Add(-time.Hour), SubmittedAt: now.Add(-time.Hour),
				Remaining: time.Hour + time.Duration(n*7919%100000)*time.Second, // up to 28 hours
				Ranks: []berth.Grant{{Machine: m.ID, Capacity: berth.Capacity{GPUMilli: 1000},
					GPUs: []berth.DeviceShare{{Index: g, Milli: 1000}}}}})
		}
		f.Machines = append(f.Machines, m)
	}
	for i := range tenants {
		t := berth.TenantID(fmt.Sprintf("t%02d", i))
		f.Tenants = append(f.Tenants, placement.Tenant{ID: t, Parent: "root", Weight: 1})
		f.Policies[t] = spec.Burst{Allow: []string{"lab/here"}, When: &when}
	}
	for i := range waiting {
		wait(f, fmt.Sprintf("w%05d", i), berth.TenantID(fmt.Sprintf("t%02d", i%tenants)), 1)
		j := &f.Waiting[i]
		j.Class, j.Remaining, j.SubmittedAt = r.Class(), time.Duration(1+i%10)*time.Hour, now.Add(-time.Duration(waiting-i)*time.Second)
	}
	return f
}

// BenchmarkPass measures the decision of a pass on large clusters.
func BenchmarkPass(b *testing.B) {
	for _, c := range []struct{ machines, running, waiting, tenants int }{
		{5000, 20000, 2000, 1}, {5000, 20000, 2000, 40}, {200, 800, 500, 10},
	} {
		for name, when := range map[string]spec.BurstWhen{"over": {PlannedWaitOver: spec.Duration(30 * time.Minute)}, "hour": {HourOfWait: 1}} {
			f := large(c.machines, c.running, c.waiting, c.tenants, when)
			b.Run(fmt.Sprintf("%s/%d/%d/%d/%d", name, c.machines, c.running, c.waiting, c.tenants), func(b *testing.B) {
				for b.Loop() {
					autoscale.Decide(*f)
				}
			})
		}
	}
}

// More urgent jobs of a tenant without a policy do not hide the jobs of tenants with one.
func TestUrgentKeepsJobsOfTenantsWithAPolicy(t *testing.T) {
	t.Parallel()
	var list []placement.Job
	add := func(n, priority int, tenant berth.TenantID) {
		for i := range n {
			list = append(list, placement.Job{ID: berth.JobID(fmt.Sprintf("%s%06d", tenant, i)), Tenant: tenant, Priority: priority,
				SubmittedAt: now.Add(time.Duration(i) * time.Second)})
		}
	}
	add(3*autoscale.MaxWaiting, 5, "none")
	add(autoscale.MaxWaiting, 1, "long")
	add(3, 0, "short")
	got := map[berth.TenantID]int{}
	first := map[berth.TenantID]berth.JobID{}
	for _, j := range autoscale.Urgent(list, map[berth.TenantID]bool{"long": true, "short": true, "none": false}) {
		if got[j.Tenant]++; got[j.Tenant] == 1 {
			first[j.Tenant] = j.ID
		}
	}
	if got["short"] != 3 || got["long"] != autoscale.MaxWaiting/4 || got["none"] != autoscale.MaxWaiting*3/4-3 || first["long"] != "long000000" {
		t.Errorf("%v jobs, beginning with %v", got, first)
	}
}
