package placement_test

import (
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"berth"
	"berth/placement"
	"berth/spec"
)

// holding is room that is given back at a time; zero: never.
type holding struct {
	job    berth.JobID
	grants []berth.Grant
	until  time.Time
}

// holdings is who holds room, until their limits.
func (a *arena) holdings() []holding {
	var list []holding
	for _, id := range sorted(a.running) {
		r := a.running[id]
		switch {
		case r.Stopping:
			list = append(list, holding{id, r.Ranks, r.StopBy})
		case r.TimeLimit > 0:
			list = append(list, holding{id, r.Ranks, r.StartedAt.Add(r.TimeLimit)})
		default:
			list = append(list, holding{grants: r.Ranks})
		}
	}
	return list
}

// earliest finds by brute force when a job fits at first; zero: never.
func earliest(now time.Time, machines map[berth.MachineID]placement.Machine, list []holding, r spec.Request) time.Time {
	w := &world{machines: maps.Clone(machines)}
	list = slices.Clone(list)
	list = slices.DeleteFunc(list, func(h holding) bool { return h.until.IsZero() })
	slices.SortFunc(list, func(x, y holding) int { return x.until.Compare(y.until) })
	for at := now; ; at = list[0].until {
		for len(list) > 0 && !list[0].until.After(at) {
			for _, g := range list[0].grants {
				w.machines[g.Machine] = vacate(w.machines[g.Machine], g)
			}
			list = list[1:]
		}
		if w.room(r, "", nil) {
			return at
		}
		if len(list) == 0 {
			return time.Time{}
		}
	}
}

// before is when the head would start if nobody passed it in this plan: with
// those jobs alone that come before it.
func (a *arena) before(p placement.Plan, head placement.Job) time.Time {
	machines, list := maps.Clone(a.machines), a.holdings()
	for _, start := range p.Start {
		j := a.jobs[start.Job]
		if c := j.SubmittedAt.Compare(head.SubmittedAt); c > 0 || c == 0 && j.ID > head.ID {
			continue
		}
		for _, g := range start.Ranks {
			machines[g.Machine] = occupy(machines[g.Machine], g)
		}
		h := holding{grants: start.Ranks}
		if j.TimeLimit > 0 {
			h.until = a.now.Add(j.TimeLimit)
		}
		list = append(list, h)
	}
	return earliest(a.now, machines, list, a.requests[head.Class])
}

// TestBackfillDelaysNoHead: the first job of a queue is promised the start that
// it would have if nobody passed it, and starts no later than it was first
// promised, whatever does pass it, ends early or comes later, where limits are
// honest.
func TestBackfillDelaysNoHead(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a := newArena(t, placement.Planner{Estimate: true, Policy: placement.Policy{Backfill: rapid.IntRange(1, 4).Draw(t, "backfill"), AssumeRun: 24 * time.Hour}})
		for range rapid.IntRange(1, 3).Draw(t, "machines") {
			a.machine(rapid.SampledFrom([]int{2, 4}).Draw(t, "gpus"))
		}
		promised := map[berth.JobID]time.Time{}
		for range rapid.IntRange(1, 25).Draw(t, "steps") {
			for range rapid.IntRange(0, 3).Draw(t, "arrivals") {
				lasts := time.Minute * time.Duration(rapid.IntRange(1, 30).Draw(t, "lasts"))
				limit := lasts + time.Minute*time.Duration(rapid.IntRange(0, 10).Draw(t, "slack"))
				a.job(gpuRequest(rapid.IntRange(1, 4).Draw(t, "size"), rapid.SampledFrom([]int{1, 1, 2}).Draw(t, "members")), placement.Job{TimeLimit: limit}, lasts)
			}
			p := a.decide()
			alone := map[berth.JobID]time.Time{}
			for _, e := range p.Estimates {
				if e.Reserved && e.Position == 1 {
					alone[e.Job] = a.before(p, a.jobs[e.Job])
				}
			}
			a.enact(p)
			for _, start := range p.Start {
				if at, ok := promised[start.Job]; ok && a.now.After(at) {
					t.Fatalf("%s was promised a start at %s and starts at %s", start.Job, at, a.now)
				}
			}
			for _, e := range p.Estimates {
				if !e.Reserved || e.Position > 1 {
					continue
				}
				if at, ok := promised[e.Job]; ok && e.Start.After(at) {
					t.Fatalf("%s was promised a start at %s, now at %s", e.Job, at, e.Start)
				}
				promised[e.Job] = e.Start
				if at := alone[e.Job]; !e.Start.Equal(at) {
					t.Fatalf("%s could start at %s if nobody passed it, and is promised %s", e.Job, at, e.Start)
				}
				if at := earliest(a.now, a.machines, a.holdings(), a.requests[a.jobs[e.Job].Class]); !e.Start.Equal(at) {
					t.Fatalf("%s can start at %s, and is promised %s", e.Job, at, e.Start)
				}
			}
			a.advance()
		}
	})
}

