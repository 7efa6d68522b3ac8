package scaler

import (
	"cmp"
	"container/heap"
	"slices"
	"time"

	"berth"
	"berth/placement"
	"berth/spec"
)

// Queue is the state of the machines on premises and of the jobs that wait for them. Replays work
// on copies, so a Queue is never changed.
type Queue struct {
	Planner  placement.Planner // the policy of production
	Machines []placement.Machine
	Running  []placement.Running
	Waiting  []placement.Job
	Classes  map[string]spec.Request // of all jobs, by Job.Class
	// Tenants, Pools and Windows are the quotas, the rules of pools and the maintenance windows that the
	// engine keeps to.
	Tenants []placement.Tenant
	Pools   []placement.Pool
	Windows []placement.Window
	// Left returns the time that a job still runs, from now for a running job and from its start
	// for a waiting one, in one of the possible futures, which are numbered from 0. It must return
	// the same value for the same arguments.
	Left    func(job berth.JobID, future int) time.Duration
	Futures int // number of futures to average over; 0: one
	// Horizon ends each replay: a job that does not start within it counts as waiting until its end.
	// 0: Horizon.
	Horizon time.Duration
	// Plans bounds the plans of a replay. A replay that reaches it knows only a lower bound of the later
	// waits. 0: usualPlans.
	Plans int
}

// Horizon is the horizon of replays. A job that waits for longer goes to the cloud at any
// price.
const Horizon = 7 * 24 * time.Hour

const (
	// usualPlans bounds the plans of a replay.
	usualPlans = 2000
	// exactPlans is the number of plans of a replay with one plan for each time at which a run ends. A later
	// plan serves all runs that end within a step. The step is a share of the replayed time, and short
	// compared with the runs, since a place is given to one job in each step.
	exactPlans = 256
	stepOfTime = 32
	stepOfRuns = 8 // of the run time that a tenth of the waiting jobs is below
	leastStep  = time.Second
)

// ending is an end of a run in a replay, or of a maintenance window, which has no job.
type ending struct {
	at     time.Time
	job    berth.JobID
	grants []berth.Grant
}

// endings is a heap, by time and then by job.
type endings []ending

func (e endings) Len() int      { return len(e) }
func (e endings) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *endings) Push(x any)   { *e = append(*e, x.(ending)) }
func (e endings) Less(i, j int) bool {
	if c := e[i].at.Compare(e[j].at); c != 0 {
		return c < 0
	}
	return e[i].job < e[j].job
}

func (e *endings) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

// replay is one future of a queue in progress.
type replay struct {
	queue  *Queue
	future int
	world  *placement.Snapshot
	ends   endings
	plans  int
	step   time.Duration // most time that a plan covers
	// cut is the end of a replay that has reached its bound of plans; zero: it has not.
	cut time.Time
	// limits are the latest starts of jobs that otherwise leave for the cloud, the earliest first.
	limits []latest
	// began has the start of each waiting job: its limit if it has left, and the end of the horizon or of the
	// replay if it does not start.
	began map[berth.JobID]time.Time
	left  map[berth.JobID]bool // jobs that have left
}

// latest is the latest start of a job.
type latest struct {
	job berth.JobID
	at  time.Time
}

// starts replays the queue from now, without the jobs of a set and without new submissions. A job that has
// not started at its limit leaves the queue, since it goes to the cloud.
func (q *Queue) starts(now time.Time, future int, without map[berth.JobID]bool, limits []latest) *replay {
	r := &replay{queue: q, future: future, world: placement.SnapshotFor(q.Planner.Policy),
		began: make(map[berth.JobID]time.Time, len(q.Waiting)), limits: limits, left: map[berth.JobID]bool{}}
	waiting := r.load(now, without)
	last := now.Add(cmp.Or(q.Horizon, Horizon))
	until := now // all ends up to this time are done
	for at := now; ; {
		for _, s := range q.Planner.Plan(r.world, at).Start {
			r.began[s.Job] = at
			r.start(s, at)
		}
		r.plans++
		if len(r.began) >= len(waiting) || len(r.ends) == 0 || r.ends[0].at.After(last) {
			break
		}
		if r.plans >= cmp.Or(q.Plans, usualPlans) {
			r.cut, last = at, at
			break
		}
		if at = r.ends[0].at; at.Before(until) {
			at = until
		}
		if until = at; r.plans >= exactPlans {
			until = at.Add(max(leastStep, min(r.step, at.Sub(now)/stepOfTime)))
		}
		r.finish(until)
		r.leave(now, at)
	}
	r.leave(now, last)
	for _, j := range waiting {
		if _, ok := r.began[j.ID]; !ok {
			r.began[j.ID] = last
		}
	}
	return r
}

