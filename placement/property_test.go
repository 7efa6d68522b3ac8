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

// world is the rows a snapshot should mirror.
type world struct {
	machines map[berth.MachineID]placement.Machine
	jobs     map[berth.JobID]placement.Job
	requests []spec.Request
	caches   map[berth.MachineID][]spec.CachedData

	apart   bool // no device is shared by two tenants
	running map[berth.JobID]placement.Running
	owners  map[device]berth.TenantID // of the devices with shares that a job holds

	pools []placement.Pool // with rules
	taken []usage          // by the decisions of a plan, which are no running jobs yet
}

// usage is capacity of a machine that a tenant has.
type usage struct {
	machine berth.MachineID
	tenant  berth.TenantID
	amount  berth.Capacity
}

// usedByOther reports whether a tenant other than t uses a machine that is used by one tenant at a time. Jobs
// without a tenant are no use.
func (w *world) usedByOther(m placement.Machine, t berth.TenantID) bool {
	one := slices.ContainsFunc(w.pools, func(p placement.Pool) bool { return p.Name == m.Pool && p.OneTenant })
	if !one || t == "" {
		return false
	}
	uses := slices.Clone(w.taken)
	for _, r := range w.running {
		for _, g := range r.Ranks {
			uses = append(uses, usage{g.Machine, r.Tenant, g.Capacity})
		}
	}
	rest := m.Used
	for _, u := range uses {
		if u.machine != m.ID {
			continue
		}
		if u.tenant != "" && u.tenant != t {
			return true
		}
		rest = rest.Sub(u.amount)
	}
	return rest.CPUMilli+rest.MemoryMiB+rest.DiskMiB+rest.GPUMilli > 0 // no job explains the rest
}

// device is a device of a machine.
type device struct {
	machine berth.MachineID
	index   int
}

// oracleConstraints are constraints with their meaning in Go.
var oracleConstraints = map[string]func(m placement.Machine, d *placement.Device) bool{
	"":                              func(placement.Machine, *placement.Device) bool { return true },
	`machine.labels.tier == "prod"`: func(m placement.Machine, _ *placement.Device) bool { return m.Labels["tier"] == "prod" },
	`machine.id != "m1" && machine.cpus >= 2`: func(m placement.Machine, _ *placement.Device) bool {
		return m.ID != "m1" && m.Total.CPUMilli >= 2000
	},
	`"rack" in machine.labels`: func(m placement.Machine, _ *placement.Device) bool {
		_, ok := m.Labels["rack"]
		return ok
	},
	`gpu.memory_mib > 50000`: func(_ placement.Machine, d *placement.Device) bool { return d != nil && d.MemoryMiB > 50000 },
	`gpu.index == 1`:         func(_ placement.Machine, d *placement.Device) bool { return d != nil && d.Index == 1 },
}

func drawMachine(t *rapid.T, id string) placement.Machine {
	m := placement.Machine{
		ID: berth.MachineID(id), Epoch: rapid.Int64Range(1, 3).Draw(t, "epoch"),
		State:  rapid.SampledFrom([]berth.MachineState{berth.MachineReady, berth.MachineReady, berth.MachineReady, berth.MachineSuspect}).Draw(t, "state"),
		Region: rapid.SampledFrom([]string{"eu", "us"}).Draw(t, "region"),
		Pool:   rapid.SampledFrom([]string{"", "p", "q"}).Draw(t, "pool"),
		Labels: map[string]string{},
		Total: berth.Capacity{
			CPUMilli: 1000 * rapid.Int64Range(0, 6).Draw(t, "cpu"), MemoryMiB: 1024 * rapid.Int64Range(0, 8).Draw(t, "mem"),
			DiskMiB: 1024 * rapid.Int64Range(0, 3).Draw(t, "disk"),
		},
	}
	if v := rapid.SampledFrom([]string{"", "prod", "dev"}).Draw(t, "tier"); v != "" {
		m.Labels["tier"] = v
	}
	if v := rapid.SampledFrom([]string{"", "r1", "r2"}).Draw(t, "rack"); v != "" {
		m.Labels["rack"] = v
	}
	for i := range rapid.IntRange(0, 3).Draw(t, "gpus") {
		model := rapid.SampledFrom([]placement.Device{{Model: "A100", MemoryMiB: 40960}, {Model: "H100", MemoryMiB: 81920}}).Draw(t, "model")
		m.GPUs = append(m.GPUs, placement.Device{
			Index: i, Model: model.Model, MemoryMiB: model.MemoryMiB,
			Healthy:   rapid.IntRange(0, 9).Draw(t, "health") > 0,
			UsedMilli: 250 * rapid.Int64Range(0, 2).Draw(t, "used") * rapid.Int64Range(0, 1).Draw(t, "inuse"),
		})
		m.Total.GPUMilli += 1000
		m.Used.GPUMilli += m.GPUs[i].UsedMilli
	}
	return m
}

