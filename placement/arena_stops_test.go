package placement_test

import (
	"slices"
	"time"

	"pgregory.net/rapid"

	"berth"
	"berth/placement"
)

// A stop is the end of a job that a user has ordered to stop.
type stop struct {
	at    time.Time
	again bool // the job waits again, as after a suspend
}

// accepted returns a plan without the preemptions that the database refuses. It refuses those that count on a victim of
// another refused one, too. A job whose preemption is refused keeps its earlier nominations, unless they have expired.
func (a *arena) accepted(p placement.Plan) placement.Plan {
	if a.refuses == nil || len(p.Preempt) == 0 {
		return p
	}
	refused, stopped := map[berth.JobID]bool{}, map[berth.JobID]bool{}
	for i := 0; i < len(p.Preempt); {
		id, from := p.Preempt[i].For, i
		for i < len(p.Preempt) && p.Preempt[i].For == id {
			stopped[p.Preempt[i].Job] = true
			i++
		}
		refused[id] = a.refuses(id) || slices.ContainsFunc(p.Nominate, func(m placement.Nomination) bool {
			return m.For == id && m.Victim != "" && !a.running[m.Victim].Stopping && !stopped[m.Victim]
		})
		for _, x := range p.Preempt[from:i] {
			stopped[x.Job] = !refused[id]
		}
	}
	p.Preempt = slices.DeleteFunc(slices.Clone(p.Preempt), func(x placement.Preempt) bool { return refused[x.For] })
	p.Nominate = slices.DeleteFunc(slices.Clone(p.Nominate), func(m placement.Nomination) bool { return refused[m.For] })
	p.Release = slices.DeleteFunc(slices.Clone(p.Release), func(m placement.Nomination) bool {
		return refused[m.For] && (m.ExpiresAt.IsZero() || m.ExpiresAt.After(a.now))
	})
	return p
}

// drawStops has users cancel or suspend some of the running jobs, at most the given number. The leader knows by when a
// job stops, or does not know it, or the job should have stopped already.
func (a *arena) drawStops(t *rapid.T, most int) (stopped int) {
	for _, id := range sorted(a.running) {
		r := a.running[id]
		if stopped == most || r.Stopping || rapid.IntRange(0, 5).Draw(t, "stops") > 0 {
			continue
		}
		stopped++
		at := a.now.Add(time.Second * time.Duration(rapid.IntRange(1, 600).Draw(t, "stops after")))
		r.Stopping, r.StopBy = true, rapid.SampledFrom([]time.Time{{}, a.now.Add(-time.Second), at, at.Add(time.Minute)}).Draw(t, "stops by")
		a.running[id], a.stops[id] = r, stop{at, rapid.Bool().Draw(t, "again")}
		a.s.UpsertRunning(r)
	}
	return stopped
}

// checkNominations checks that no part of a GPU is nominated twice: the nominations of a GPU and the jobs that run on
// together take no more than the GPU.
func (a *arena) checkNominations() {
	used := map[device]int64{}
	for _, r := range a.running {
		for _, g := range r.Ranks {
			for _, d := range g.GPUs {
				if !r.Stopping {
					used[device{g.Machine, d.Index}] += d.Milli
				}
			}
		}
	}
	for _, m := range a.nominations {
		for _, d := range m.GPUs {
			k := device{m.Machine, d.Index}
			if used[k] += d.Milli; used[k] > 1000 {
				a.t.Fatalf("GPU %d of %s is nominated twice: %+v\nrunning: %+v", d.Index, m.Machine, a.nominations, a.running)
			}
		}
	}
}
