package main

import (
	"cmp"
	"context"
	"slices"
	"time"

	"berth"
	"berth/db/history"
	"berth/placement"
	"berth/spec"
)

// setting is a cluster in which a recorded period is replayed: the recorded one, or a changed one.
type setting struct {
	policy   placement.Policy
	tick     time.Duration // interval of plans without an event; 0: none
	machines []fleetMachine
	burst    *burster // launches machines; nil: machines of clouds are in service as recorded
}

// fleetMachine is a machine of a setting, with the states that it has during the period.
type fleetMachine struct {
	snapshotMachine
	added  bool            // it is not in the record
	copyOf berth.MachineID // of an added one
}

// change is an event of the recorded period other than the arrival of a job.
type change struct {
	at    time.Time
	apply func(*replay)
}

// endless is the length of a run without a known end.
const endless = 100 * 365 * 24 * time.Hour

// life is the recorded work of a job.
type life struct {
	length    time.Duration // work that is left at the begin of the period, without the start cost
	startCost time.Duration
	done      time.Duration // run time before the period
	guessed   bool          // the run time is not recorded, and length is that of similar jobs
	open      bool          // the job ran at the end of the period
	holds     *history.RecordedAttempt
}

// lives computes the work of all jobs of a recording, in their order.
func (r *recording) lives() []life {
	list := make([]life, len(r.jobs))
	known := newLengths()
	for i := range r.jobs {
		list[i] = r.life(&r.jobs[i])
		if l := list[i]; !l.guessed && !l.open {
			known.add(&r.jobs[i], l.length+l.startCost)
		}
	}
	for i := range list {
		if l := &list[i]; l.guessed {
			l.length = known.guess(&r.jobs[i])
			if limit := time.Duration(r.jobs[i].RunLimitMS) * time.Millisecond; limit > 0 {
				l.length = min(l.length, limit)
			}
		}
	}
	return list
}

// life reads the attempts of a job. An attempt holds its capacity from its placement to its release. The time up to
// the start of the last one's container is the start cost. An interrupted attempt adds the work up to its last
// checkpoint; an attempt that failed by itself adds all of its time, since it would fail again.
func (r *recording) life(j *history.RecordedJob) life {
	l := life{}
	before := true // the attempt ended before the period
	for i := range j.Attempts {
		a := &j.Attempts[i]
		placed := r.at(a.PlacedAt)
		freed, open := r.freed(j, a)
		started := placed
		if a.StartedAt != nil {
			started = min2(max2(r.at(*a.StartedAt), placed), freed)
			l.startCost = started.Sub(placed)
		}
		before = !open && freed.Before(origin)
		if before {
			l.done += freed.Sub(placed)
		} else if placed.Before(origin) {
			l.holds = a
		}
		switch {
		case open:
			l.open = true
			l.length += freed.Sub(started)
		case !interrupted(a) || i == len(j.Attempts)-1 && j.FinishedAt != nil:
			if !before {
				l.length += freed.Sub(started)
			}
		case a.KeptTo != nil && !before:
			l.length += max(0, min2(r.at(*a.KeptTo), freed).Sub(started))
		}
	}
	ended := j.FinishedAt != nil && len(j.Attempts) > 0
	l.guessed = !ended && !l.open
	if l.open {
		// The end is not recorded: the job runs to its limit, or to the end of the replay.
		limit := time.Duration(j.RunLimitMS+j.GraceMS) * time.Millisecond
		if j.RunLimitMS == 0 {
			limit = endless
		}
		l.length = max(l.length, limit)
	}
	l.length = max(l.length, time.Millisecond)
	return l
}

// freed returns the end of an attempt, or the end of the period for one that is open. The attempts of an ended job
// are not open: Berth waits for no container on a lost machine.
func (r *recording) freed(j *history.RecordedJob, a *history.RecordedAttempt) (at time.Time, open bool) {
	switch {
	case a.FreedAt != nil:
		return r.at(*a.FreedAt), false
	case j.FinishedAt != nil:
		return max2(r.at(*j.FinishedAt), r.at(a.PlacedAt)), false
	default:
		return origin.Add(r.period()), true
	}
}