func drawRequest(t *rapid.T) spec.Request {
	r := spec.Request{
		CPUMilli: 500 * rapid.Int64Range(1, 6).Draw(t, "cpu"), MemoryMiB: 512 * rapid.Int64Range(0, 6).Draw(t, "mem"),
		DiskMiB: 1024 * rapid.Int64Range(0, 1).Draw(t, "disk"), Members: rapid.SampledFrom([]int{1, 1, 1, 2, 3}).Draw(t, "members"),
		Strategy: rapid.SampledFrom([]string{"", "spread"}).Draw(t, "strategy"), Execution: spec.AtLeastOnce,
	}
	if rapid.Bool().Draw(t, "gpu") {
		if rapid.Bool().Draw(t, "whole") {
			r.GPUs, r.GPUMilli = rapid.IntRange(1, 2).Draw(t, "gpus"), 1000
		} else {
			r.GPUs, r.GPUMilli = 1, rapid.SampledFrom([]int64{200, 500, 750}).Draw(t, "share")
		}
		r.GPUTypes = rapid.SampledFrom([][]string{nil, {"A100"}, {"A100", "H100"}}).Draw(t, "types")
		r.GPUMemoryMiB = rapid.SampledFrom([]int64{0, 40960, 81920}).Draw(t, "gpumem")
	}
	r.Regions = rapid.SampledFrom([][]string{nil, nil, {"eu"}}).Draw(t, "regions")
	r.Labels = rapid.SampledFrom([]map[string]string{nil, nil, {"tier": "dev"}}).Draw(t, "labels")
	r.SameLabel = rapid.SampledFrom([]string{"", "", "rack"}).Draw(t, "same")
	r.Avoid = rapid.SampledFrom([][]berth.MachineID{nil, nil, {"m0", "m2"}}).Draw(t, "avoid")
	keys := []string{"", "", ""}
	for k := range oracleConstraints {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	r.Constraint = rapid.SampledFrom(keys).Draw(t, "constraint")
	if rapid.IntRange(0, 4).Draw(t, "unlike") == 0 {
		r = withHead(r)
	}
	return r
}

// requestOf is the request of one member of a gang.
func requestOf(r spec.Request, rank int) spec.Request {
	for _, one := range r.Split() {
		if rank < one.Members {
			return one
		}
		rank -= one.Members
	}
	panic("no such member")
}

func drawJob(t *rapid.T, n int, w *world) placement.Job {
	j := placement.Job{
		ID:    berth.JobID(fmt.Sprintf("j%d", n)),
		Class: rapid.SampledFrom(w.requests).Draw(t, "class").Class(), Version: rapid.Int64Range(1, 9).Draw(t, "version"),
		Attempt: rapid.IntRange(0, 2).Draw(t, "attempt"), Priority: 100 * rapid.IntRange(0, 3).Draw(t, "priority"),
		SubmittedAt: epoch.Add(time.Duration(rapid.IntRange(0, 3).Draw(t, "submitted")) * time.Second),
		EligibleAt:  epoch.Add(time.Duration(rapid.IntRange(0, 12).Draw(t, "eligible")) * time.Second),
		Held:        rapid.IntRange(0, 9).Draw(t, "held") == 0,
	}
	if rapid.IntRange(0, 4).Draw(t, "deadline") == 0 {
		j.QueueDeadline = epoch.Add(time.Duration(rapid.IntRange(0, 20).Draw(t, "deadline at")) * time.Second)
	}
	j.Tenant = rapid.SampledFrom([]berth.TenantID{"", "a", "b"}).Draw(t, "tenant")
	j.Data = drawData(t)
	if rapid.IntRange(0, 3).Draw(t, "avoids") == 0 {
		j.Avoid = []berth.MachineID{"m1", "m3"}
	}
	return j
}

// drawPools is rules of pools, which close a pool to some tenants, or give its machines to one tenant at a time.
func drawPools(t *rapid.T) (list []placement.Pool) {
	for _, name := range rapid.SliceOfDistinct(rapid.SampledFrom([]string{"p", "q"}), rapid.ID[string]).Draw(t, "pools") {
		list = append(list, placement.Pool{Name: name, Tenants: rapid.SampledFrom([][]berth.TenantID{nil, {"a"}, {"b"}, {"a", "b"}}).Draw(t, "tenants"),
			Open: rapid.Bool().Draw(t, "open"), OneTenant: rapid.Bool().Draw(t, "one tenant")})
	}
	return list
}

// takes reports whether the machine's pool takes the jobs of a tenant.
func (w *world) takes(m placement.Machine, t berth.TenantID) bool {
	return !slices.ContainsFunc(w.pools, func(p placement.Pool) bool { return p.Name == m.Pool && !p.Open && !slices.Contains(p.Tenants, t) })
}

// drawData is keys of a few that jobs need and machines hold.
func drawData(t *rapid.T) []spec.DataKey {
	return rapid.SliceOfNDistinct(rapid.SampledFrom([]spec.DataKey{1, 2, 3, 4}), 0, 3, rapid.ID[spec.DataKey]).Draw(t, "data")
}

// snapshot builds one from nothing, in id order.
func (w *world) snapshot(mix *placement.Mix) *placement.Snapshot {
	s := placement.NewSnapshot()
	if w.apart {
		s.KeepTenantsApart()
	}
	for _, id := range sorted(w.running) {
		s.UpsertRunning(w.running[id])
	}
	for _, r := range w.requests {
		s.DefineClass(r.Class(), r)
	}
	for _, id := range sorted(w.machines) {
		s.UpsertMachine(w.machines[id])
	}
	for _, id := range sorted(w.jobs) {
		s.UpsertJob(w.jobs[id])
	}
	for id, holds := range w.caches {
		s.SetCache(id, holds)
	}
	placement.SetPools(s, w.pools)
	s.UseMix(mix)
	return s
}

func sorted[K ~string, V any](m map[K]V) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// TestPlanAgainstOracle drives a snapshot with random deltas and checks each
// plan against rules spelled out by brute force.
func TestPlanAgainstOracle(t *testing.T) {
	t.Parallel()
	for name, planner := range map[string]placement.Planner{"best fit": {}, "worth": {Pack: placement.LeastFragmentation}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			planAgainstOracle(t, planner)
		})
	}
}