// leave removes the jobs that have not started at their limits, up to a time.
func (r *replay) leave(now, at time.Time) {
	for len(r.limits) > 0 && r.limits[0].at.Before(at) {
		l := r.limits[0]
		r.limits = r.limits[1:]
		_, started := r.began[l.job]
		if _, waits := r.world.Job(l.job); started || !waits {
			continue
		}
		r.world.RemoveJob(l.job)
		r.left[l.job], r.began[l.job] = true, l.at
		if l.at.Before(now) {
			r.began[l.job] = now
		}
	}
}

// load fills the snapshot, and returns the waiting jobs in it.
func (r *replay) load(now time.Time, without map[berth.JobID]bool) (waiting []placement.Job) {
	for name, request := range r.queue.Classes {
		r.world.DefineClass(name, request)
	}
	for _, t := range r.queue.Tenants {
		r.world.UpsertTenant(t)
	}
	for _, m := range r.queue.Machines {
		m.GPUs = slices.Clone(m.GPUs)
		r.world.UpsertMachine(m)
	}
	for _, x := range r.queue.Running {
		r.world.UpsertRunning(x)
		r.ends = append(r.ends, ending{now.Add(r.queue.Left(x.Job, r.future)), x.Job, x.Ranks})
	}
	for _, w := range r.queue.Windows {
		if w.Ends.After(now) {
			r.ends = append(r.ends, ending{at: w.Ends})
		}
	}
	heap.Init(&r.ends)
	var runs []time.Duration
	for _, j := range r.queue.Waiting {
		if !without[j.ID] {
			r.world.UpsertJob(j)
			waiting = append(waiting, j)
			runs = append(runs, r.queue.Left(j.ID, r.future))
		}
	}
	if slices.Sort(runs); len(runs) > 0 {
		r.step = runs[len(runs)/10] / stepOfRuns
	}
	placement.SetPools(r.world, r.queue.Pools)
	placement.SetWindows(r.world, r.queue.Windows)
	return waiting
}

// start carries out a start of a plan.
func (r *replay) start(s berth.Start, at time.Time) {
	j, _ := r.world.Job(s.Job)
	r.world.RemoveJob(s.Job)
	hold(r.world, s.Ranks, 1)
	r.world.UpsertRunning(placement.Running{
		Job: j.ID, Tenant: j.Tenant, Class: j.Class, Version: j.Version, Attempt: s.Attempt, Priority: j.Priority,
		SubmittedAt: j.SubmittedAt, Ranks: s.Ranks, StartedAt: at,
	})
	heap.Push(&r.ends, ending{at.Add(r.queue.Left(j.ID, r.future)), j.ID, s.Ranks})
}

// finish ends the runs that end by a time.
func (r *replay) finish(at time.Time) {
	for len(r.ends) > 0 && !r.ends[0].at.After(at) {
		e := heap.Pop(&r.ends).(ending)
		if e.job != "" {
			r.world.RemoveRunning(e.job)
			hold(r.world, e.grants, -1)
		}
	}
}

// hold adds grants to the use of their machines (times 1) or subtracts them (times -1). A grant on a
// machine or a device that is not in the snapshot has no effect. The indices of the devices of a machine
// may have gaps, such as after the loss of a device.
func hold(world *placement.Snapshot, grants []berth.Grant, times int64) {
	for _, g := range grants {
		m, ok := world.Machine(g.Machine)
		if !ok {
			continue
		}
		m.GPUs = slices.Clone(m.GPUs) // the snapshot owns the slice of the row that it returned
		if times > 0 {
			m.Used = m.Used.Add(g.Capacity)
		} else {
			m.Used = m.Used.Sub(g.Capacity)
		}
		for _, d := range g.GPUs {
			if i := slices.IndexFunc(m.GPUs, func(x placement.Device) bool { return x.Index == d.Index }); i >= 0 {
				m.GPUs[i].UsedMilli += times * d.Milli
			}
		}
		world.UpsertMachine(m)
	}
}
