package placement_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"berth"
	"berth/placement"
)

// A use is capacity of one machine that one job occupies in the replayed future.
type use struct {
	who   string
	grant berth.Grant
	from  time.Time
	until time.Time // zero: the job has no known end
}

// future replays the rest of a plan without the code of the engine. Running jobs end at their limits, jobs
// with nominated capacity start when their last victim has stopped, and reserved starts happen as promised.
type future struct {
	*arena
	plan placement.Plan
	uses []use
}

// end returns the time at which a running job releases its capacity; zero without a known end.
func (f *future) end(r placement.Running) time.Time {
	at := time.Time{}
	switch assume := f.planner.Policy.AssumeRun; {
	case slices.ContainsFunc(f.plan.Preempt, func(o placement.Preempt) bool { return o.Job == r.Job }):
		return f.now
	case r.Stopping && !r.StopBy.IsZero():
		at = r.StopBy
	case r.TimeLimit > 0:
		at = r.StartedAt.Add(r.TimeLimit)
	case assume > 0:
		at = r.StartedAt.Add(assume)
	default:
		return at
	}
	return latest(at, f.now)
}

func latest(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// leaves returns the end of a waiting job that starts at a time; zero without a known end.
func (f *future) leaves(j placement.Job, start time.Time) time.Time {
	run := j.TimeLimit
	if run == 0 {
		run = f.planner.Policy.AssumeRun
	}
	if run == 0 || start.IsZero() {
		return time.Time{}
	}
	return start.Add(run)
}

// occupy adds the running jobs, the jobs that the plan starts, and the nominated capacity.
func (f *future) occupy(promised map[berth.JobID]time.Time) {
	for _, id := range sorted(f.running) {
		for _, g := range f.running[id].Ranks {
			f.uses = append(f.uses, use{"running " + string(id), g, f.now, f.end(f.running[id])})
		}
	}
	started := map[berth.JobID]bool{}
	for _, s := range f.plan.Start {
		started[s.Job] = true
		for _, g := range s.Ranks {
			f.uses = append(f.uses, use{"started " + string(s.Job), g, f.now, f.leaves(f.jobs[s.Job], f.now)})
		}
	}
	kept := map[berth.JobID][]placement.Nomination{}
	for i, m := range append(slices.Clone(f.nominations), f.plan.Nominate...) {
		released := i < len(f.nominations) &&
			slices.ContainsFunc(f.plan.Release, func(o placement.Nomination) bool { return sameNomination(o, m) })
		if !started[m.For] && !released {
			kept[m.For] = append(kept[m.For], m)
		}
	}
	for _, id := range sorted(kept) {
		f.nominated(id, kept[id], promised)
	}
}

func sameNomination(a, b placement.Nomination) bool {
	return a.For == b.For && a.Machine == b.Machine && a.Victim == b.Victim && a.Capacity == b.Capacity &&
		slices.Equal(a.GPUs, b.GPUs)
}

// nominated adds the capacity that is nominated for one job. All of it belongs to the job from its start until
// its end, and the free part of it from now on. A job whose nominations do not give it room starts elsewhere.
func (f *future) nominated(id berth.JobID, list []placement.Nomination, promised map[berth.JobID]time.Time) {
	start, known := f.now, true
	for _, m := range list {
		if at, runs := f.released(m); runs {
			start, known = latest(at, start), known && !at.IsZero()
		}
	}
	j, waits := f.jobs[id]
	until := f.leaves(j, start)
	if !known || !waits {
		until = time.Time{} // the victim never ends, or the members of a gang under repair still stop
	}
	at, reserved := promised[id]
	if expires := list[0].ExpiresAt; reserved || list[0].Repair {
		// The nominations give no room to all members. They are kept until the job starts elsewhere, or until
		// they expire.
		if until = at; !expires.IsZero() && (!reserved || expires.Before(at)) {
			until = expires
		}
	}
	for _, m := range list {
		from := f.now
		if at, runs := f.released(m); runs {
			if from = at; at.IsZero() {
				continue // the victim is counted for all time
			}
		}
		g := berth.Grant{Machine: m.Machine, Capacity: m.Capacity, GPUs: m.GPUs}
		f.uses = append(f.uses, use{"nominated " + string(id), g, from, until})
	}
}

// released returns the time at which the victim of a nomination releases the nominated capacity. runs is false
// if the victim holds nothing on the machine any longer.
func (f *future) released(m placement.Nomination) (at time.Time, runs bool) {
	r, ok := f.running[m.Victim]
	if !ok || !slices.ContainsFunc(r.Ranks, func(g berth.Grant) bool { return g.Machine == m.Machine }) {
		return time.Time{}, false
	}
	return f.end(r), true
}

// promise adds the reserved starts, and checks that each has one grant of its size for each member.
func (f *future) promise(starts map[berth.JobID]time.Time, list []placement.Reserved) {
	left := slices.Clone(list)
	for _, id := range sorted(starts) {
		j := f.jobs[id]
		r := f.requests[j.Class]
		for range r.Members {
			i := slices.IndexFunc(left, func(x placement.Reserved) bool {
				return x.At.Equal(starts[id]) && x.Until.Equal(f.leaves(j, x.At)) && x.Grant.Capacity == r.Capacity()
			})
			if i < 0 {
				f.t.Fatalf("%s has a reserved start at %v, and no capacity for all of its %d members: %+v",
					id, starts[id].Sub(f.now), r.Members, list)
			}
			f.uses = append(f.uses, use{"reserved " + string(id), left[i].Grant, left[i].At, left[i].Until})
			left = slices.Delete(left, i, i+1)
		}
	}
	if len(left) > 0 {
		f.t.Fatalf("capacity is reserved for no job: %+v", left)
	}
}

// check fails if the jobs of the replay ever hold more of a machine than it has.
func (f *future) check() {
	for _, id := range sorted(f.machines) {
		for _, u := range f.uses {
			if u.grant.Machine == id {
				f.checkAt(f.machines[id], u.from)
			}
		}
	}
}

// checkAt adds up the uses of a machine at a time.
func (f *future) checkAt(m placement.Machine, at time.Time) {
	var all berth.Capacity
	var who []string
	gpus, promised := make([]int64, len(m.GPUs)), false
	for _, u := range f.uses {
		if u.grant.Machine != m.ID || u.from.After(at) || !u.until.IsZero() && !u.until.After(at) {
			continue
		}
		promised = promised || strings.HasPrefix(u.who, "reserved")
		who = append(who, fmt.Sprintf("%s %+v from %v to %v", u.who, u.grant.GPUs, u.from.Sub(f.now), u.until.Sub(f.now)))
		all = all.Add(u.grant.Capacity)
		for _, d := range u.grant.GPUs {
			gpus[d.Index] += d.Milli
		}
	}
	over := slices.ContainsFunc(gpus, func(milli int64) bool { return milli > 1000 })
	if (over || !all.Fits(m.Total)) && promised {
		f.t.Fatalf("%v after the plan, machine %s has not the capacity of %s\nnominations before: %+v\nnew: %+v\nreleased: %+v\npreempts: %+v\nstarts: %+v\nnow %v running %+v\njobs: %+v",
			at.Sub(f.now), m.ID, strings.Join(who, ", "), f.nominations, f.plan.Nominate, f.plan.Release, f.plan.Preempt, f.plan.Start, f.now, f.running, f.jobs)
	}
}

// checkPromises replays the future of the plan that the arena would make now.
func (a *arena) checkPromises() (reserved int) {
	plan, starts, list := a.planner.Reserve(a.s, a.now)
	f := &future{arena: a, plan: plan}
	f.occupy(starts)
	f.promise(starts, list)
	f.check()
	return len(starts)
}

// TestReservedStartsAreFeasible checks each reserved start against a replay of the future that does not use
// the engine: at no time do the running, the started, the nominated and the reserved jobs together hold more
// of a machine or of a GPU than there is.
func TestReservedStartsAreFeasible(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a := newArena(t, placement.Planner{Policy: placement.Policy{
			Order: rapid.SampledFrom([]placement.Order{placement.Fair, placement.Priority}).Draw(t, "order"), BandWidth: 100,
			Backfill: rapid.IntRange(1, 8).Draw(t, "backfill"), Preempt: true,
			MinRuntime: time.Minute * time.Duration(rapid.IntRange(0, 1).Draw(t, "minimum")), Exponent: 1,
			NominationFor: 10 * time.Minute * time.Duration(rapid.IntRange(0, 1).Draw(t, "nomination")),
			AssumeRun:     time.Hour * time.Duration(rapid.IntRange(0, 1).Draw(t, "assume")),
		}})
		for range rapid.IntRange(1, 4).Draw(t, "machines") {
			a.machine(rapid.SampledFrom([]int{1, 2, 4}).Draw(t, "gpus"))
		}
		a.refuses = func(berth.JobID) bool { return rapid.IntRange(0, 5).Draw(t, "refused") == 0 }
		for range rapid.IntRange(2, 12).Draw(t, "rounds") {
			for range rapid.IntRange(0, 4).Draw(t, "arrivals") {
				a.drawPromised(t)
			}
			a.checkPromises()
			a.plan()
			a.drawStops(t, 3)
			a.checkPromises()
			for _, id := range sorted(a.running) {
				if r := a.running[id]; len(r.Ranks) > 1 && !r.Stopping && rapid.IntRange(0, 3).Draw(t, "fails") == 0 {
					a.fail(r)
					a.checkPromises()
					a.plan()
				}
			}
			if rapid.Bool().Draw(t, "soon") {
				a.now = a.now.Add(time.Second)
				a.checkPromises()
			}
			if !a.advance() {
				a.now = a.now.Add(time.Minute)
			}
		}
	})
}

// drawPromised submits a random job.
func (a *arena) drawPromised(t *rapid.T) {
	lasts := time.Minute * time.Duration(rapid.IntRange(1, 30).Draw(t, "lasts"))
	j := placement.Job{
		Tenant:      rapid.SampledFrom([]berth.TenantID{"a", "b"}).Draw(t, "tenant"),
		Priority:    rapid.SampledFrom([]int{200, 300, 500}).Draw(t, "priority"),
		Preemptible: rapid.IntRange(0, 3).Draw(t, "preemptible") > 0,
	}
	if rapid.IntRange(0, 4).Draw(t, "has limit") > 0 {
		j.TimeLimit = lasts + time.Minute*time.Duration(rapid.IntRange(0, 5).Draw(t, "slack"))
	}
	r := gpuRequest(rapid.IntRange(1, 3).Draw(t, "size"), rapid.SampledFrom([]int{1, 1, 1, 2, 3}).Draw(t, "members"))
	if rapid.IntRange(0, 4).Draw(t, "part") == 0 {
		r.GPUs, r.GPUMilli = 1, 500
	}
	a.job(r, j, lasts)
}