func planAgainstOracle(t *testing.T, planner placement.Planner) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{machines: map[berth.MachineID]placement.Machine{}, jobs: map[berth.JobID]placement.Job{}, caches: map[berth.MachineID][]spec.CachedData{},
			apart: rapid.Bool().Draw(t, "apart"), running: map[berth.JobID]placement.Running{}, owners: map[device]berth.TenantID{}}
		for range rapid.IntRange(1, 5).Draw(t, "classes") {
			w.requests = append(w.requests, drawRequest(t))
		}
		s := placement.NewSnapshot()
		if w.apart {
			s.KeepTenantsApart()
		}
		for _, r := range w.requests {
			s.DefineClass(r.Class(), r)
		}
		var asked []placement.Asked
		for _, r := range w.requests {
			asked = append(asked, placement.Asked{Request: r, Count: float64(rapid.IntRange(1, 5).Draw(t, "count"))})
		}
		mix, err := placement.GivenMix(asked)
		if err != nil {
			t.Fatal(err)
		}
		s.UseMix(mix)
		now := epoch
		var assumed []berth.Start
		t.Repeat(map[string]func(*rapid.T){
			"machine": func(t *rapid.T) {
				m := drawMachine(t, fmt.Sprintf("m%d", rapid.IntRange(0, 5).Draw(t, "machine")))
				if len(assumed) == 0 { // keeps the books simple
					w.forget(s, m.ID)
					w.machines[m.ID] = m
					s.UpsertMachine(m)
				}
			},
			"machine goes": func(t *rapid.T) {
				id := berth.MachineID(fmt.Sprintf("m%d", rapid.IntRange(0, 5).Draw(t, "machine")))
				if len(assumed) == 0 {
					w.forget(s, id)
					delete(w.machines, id)
					delete(w.caches, id)
					s.RemoveMachine(id)
				}
			},
			"job": func(t *rapid.T) {
				j := drawJob(t, rapid.IntRange(0, 9).Draw(t, "job"), w)
				if !slices.ContainsFunc(assumed, func(s berth.Start) bool { return s.Job == j.ID }) {
					w.jobs[j.ID] = j
					s.UpsertJob(j)
				}
			},
			"job goes": func(t *rapid.T) {
				id := berth.JobID(fmt.Sprintf("j%d", rapid.IntRange(0, 9).Draw(t, "job")))
				delete(w.jobs, id)
				s.RemoveJob(id)
			},
			"cache": func(t *rapid.T) {
				id := berth.MachineID(fmt.Sprintf("m%d", rapid.IntRange(0, 5).Draw(t, "machine")))
				w.caches[id] = nil
				for _, key := range drawData(t) {
					w.caches[id] = append(w.caches[id], spec.CachedData{Key: key, MiB: 1 << rapid.IntRange(4, 16).Draw(t, "size")})
				}
				s.SetCache(id, w.caches[id])
			},
			"pools": func(t *rapid.T) {
				w.pools = drawPools(t)
				placement.SetPools(s, w.pools)
			},
			"stop": func(t *rapid.T) {
				if id := berth.JobID(fmt.Sprintf("j%d", rapid.IntRange(0, 9).Draw(t, "job"))); w.running[id].Job == id {
					r := w.running[id]
					r.Stopping, r.StopBy = true, rapid.SampledFrom([]time.Time{{}, now, now.Add(time.Minute)}).Draw(t, "stops by")
					w.running[id] = r
					s.UpsertRunning(r)
				}
			},
			"time": func(t *rapid.T) { now = now.Add(time.Second) },
			"assume": func(t *rapid.T) {
				if len(assumed) == 0 {
					assumed = planner.Plan(s, now).Start
					s.Assume(assumed)
				}
			},
			"commit": func(t *rapid.T) {
				for _, start := range assumed {
					w.run(s, start)
				}
				w.apply(assumed)
				w.taken = nil // running jobs and rows of machines have it now
				for _, start := range assumed {
					s.RemoveJob(start.Job)
					for _, g := range start.Ranks {
						s.UpsertMachine(w.machines[g.Machine])
					}
				}
				s.Drop(assumed)
				assumed = nil
			},
			"refuse": func(t *rapid.T) {
				s.Drop(assumed)
				assumed = nil
			},
			"": func(t *rapid.T) {
				if len(assumed) > 0 {
					return
				}
				p := planner.Plan(s, now)
				if diff := cmp.Diff(p, planner.Plan(s, now)); diff != "" {
					t.Fatalf("a second plan differs:\n%s", diff)
				}
				if diff := cmp.Diff(p, planner.Plan(w.snapshot(mix), now)); diff != "" {
					t.Fatalf("the plan of a fresh snapshot differs (-incremental +fresh):\n%s", diff)
				}
				w.check(t, p, now)
				w.checkExplanations(t, s)
			},
		})
	})
}