// interrupted reports whether an attempt ended for a reason outside of its job, so that it would have run on.
func interrupted(a *history.RecordedAttempt) bool {
	switch a.Outcome {
	case berth.ReasonPreempted, berth.ReasonSuspended, berth.ReasonDrained, berth.ReasonMachineLost,
		berth.ReasonUnclaimed:
		return true
	default:
		return a.Budget == "infra"
	}
}

func min2(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func max2(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// lengths are the run times of ended jobs, for jobs whose run time is not recorded.
type lengths struct{ by map[string][]time.Duration }

func newLengths() *lengths { return &lengths{map[string][]time.Duration{}} }

// lengthKeys are the groups of a job, the most similar jobs first.
func lengthKeys(j *history.RecordedJob) []string {
	t := string(j.Tenant)
	return []string{"name " + t + " " + j.Like, "class " + t + " " + j.Class, "tenant " + t, "all"}
}

func (l *lengths) add(j *history.RecordedJob, ran time.Duration) {
	for _, k := range lengthKeys(j) {
		l.by[k] = append(l.by[k], ran)
	}
}

// unknownRun is the run time of a job if no job has ended in the period.
const unknownRun = 10 * time.Minute

// guess returns the median run time of the most similar jobs.
func (l *lengths) guess(j *history.RecordedJob) time.Duration {
	for _, k := range lengthKeys(j) {
		if list := l.by[k]; len(list) > 0 {
			slices.Sort(list)
			return list[len(list)/2]
		}
	}
	return unknownRun
}

// build returns the replay of the recorded jobs in a setting.
func (r *recording) build(s setting, lives []life) *replay {
	planner := placement.Planner{Pack: placement.LeastFragmentation, Policy: s.policy}
	x := newReplay(nil, nil, planner, ticking{s.tick})
	x.snapshot = placement.SnapshotFor(s.policy)
	x.open(r.quotas())
	pools := make([]placement.Pool, len(r.pools))
	for i, p := range r.pools {
		pools[i] = placement.Pool{Name: p.Name, Tenants: p.Tenants, Open: p.Tenants == nil, OneTenant: p.OneTenant}
	}
	placement.SetPools(x.snapshot, pools)
	for i := range s.machines {
		r.enter(x, &s.machines[i])
	}
	if s.policy.Order == placement.SRSF {
		expectLike(x, r)
	}
	for i := range r.jobs {
		if r.jobs[i].ReadyAt != nil {
			r.submit(x, &r.jobs[i], lives[i])
		}
	}
	slices.SortStableFunc(x.arrivals, func(a, b *task) int { return cmp.Compare(a.submitted, b.submitted) })
	slices.SortStableFunc(x.changes, func(a, b change) int { return a.at.Compare(b.at) })
	if s.burst != nil {
		s.burst.attach(x)
	}
	return x
}

// quotas returns the rows of the tenants. Past use is not in the record and counts as none, and so do budgets of GPU
// hours.
func (r *recording) quotas() []placement.Tenant {
	list := make([]placement.Tenant, len(r.tenants))
	for i, t := range r.tenants {
		list[i] = placement.Tenant{ID: t.ID, Parent: t.Parent, Weight: t.Weight,
			Guarantee: amounts(t.Guarantee, 0), Limit: amounts(t.Limit, placement.None)}
		switch t.Borrow {
		case spec.BorrowPreemptible:
			list[i].Borrow = placement.BorrowPreemptible
		case spec.BorrowNone:
			list[i].Borrow = placement.BorrowNothing
		}
		if t.MaxRunning != nil {
			list[i].MaxRunning = *t.MaxRunning
		}
	}
	return list
}

// amounts converts a quota for the engine, in which 0 is no limit: nothing replaces an amount of 0.
func amounts(a history.RecordedAmounts, nothing int64) berth.Capacity {
	of := func(n *int64) int64 {
		switch {
		case n == nil:
			return 0
		case *n == 0:
			return nothing
		}
		return *n
	}
	return berth.Capacity{CPUMilli: of(a.CPUMilli), MemoryMiB: of(a.MemoryMiB), GPUMilli: of(a.GPUMilli)}
}

// enter adds a machine as it was at the begin of the period, and its later states as changes.
func (r *recording) enter(x *replay, m *fleetMachine) {
	for _, s := range m.States {
		if at := r.at(s.At); at.After(origin) {
			x.changes = append(x.changes, change{at, func(x *replay) { x.become(m, s) }})
		} else {
			x.become(m, s)
		}
	}
	for _, h := range m.Health {
		i := deviceAt(m.GPUs, h.GPU)
		if i < 0 {
			continue // a device that was taken out
		}
		mark := func(x *replay) { x.heal(m.ID, i, h.Healthy) }
		if at := r.at(h.At); at.After(origin) {
			x.changes = append(x.changes, change{at, mark})
		} else {
			mark(x)
		}
	}
}

// gone reports whether a machine in this state is not in service: its jobs have ended.
func gone(s berth.MachineState) bool {
	return s != berth.MachineJoining && s != berth.MachineReady && s != berth.MachineSuspect &&
		s != berth.MachineDraining
}

// become gives a machine a state and a capacity. The jobs of a machine that goes wait again.
func (r *replay) become(m *fleetMachine, s history.RecordedState) {
	row, known := r.snapshot.Machine(m.ID)
	if gone(s.State) {
		if known {
			r.interrupt(m.ID)
			r.snapshot.RemoveMachine(m.ID)
		}
		return
	}
	if !known {
		row = placement.Machine{ID: m.ID, Epoch: 1, Pool: m.Pool, Region: m.Region, Site: m.Site,
			Network: m.Network, Fences: m.Fences, Labels: m.RecordedMachine.Labels}
		for i, g := range m.GPUs {
			row.GPUs = append(row.GPUs, placement.Device{Index: i, Model: g.Model, MemoryMiB: g.MemoryMiB,
				Healthy: true})
		}
	}
	row.State, row.Total = s.State, s.Capacity
	r.snapshot.UpsertMachine(row)
}

// heal changes the condition of a device.
func (r *replay) heal(id berth.MachineID, device int, healthy bool) {
	if m, ok := r.snapshot.Machine(id); ok {
		m.GPUs = slices.Clone(m.GPUs)
		m.GPUs[device].Healthy = healthy
		r.snapshot.UpsertMachine(m)
	}
}

// interrupt stops the jobs on a machine. A gang stops as a whole.
func (r *replay) interrupt(id berth.MachineID) {
	for _, t := range slices.Clone(r.running) {
		if slices.ContainsFunc(t.grants, func(g berth.Grant) bool { return g.Machine == id }) {
			r.stop(t)
			r.wait(t)
		}
	}
}

// devicesOf returns the number of devices that all members of a request use.
func devicesOf(r spec.Request) (n int) {
	for _, one := range r.Split() {
		n += one.GPUs * max(1, one.Members)
	}
	return n
}

// submit adds a job: running where it ran, if it held capacity at the begin of the period, and else arriving.
func (r *recording) submit(x *replay, j *history.RecordedJob, l life) {
	request := r.classes[j.Class]
	ready := r.at(*j.ReadyAt)
	t := &task{job: j.ID, class: request.Class(), left: l.length, done: l.done, work: work{
		id: string(j.ID), tenant: j.Tenant, gpus: devicesOf(request),
		submitted: ready.Sub(origin), early: max(0, ready.Sub(r.at(j.SubmittedAt))),
		length: l.length, startCost: l.startCost, request: request, priority: j.Priority, firm: !j.Preemptible,
		like: j.Like, parent: j.Parent, parallel: j.Parallel,
		checkpoint: time.Duration(j.CheckpointMS) * time.Millisecond,
	}}
	if j.RunLimitMS > 0 {
		// The limit counts from the start of the container.
		t.timeLimit = time.Duration(j.RunLimitMS+j.GraceMS)*time.Millisecond + l.startCost
	}
	// A job that has written checkpoints at times of its own writes one when it is asked to stop.
	t.saves = j.CheckpointMS == 0 && slices.ContainsFunc(j.Attempts, func(a history.RecordedAttempt) bool {
		return a.KeptTo != nil
	})
	x.snapshot.DefineClass(t.class, request)
	x.tasks[t.job] = t
	if j.FinishedAt != nil && len(j.Attempts) == 0 {
		x.changes = append(x.changes, change{r.at(*j.FinishedAt), func(x *replay) { x.withdraw(t) }})
	}
	if l.holds != nil && x.resume(t, *l.holds, r.at(l.holds.PlacedAt)) {
		return
	}
	x.arrivals = append(x.arrivals, t)
}

// resume starts a job at its recorded place and time, before the begin of the period. ok is false if one of its
// machines is not in service.
func (r *replay) resume(t *task, a history.RecordedAttempt, placed time.Time) (ok bool) {
	s := berth.Start{Job: t.job, Attempt: a.Attempt}
	for _, m := range a.Members {
		if _, ok := r.snapshot.Machine(m.Machine); !ok {
			return false
		}
		g := berth.Grant{Machine: m.Machine, Epoch: 1, Capacity: m.Capacity}
		for _, d := range m.GPUs {
			share := berth.DeviceShare{Index: d.Index, Milli: d.Milli}
			if r.planner.Policy.KeepTenantsApart {
				share.Tenant = t.tenant
			}
			g.GPUs = append(g.GPUs, share)
		}
		s.Ranks = append(s.Ranks, g)
	}
	if len(s.Ranks) == 0 {
		return false
	}
	r.now = placed
	r.start(t, s)
	r.now = origin
	return true
}

// withdraw ends a job that its user canceled, or whose queue timeout passed, before it ever ran.
func (r *replay) withdraw(t *task) {
	if t.grants != nil {
		r.stop(t)
	}
	r.snapshot.RemoveJob(t.job)
	r.arrivals = slices.DeleteFunc(r.arrivals, func(o *task) bool { return o == t })
	t.finished = r.now
}

// likeSamples is the number of ended jobs of a name whose median is expected, as in internal/control/runtimes.
const likeSamples = 5

// expectLike predicts run times by the latest ended jobs of the same tenant and name.
func expectLike(x *replay, r *recording) {
	like := map[berth.JobID]string{}
	for i := range r.jobs {
		like[r.jobs[i].ID] = lengthKeys(&r.jobs[i])[0]
	}
	ended := map[string][]time.Duration{}
	x.expect = func(t *task) time.Duration {
		list := slices.Clone(ended[like[t.job]])
		if len(list) == 0 {
			return 0
		}
		slices.Sort(list)
		return list[len(list)/2]
	}
	x.strategy = observing{x.strategy, func(t *task) {
		k := like[t.job]
		ended[k] = append(ended[k], t.done)
		ended[k] = ended[k][max(0, len(ended[k])-likeSamples):]
	}}
}

// observing is a strategy that also reports ends to a function.
type observing struct {
	strategy
	end func(*task)
}

func (o observing) ended(t *task) {
	o.end(t)
	o.strategy.ended(t)
}

// runTo plays a recorded period up to a time. Jobs may still wait or run then.
func (r *replay) runTo(ctx context.Context, until time.Time) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		at := r.nextEvent()
		if len(r.changes) > 0 && (at.IsZero() || r.changes[0].at.Before(at)) {
			at = r.changes[0].at
		}
		if at.IsZero() || at.After(until) {
			r.now = until
			return nil
		}
		r.now = max2(at, r.now)
		r.finish()
		for len(r.changes) > 0 && !r.changes[0].at.After(r.now) {
			r.changes[0].apply(r)
			r.changes = r.changes[1:]
		}
		r.arrive()
		if err := r.settle(); err != nil {
			return err
		}
	}
}