// TestDisplacingDelaysNoHead: a job whose start is reserved does not start later
// because jobs behind it displace others, but for the grace that those take to
// stop: what they give up is not what it was promised.
func TestDisplacingDelaysNoHead(t *testing.T) {
	t.Parallel()
	claims := 0
	rapid.Check(t, func(t *rapid.T) {
		a := newArena(t, placement.Planner{Estimate: true, Policy: placement.Policy{
			BandWidth: 100, Backfill: rapid.IntRange(1, 3).Draw(t, "backfill"), AssumeRun: 24 * time.Hour,
			Preempt: true, // at once: no start is hoped for
		}})
		for range rapid.IntRange(1, 3).Draw(t, "machines") {
			a.machine(rapid.SampledFrom([]int{2, 4}).Draw(t, "gpus"))
		}
		for _, id := range []berth.TenantID{"a", "b", "c"} {
			a.tenant(placement.Tenant{ID: id, Weight: float64(rapid.IntRange(1, 3).Draw(t, "weight"))})
		}
		for range rapid.IntRange(1, 25).Draw(t, "steps") {
			for range rapid.IntRange(0, 3).Draw(t, "arrivals") {
				lasts := time.Minute * time.Duration(rapid.IntRange(1, 30).Draw(t, "lasts"))
				a.job(gpuRequest(rapid.IntRange(1, 4).Draw(t, "size"), rapid.SampledFrom([]int{1, 1, 2}).Draw(t, "members")), placement.Job{
					Tenant: rapid.SampledFrom([]berth.TenantID{"a", "b", "c"}).Draw(t, "tenant"), Priority: rapid.SampledFrom([]int{200, 500, 500}).Draw(t, "priority"),
					Preemptible: rapid.IntRange(0, 3).Draw(t, "preemptible") > 0, TimeLimit: lasts + time.Minute*time.Duration(rapid.IntRange(0, 10).Draw(t, "slack")),
				}, lasts)
			}
			p := a.decide()
			a.enact(p)
			if len(p.Preempt) > 0 {
				claims++
			}
			for _, e := range p.Estimates {
				if e.Position != 1 || !e.Reserved {
					continue
				}
				machines, list := a.unpromised()
				if at := earliest(a.now, machines, list, a.requests[a.jobs[e.Job].Class]); at.IsZero() || at.After(e.Start.Add(time.Minute)) {
					t.Fatalf("%s is promised %s; those behind it displace others so that it starts at %s\n%+v", e.Job, e.Start, at, p)
				}
			}
			a.advance()
		}
	})
	if claims == 0 {
		t.Error("nobody was displaced")
	}
}

// unpromised is the machines, and who gives back what, as if those for whom room
// is kept had it from when it is free to their limits.
func (a *arena) unpromised() (map[berth.MachineID]placement.Machine, []holding) {
	machines, list := maps.Clone(a.machines), a.holdings()
	for _, m := range a.nominations {
		kept := berth.Grant{Machine: m.Machine, Capacity: m.Capacity, GPUs: m.GPUs}
		from := a.now
		if i := slices.IndexFunc(list, func(h holding) bool { return h.job == m.Victim }); i >= 0 {
			from = list[i].until
			list[i].grants = slices.Clone(list[i].grants)
			for k, g := range list[i].grants {
				if g.Machine == m.Machine {
					g.Capacity = g.Capacity.Sub(m.Capacity)
					g.GPUs = slices.DeleteFunc(slices.Clone(g.GPUs), func(d berth.DeviceShare) bool {
						return slices.ContainsFunc(m.GPUs, func(o berth.DeviceShare) bool { return o.Index == d.Index })
					})
					list[i].grants[k] = g
				}
			}
		} else { // it is free, and kept
			machines[m.Machine] = occupy(machines[m.Machine], kept)
		}
		list = append(list, holding{grants: []berth.Grant{kept}, until: from.Add(a.jobs[m.For].TimeLimit)})
	}
	return machines, list
}