// run makes a started job an occupant, in a world that keeps tenants apart. Another job of the same
// id has ended there, without giving back its capacity.
func (w *world) run(s *placement.Snapshot, start berth.Start) {
	j, ok := w.jobs[start.Job]
	if !w.apart || !ok {
		return
	}
	if was, ok := w.running[start.Job]; ok {
		w.leave(s, was)
	}
	r := placement.Running{Job: start.Job, Tenant: j.Tenant, Class: j.Class, Ranks: start.Ranks, StartedAt: epoch}
	w.running[start.Job] = r
	s.UpsertRunning(r)
}

// forget ends the jobs on a machine, without giving back their capacity elsewhere.
func (w *world) forget(s *placement.Snapshot, id berth.MachineID) {
	for _, job := range sorted(w.running) {
		if r := w.running[job]; slices.ContainsFunc(r.Ranks, func(g berth.Grant) bool { return g.Machine == id }) {
			w.leave(s, r)
		}
	}
	for d := range w.owners {
		if d.machine == id {
			delete(w.owners, d)
		}
	}
}

// leave removes an occupant. The use of its devices stays, and no job explains it from now on.
func (w *world) leave(s *placement.Snapshot, r placement.Running) {
	delete(w.running, r.Job)
	s.RemoveRunning(r.Job)
	for _, g := range r.Ranks {
		for _, d := range g.GPUs {
			w.owners[device{g.Machine, d.Index}] = "unknown"
		}
	}
}

