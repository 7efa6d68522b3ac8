package placement_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"berth"
	"berth/placement"
	"berth/spec"
)

// quotaTree are the tenants of a test, each with its parent.
var quotaTree = map[berth.TenantID]berth.TenantID{"top": "", "left": "top", "right": "top", "leaf": "left", "twin": "left"}

// held is a running job of a model of quotas.
type heldJob struct {
	id       berth.JobID
	tenant   berth.TenantID
	cpu, gpu int64
	gives    bool // way to every other job
	stopping bool
}

// below reports whether a tenant is another one or one below it.
func below(t, other berth.TenantID) bool {
	for ; t != ""; t = quotaTree[t] {
		if t == other {
			return true
		}
	}
	return false
}

// admitted reports whether the quotas of a tenant and of the tenants above it admit one more job, if some running jobs
// had ended. It repeats the rules of quotas, independently of the plan.
func admitted(job heldJob, tenants map[berth.TenantID]placement.Tenant, running []heldJob, ended func(heldJob) bool, now time.Time) bool {
	for id := job.tenant; id != ""; id = quotaTree[id] {
		q := tenants[id]
		var jobs int
		var cpu, gpu, gpuBefore int64
		for _, h := range running {
			if !below(h.tenant, id) {
				continue
			}
			gpuBefore += h.gpu
			if !ended(h) {
				jobs, cpu, gpu = jobs+1, cpu+h.cpu, gpu+h.gpu
			}
		}
		spent := q.Budget.Spent + float64(gpuBefore)/1000*now.Sub(q.Budget.At).Hours()
		if q.MaxRunning > 0 && jobs >= q.MaxRunning || q.Limit.CPUMilli > 0 && cpu+job.cpu > q.Limit.CPUMilli ||
			q.Limit.GPUMilli > 0 && job.gpu > 0 && gpu+job.gpu > q.Limit.GPUMilli ||
			q.Borrow == placement.BorrowNothing && (q.Guarantee.CPUMilli > 0 && cpu+job.cpu > q.Guarantee.CPUMilli) ||
			q.Budget.GPUHours > 0 && job.gpu > 0 && spent >= q.Budget.GPUHours {
			return false
		}
	}
	return true
}

// TestOnlyHoldsWhoseEndHelpsAreEnded draws quotas and running jobs, and compares the holds that a plan ends with a model:
// their ends admit the next job, none of them can be left out, and no hold ends in vain.
func TestOnlyHoldsWhoseEndHelpsAreEnded(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		s := placement.NewSnapshot()
		s.UpsertMachine(placement.Machine{ID: "m", Epoch: 1, State: berth.MachineReady, GPUs: []placement.Device{},
			Total: berth.Capacity{CPUMilli: 1 << 30, MemoryMiB: 1 << 30}})
		tenants := map[berth.TenantID]placement.Tenant{}
		for _, id := range []berth.TenantID{"top", "left", "right", "leaf", "twin"} {
			q := placement.Tenant{ID: id, Parent: quotaTree[id]}
			switch rapid.IntRange(0, 5).Draw(t, "quota of "+string(id)) {
			case 0:
				q.MaxRunning = rapid.IntRange(1, 4).Draw(t, "max_running")
			case 1:
				q.Limit.CPUMilli = 1000 * rapid.Int64Range(1, 6).Draw(t, "cpus")
			case 2:
				q.Limit.GPUMilli = 1000 * rapid.Int64Range(1, 3).Draw(t, "gpus")
			case 3:
				q.Borrow, q.Guarantee.CPUMilli = placement.BorrowNothing, 1000*rapid.Int64Range(1, 6).Draw(t, "guarantee")
			case 4:
				q.Budget = placement.Budget{GPUHours: 4, Spent: rapid.Float64Range(0, 8).Draw(t, "spent"), At: now.Add(-time.Hour)}
			}
			tenants[id] = q
			s.UpsertTenant(q)
		}
		tenant := rapid.SampledFrom([]berth.TenantID{"top", "left", "right", "leaf", "twin"})
		gpus := rapid.Int64Range(0, 1)
		var running []heldJob
		for i := range rapid.IntRange(0, 6).Draw(t, "running jobs") {
			h := heldJob{id: berth.JobID(fmt.Sprint("h", i)), tenant: tenant.Draw(t, "tenant"), cpu: 1000 * rapid.Int64Range(1, 2).Draw(t, "cpu"),
				gpu: 1000 * gpus.Draw(t, "gpu"), gives: rapid.IntRange(0, 3).Draw(t, "kind") > 0, stopping: rapid.IntRange(0, 3).Draw(t, "stop") == 0}
			running = append(running, h)
			priority := 100
			if h.gives {
				priority = placement.DebugPriority
			}
			s.UpsertRunning(placement.Running{Job: h.id, Tenant: h.tenant, Class: "c", Version: 1, Attempt: 1, Priority: priority, Preemptible: true,
				StartedAt: now.Add(-time.Duration(i) * time.Minute), TimeLimit: 2 * time.Hour, Stopping: h.stopping,
				Ranks: []berth.Grant{{Machine: "m", Epoch: 1, Capacity: berth.Capacity{CPUMilli: h.cpu, GPUMilli: h.gpu}}}})
		}
		job := heldJob{id: "job", tenant: tenant.Draw(t, "tenant of the job"), cpu: 1000 * rapid.Int64Range(1, 2).Draw(t, "cpu of the job"),
			gpu: 1000 * gpus.Draw(t, "gpu of the job")}
		request := spec.Request{CPUMilli: job.cpu, Members: 1}
		if job.gpu > 0 {
			request.GPUs, request.GPUMilli = 1, 1000
		}
		s.DefineClass("j", request)
		s.UpsertJob(placement.Job{ID: job.id, Tenant: job.tenant, Class: "j", Version: 1, Priority: 100, SubmittedAt: now, EligibleAt: now})

		plan := placement.Planner{Policy: placement.Policy{BandWidth: 100}}.Plan(s, now)
		var ends []berth.JobID
		for _, end := range plan.EndHolds {
			i := slices.IndexFunc(running, func(h heldJob) bool { return h.id == end.Job })
			if i < 0 || !running[i].gives || running[i].stopping || slices.Contains(ends, end.Job) {
				t.Fatalf("%s ends, which is no running hold, or ends twice", end.Job)
			}
			if !below(running[i].tenant, end.Quota) || !below(job.tenant, end.Quota) {
				t.Errorf("%s of tenant %s ends for a quota of tenant %s", end.Job, running[i].tenant, end.Quota)
			}
			ends = append(ends, end.Job)
		}
		admits := func(also func(heldJob) bool) bool {
			return admitted(job, tenants, running, func(h heldJob) bool { return h.gives && h.stopping || also(h) }, now)
		}
		none := admits(func(heldJob) bool { return false })
		all := admits(func(h heldJob) bool { return h.gives })
		switch {
		case none || !all:
			if len(ends) > 0 {
				t.Errorf("%v end in vain: admitted without an end %t, with all ends %t", ends, none, all)
			}
		case !admits(func(h heldJob) bool { return slices.Contains(ends, h.id) }):
			t.Errorf("the ends of %v do not admit the job", ends)
		}
		for _, spared := range ends {
			if admits(func(h heldJob) bool { return h.id != spared && slices.Contains(ends, h.id) }) {
				t.Errorf("%s of %v need not end", spared, ends)
			}
		}
	})
}
