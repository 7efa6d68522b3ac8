package placement_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"berth"
	"berth/placement"
	"berth/spec"
)

// pooled is a machine of a pool.
func pooled(id, pool string, cpus, gpus int) placement.Machine {
	m := placement.Machine{
		ID: berth.MachineID(id), Epoch: 1, State: berth.MachineReady, Pool: pool, Labels: map[string]string{"rack": pool},
		Total: berth.Capacity{CPUMilli: int64(cpus) * 1000, MemoryMiB: 64_000, GPUMilli: int64(gpus) * 1000},
	}
	for i := range gpus {
		m.GPUs = append(m.GPUs, placement.Device{Index: i, Model: "A", MemoryMiB: 40_960, Healthy: true})
	}
	return m
}

// TestDemandSaysWhichMachinesAreMissing: of the smallest sort that will do,
// filled up before another is asked for; what waits for a quota, what no machine
// could hold, and what has a place asks for none.
func TestDemandSaysWhichMachinesAreMissing(t *testing.T) {
	t.Parallel()
	full := func(m placement.Machine) placement.Machine {
		m.Used = m.Total
		for i := range m.GPUs {
			m.GPUs[i].UsedMilli = 1000
		}
		return m
	}
	cpu := spec.Request{CPUMilli: 4000, MemoryMiB: 1000, Members: 1, Execution: spec.AtLeastOnce}
	for name, c := range map[string]struct {
		jobs []spec.Request
		want []placement.Demand
	}{
		"nothing waits": {},
		"work without GPUs goes to machines without": {
			[]spec.Request{cpu, cpu, cpu},
			[]placement.Demand{{Pool: "cpu", Like: "c1", Machines: 2, Members: 3, Capacity: berth.Capacity{CPUMilli: 12_000, MemoryMiB: 3000}}},
		},
		"the smallest machine that will do": {
			[]spec.Request{gpuRequest(2, 1), gpuRequest(2, 1), gpuRequest(3, 1)},
			[]placement.Demand{
				{Pool: "large", Like: "l1", Machines: 1, Members: 1, Capacity: berth.Capacity{CPUMilli: 1000, MemoryMiB: 1000, GPUMilli: 3000}},
				{Pool: "small", Like: "s1", Machines: 2, Members: 2, Capacity: berth.Capacity{CPUMilli: 2000, MemoryMiB: 2000, GPUMilli: 4000}},
			},
		},
		"a gang as a whole": {
			[]spec.Request{gpuRequest(2, 3)},
			[]placement.Demand{{Pool: "small", Like: "s1", Machines: 3, Members: 3, Capacity: berth.Capacity{CPUMilli: 3000, MemoryMiB: 3000, GPUMilli: 6000}}},
		},
		"more than any machine has": {[]spec.Request{gpuRequest(9, 1)}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := placement.NewSnapshot()
			s.UpsertMachine(full(pooled("c1", "cpu", 8, 0)))
			s.UpsertMachine(full(pooled("l1", "large", 32, 8)))
			s.UpsertMachine(full(pooled("s1", "small", 8, 2)))
			s.UpsertTenant(placement.Tenant{ID: "barred", Limit: berth.Capacity{GPUMilli: -1}})
			barred := job(1000, gpuRequest(1, 1).Class(), 0)
			barred.Tenant = "barred"
			s.DefineClass(barred.Class, gpuRequest(1, 1))
			s.UpsertJob(barred)
			for i, r := range c.jobs {
				s.DefineClass(r.Class(), r)
				s.UpsertJob(job(i, r.Class(), 0))
			}
			p := placement.Planner{Demand: true}.Plan(s, epoch.Add(time.Hour))
			if diff := cmp.Diff(c.want, p.Demand); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestDemandIsMet: on machines as they are asked for, at least the first job that
// asked has a place, and nothing is asked for that would stay empty.
func TestDemandIsMet(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := &world{machines: map[berth.MachineID]placement.Machine{}, jobs: map[berth.JobID]placement.Job{}}
		for i := range rapid.IntRange(1, 4).Draw(t, "machines") {
			m := drawMachine(t, fmt.Sprintf("m%d", i))
			m.Pool = rapid.SampledFrom([]string{"a", "b"}).Draw(t, "pool")
			w.machines[m.ID] = m
		}
		for range rapid.IntRange(1, 4).Draw(t, "classes") {
			w.requests = append(w.requests, drawRequest(t))
		}
		for i := range rapid.IntRange(0, 12).Draw(t, "jobs") {
			j := drawJob(t, i, w)
			w.jobs[j.ID] = j
		}
		planner := placement.Planner{Demand: true}
		now := epoch.Add(time.Minute)
		p := planner.Plan(w.snapshot(placement.NewMix()), now)
		if diff := cmp.Diff(p, planner.Plan(w.snapshot(placement.NewMix()), now)); diff != "" {
			t.Fatalf("a second plan differs:\n%s", diff)
		}
		grown := w.clone()
		grown.apply(p.Start)
		for _, d := range p.Demand {
			like := w.machines[d.Like]
			if like.Pool != d.Pool || d.Members < d.Machines || d.Machines < 1 {
				t.Fatalf("asks for %+v", d)
			}
			if room := d.Capacity; room.CPUMilli > int64(d.Machines)*like.Total.CPUMilli || room.GPUMilli > int64(d.Machines)*like.Total.GPUMilli {
				t.Fatalf("puts more on the machines than they have: %+v on %+v", d, like.Total)
			}
			for i := range d.Machines {
				m := like
				m.ID, m.State, m.Used = berth.MachineID(fmt.Sprintf("new-%s-%d", like.ID, i)), berth.MachineReady, berth.Capacity{}
				m.GPUs = append([]placement.Device(nil), like.GPUs...)
				for g := range m.GPUs {
					m.GPUs[g].UsedMilli, m.GPUs[g].Healthy = 0, true
				}
				grown.machines[m.ID] = m
			}
		}
		if len(p.Demand) == 0 {
			return
		}
		if n := len(planner.Plan(grown.snapshot(placement.NewMix()), now).Start); n == 0 {
			t.Fatalf("with %+v nothing more starts", p.Demand)
		}
	})
}