func (w *world) apply(starts []berth.Start) {
	for _, start := range starts {
		tenant := w.jobs[start.Job].Tenant
		delete(w.jobs, start.Job)
		for _, g := range start.Ranks {
			for _, d := range g.GPUs {
				w.own(g.Machine, d.Index, tenant)
			}
			w.machines[g.Machine] = occupy(w.machines[g.Machine], g)
			w.taken = append(w.taken, usage{g.Machine, tenant, g.Capacity})
		}
	}
}

// own records the tenant of a share of a device.
func (w *world) own(m berth.MachineID, index int, t berth.TenantID) {
	if !w.apart || w.machines[m].GPUs[index].UsedMilli > 0 {
		return // it is the tenant's already
	}
	w.owners[device{m, index}] = t
}

// usable is the part of a device that a job of the tenant may take.
func (w *world) usable(m placement.Machine, r spec.Request, t berth.TenantID, index int) int64 {
	owner, known := w.owners[device{m.ID, index}]
	if used := m.GPUs[index].UsedMilli; w.apart && r.GPUMilli < 1000 && used > 0 && (!known || owner != t) {
		return 0
	}
	return usable(m, r, index)
}

func (w *world) clone() *world {
	c := &world{machines: map[berth.MachineID]placement.Machine{}, jobs: map[berth.JobID]placement.Job{}, requests: w.requests,
		apart: w.apart, owners: maps.Clone(w.owners), pools: w.pools, running: w.running, taken: slices.Clone(w.taken)}
	for id, m := range w.machines {
		m.GPUs = slices.Clone(m.GPUs)
		c.machines[id] = m
	}
	for id, j := range w.jobs {
		c.jobs[id] = j
	}
	return c
}

func (w *world) request(class string) spec.Request {
	for _, r := range w.requests {
		if r.Class() == class {
			return r
		}
	}
	panic("no class " + class)
}

