package placement_test

import (
	"fmt"
	"testing"
	"time"

	"berth"
	"berth/placement"
	"berth/spec"
)

// hostile is a queue with which one tenant makes plans expensive.
type hostile struct {
	name     string
	machines int
	used     int64 // cores of each machine in use by one running job; 0: the machines are empty
	jobs     int
	request  func(i int) spec.Request // of job i; equal requests share a class
}

// wide is a gang of single cores.
func wide(members int, label string, extra int64) spec.Request {
	return spec.Request{CPUMilli: 1000 + extra, MemoryMiB: 1024, Members: members, Execution: spec.AtLeastOnce, SameLabel: label}
}

// hostiles are the queues. The machines come from fleet, in racks of ten and with a label host of their own.
var hostiles = []hostile{
	{"host=own,empty", 1000, 0, 10, func(i int) spec.Request { return wide(512, "host", int64(i)) }},
	{"host=own,used", 1000, 32, 10, func(i int) spec.Request { return wide(64, "host", int64(i)) }},
	{"rack,used", 1000, 32, 10, func(i int) spec.Request { return wide(512, "rack", int64(i)) }},
	{"spread", 1000, 32, 10, func(i int) spec.Request {
		r := wide(512, "", int64(i))
		r.Strategy = "spread"
		return r
	}},
	{"plain,full", 1000, 60, 40, func(i int) spec.Request { return wide(512, "", 7000+int64(i)) }},
	{"groups,host", 1000, 0, 10, func(i int) spec.Request {
		var groups []spec.GroupRequest
		for g := range 16 {
			groups = append(groups, spec.GroupRequest{Name: fmt.Sprintf("g%d", g), Members: 32, CPUMilli: 1000 + int64(g), MemoryMiB: 1024 + int64(i)})
		}
		return grouped(spec.Request{Execution: spec.AtLeastOnce, SameLabel: "host"}, groups...)
	}},
	{"groups,used", 1000, 32, 10, func(i int) spec.Request {
		var groups []spec.GroupRequest
		for g := range 16 {
			groups = append(groups, spec.GroupRequest{Name: fmt.Sprintf("g%d", g), Members: 32, CPUMilli: 1000 + int64(g), MemoryMiB: 1024 + int64(i)})
		}
		return grouped(spec.Request{Execution: spec.AtLeastOnce, SameLabel: "rack"}, groups...)
	}},
	{"constraint", 1000, 0, 20, func(i int) spec.Request {
		r := wide(1, "", int64(i))
		r.Constraint = fmt.Sprintf(`machine.labels["host"].size() > %d && `, i%3) +
			`machine.labels.all(k, machine.labels.all(l, k + l != "x"))` // refused at submit today
		return r
	}},
	{"labels", 1000, 0, 64, func(i int) spec.Request {
		r := wide(1, "", int64(i))
		r.Labels = map[string]string{fmt.Sprintf("l%d", i): "x"}
		return r
	}},
	{"avoid", 1000, 0, 200, func(i int) spec.Request {
		r := wide(8, "", int64(i))
		for m := range 256 {
			r.Avoid = append(r.Avoid, berth.MachineID(fmt.Sprintf("m%05d", m*3)))
		}
		return r
	}},
}

func (h hostile) snapshot() *placement.Snapshot {
	s := fleet(h.machines, 0, 0)
	var list []placement.Machine
	s.EachMachine(func(m placement.Machine) { list = append(list, m) })
	for i, m := range list {
		var at int
		fmt.Sscanf(string(m.ID), "m%d", &at)
		m.Labels["rack"] = fmt.Sprintf("rack%d", at/10)
		g := berth.Grant{Machine: m.ID, Epoch: m.Epoch, Capacity: berth.Capacity{CPUMilli: 1000 * h.used, MemoryMiB: 1}}
		if h.used > 0 {
			m.Used = g.Capacity
			j := job(1_000_000+i, "", 0).ID
			s.UpsertRunning(placement.Running{Job: j, Attempt: 1, Version: 3, Priority: 500, StartedAt: epoch,
				TimeLimit: time.Duration(2+i%40) * time.Hour, Ranks: []berth.Grant{g}})
		}
		s.UpsertMachine(m)
	}
	for i := range h.jobs {
		name := fmt.Sprintf("h%d", i)
		s.DefineClass(name, h.request(i))
		s.UpsertJob(job(i, name, 500))
	}
	return s
}

// BenchmarkPlanHostile plans queues with which one tenant could hold up everybody.
func BenchmarkPlanHostile(b *testing.B) {
	for _, h := range hostiles {
		b.Run(h.name, func(b *testing.B) {
			oneCore(b)
			var cpu time.Duration
			for b.Loop() {
				s := h.snapshot()
				before := spent()
				p := placement.Planner{MaxStarts: 1000, Pack: placement.LeastFragmentation, Policy: busyPolicy}.Plan(s, epoch.Add(time.Hour))
				cpu += spent() - before
				b.ReportMetric(float64(len(p.Start)), "starts")
			}
			b.ReportMetric(float64(cpu.Milliseconds())/float64(b.N), "cpu-ms/plan")
		})
	}
}

// One tenant must not hold up the plans of all others: the work of a plan grows with the machines and the
// members, not with their product. A label with another value on each machine made it 1,000 times as much.
func TestHostileQueuesCostLittle(t *testing.T) {
	t.Parallel()
	for _, h := range hostiles {
		t.Run(h.name, func(t *testing.T) {
			t.Parallel()
			h.machines, h.jobs = 200, 4
			_, visits := placement.Planner{MaxStarts: 1000, Pack: placement.LeastFragmentation, Policy: busyPolicy}.
				Visits(h.snapshot(), epoch.Add(time.Hour))
			t.Logf("%s: %d visits for each job", h.name, visits/h.jobs)
			most := 20 * (h.machines + 512)
			if h.name == "spread" {
				most = 512 * 20 * 20 // each member compares up to 8 machines of each of 20 kinds
			}
			if visits > most*h.jobs {
				t.Errorf("a plan of %d jobs on %d machines reads %d machines and kinds, at most %d for each job wanted",
					h.jobs, h.machines, visits, most)
			}
		})
	}
}