// check walks the queue in order: each job that was started must be allowed
// where it went and have room left by those before it, and each that was not
// must have had no room at its turn.
func (w *world) check(t *rapid.T, p placement.Plan, now time.Time) {
	w = w.clone()
	queue := make([]placement.Job, 0, len(w.jobs))
	for _, id := range sorted(w.jobs) {
		queue = append(queue, w.jobs[id])
	}
	slices.SortStableFunc(queue, func(a, b placement.Job) int {
		if a.Priority != b.Priority {
			return b.Priority - a.Priority
		}
		return a.SubmittedAt.Compare(b.SubmittedAt)
	})
	next := 0
	failed := 0
	for _, j := range queue {
		due := !j.Held && !j.QueueDeadline.IsZero() && !j.QueueDeadline.After(now)
		if due {
			failed++
		}
		waits := j.Held || due || j.EligibleAt.After(now)
		r := w.request(j.Class)
		if next < len(p.Start) && p.Start[next].Job == j.ID {
			if waits {
				t.Fatalf("job %s is held, late or not eligible, and was started", j.ID)
			}
			w.checkStart(t, p.Start[next], j, r)
			w.apply(p.Start[next : next+1])
			next++
			continue
		}
		// Whether unlike members fit is no matter of one order: a gang may wait though some order has room.
		if !waits && len(r.Groups) == 0 && w.room(r, j.Tenant, nil) {
			t.Fatalf("job %s has room at its turn and was not started\nrequest %+v\nplan %+v", j.ID, r, p)
		}
	}
	if next != len(p.Start) {
		t.Fatalf("start %d is out of order or of no job: %+v", next, p.Start)
	}
	if failed != len(p.Fail) {
		t.Fatalf("%d jobs are past their deadline, %d fail", failed, len(p.Fail))
	}
}

func (w *world) checkStart(t *rapid.T, s berth.Start, j placement.Job, all spec.Request) {
	r := all
	if len(s.Ranks) != r.Members || s.Attempt != j.Attempt+1 || s.Version != j.Version {
		t.Fatalf("start %+v does not suit job %+v of %d members", s, j, r.Members)
	}
	c := w.clone()
	avoided := false
	for rank, g := range s.Ranks {
		r := requestOf(all, rank)
		m := c.machines[g.Machine]
		if g.Epoch != m.Epoch || g.Capacity != r.Capacity() || len(g.GPUs) != r.GPUs {
			t.Fatalf("grant %+v does not suit machine %+v and request %+v", g, m, r)
		}
		for _, d := range g.GPUs {
			if free := c.usable(m, r, j.Tenant, d.Index); free < d.Milli || d.Milli != r.GPUMilli {
				t.Fatalf("grant %+v takes GPU %d, which has %d", g, d.Index, free)
			}
		}
		if !allowed(m, r) || !w.takes(m, j.Tenant) || w.usedByOther(w.machines[g.Machine], j.Tenant) {
			t.Fatalf("grant %+v breaks request %+v on machine %+v", g, r, m)
		}
		if r.SameLabel != "" && m.Labels[r.SameLabel] != c.machines[s.Ranks[0].Machine].Labels[r.SameLabel] {
			t.Fatalf("members differ in label %s: %+v", r.SameLabel, s)
		}
		avoided = avoided || slices.Contains(j.Avoid, g.Machine)
		for _, d := range g.GPUs {
			c.own(g.Machine, d.Index, j.Tenant)
		}
		m = occupy(m, g)
		if free := m.Total.Sub(m.Used); free.CPUMilli < 0 || free.MemoryMiB < 0 || free.DiskMiB < 0 || free.GPUMilli < 0 {
			t.Fatalf("machine %s is over its capacity: %+v", m.ID, free)
		}
		c.machines[g.Machine] = m
	}
	if avoided && len(r.Groups) == 0 && w.room(r, j.Tenant, j.Avoid) {
		t.Fatalf("job %s went to a machine it should avoid while another had room", j.ID)
	}
}

// allowed applies every clause but room.
func allowed(m placement.Machine, r spec.Request) bool {
	if m.State != berth.MachineReady || slices.Contains(r.Avoid, m.ID) {
		return false
	}
	if len(r.Regions) > 0 && !slices.Contains(r.Regions, m.Region) {
		return false
	}
	for k, v := range r.Labels {
		if m.Labels[k] != v {
			return false
		}
	}
	if _, ok := m.Labels[r.SameLabel]; r.SameLabel != "" && !ok {
		return false
	}
	holds := oracleConstraints[r.Constraint]
	if r.GPUs == 0 {
		return holds(m, nil)
	}
	return slices.ContainsFunc(m.GPUs, func(d placement.Device) bool { return holds(m, &d) })
}

// usable is what of a device the request may take.
func usable(m placement.Machine, r spec.Request, index int) int64 {
	d := m.GPUs[index]
	if !d.Healthy || d.MemoryMiB < r.GPUMemoryMiB || len(r.GPUTypes) > 0 && !slices.Contains(r.GPUTypes, d.Model) || !oracleConstraints[r.Constraint](m, &d) {
		return 0
	}
	return 1000 - d.UsedMilli
}

// room reports whether all members fit, by putting one after the other into the
// first machine with room. That is exact: members are alike.
func (w *world) room(r spec.Request, t berth.TenantID, avoid []berth.MachineID) bool {
	groups := []string{""}
	if r.SameLabel != "" {
		groups = []string{"r1", "r2"}
	}
	for _, group := range groups {
		c := w.clone()
		placed := 0
		for _, id := range sorted(c.machines) {
			m := c.machines[id]
			if !allowed(m, r) || !w.takes(m, t) || w.usedByOther(m, t) || slices.Contains(avoid, id) || group != "" && m.Labels[r.SameLabel] != group {
				continue
			}
			for placed < r.Members {
				g, ok := c.grantOn(m, r, t)
				if !ok {
					break
				}
				for _, d := range g.GPUs {
					c.own(m.ID, d.Index, t)
				}
				m = occupy(m, g)
				c.machines[m.ID] = m
				placed++
			}
		}
		if placed == r.Members {
			return true
		}
	}
	return false
}

func (w *world) grantOn(m placement.Machine, r spec.Request, t berth.TenantID) (berth.Grant, bool) {
	g := berth.Grant{Machine: m.ID, Capacity: r.Capacity()}
	if !g.Capacity.Fits(m.Total.Sub(m.Used)) {
		return g, false
	}
	for i := range m.GPUs {
		if len(g.GPUs) < r.GPUs && w.usable(m, r, t, i) >= r.GPUMilli {
			g.GPUs = append(g.GPUs, berth.DeviceShare{Index: i, Milli: r.GPUMilli})
		}
	}
	return g, len(g.GPUs) == r.GPUs
}

// checkExplanations compares what is said of each request with brute force.
func (w *world) checkExplanations(t *rapid.T, s *placement.Snapshot) {
	w = w.clone()
	w.apart, w.pools = false, nil // a request alone is no tenant's
	for _, r := range w.requests {
		e := placement.Explain(s, r)
		if len(r.Groups) > 0 {
			continue // it is explained by one of its groups, see TestAnExplanationNamesTheGroupWithoutRoom
		}
		now, after := 0, 0
		var fit []berth.MachineID
		for _, id := range sorted(w.machines) {
			if _, ok := w.grantOn(w.machines[id], r, ""); ok && allowed(w.machines[id], r) {
				now++
				fit = append(fit, id)
			}
		}
		for _, c := range e.Clauses {
			after += c.After
		}
		if e.Machines != len(w.machines) || e.FitNow != now || after+now != e.Machines || e.FitEver < now {
			t.Fatalf("request %+v: %d machines, %d fit, said %+v", r, len(w.machines), now, e)
		}
		slices.Sort(e.Candidates)
		if !slices.Equal(fit, e.Candidates) {
			t.Fatalf("request %+v: %v fit, said %v", r, fit, e.Candidates)
		}
		if e.Unsatisfiable() && w.room(r, "", nil) {
			t.Fatalf("request %+v fits now and is called unsatisfiable: %+v", r, e)
		}
		if e.Members != nil && (e.Members.Now == e.Members.Asked) != w.room(r, "", nil) {
			t.Fatalf("request %+v: members %+v, room %v", r, *e.Members, w.room(r, "", nil))
		}
	}
}
