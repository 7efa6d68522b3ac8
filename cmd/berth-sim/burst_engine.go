package main

import (
	"context"
	"slices"
	"strconv"
	"time"

	"berth"
	"berth/internal/control/scaler"
	"berth/placement"
	"berth/spec"
)

// Numbers of the production policies of experiment A, chosen on the seeds 1 to 20; see
// docs/design/simulation.md.
const (
	knownHourOfWait   = 22.0
	unknownHourOfWait = 18.0
	unknownFutures    = 16
)

// burstReplay plays experiment A with the production engine on premises and scaler.Burst for the
// choice of the cloud.
type burstReplay struct {
	known   bool // jobs declare their run times
	policy  scaler.BurstPolicy
	futures int

	jobs    []waitJob
	world   *placement.Snapshot
	planner placement.Planner
	lengths scaler.Lengths
	now     time.Time
	running []burstRun // by end; runs on the cloud have no ranks
	waiting []placement.Job
	classes map[string]spec.Request
	result  waitResult
	busy    time.Duration
}

// burstRun is a job that runs.
type burstRun struct {
	index      int
	start, end time.Time
	row        placement.Running
}

// burstPlanner is the engine without reserved starts: any job may start that fits, the earliest
// submission first, as in the published simulator.
func burstPlanner() placement.Planner {
	return placement.Planner{Policy: placement.Policy{Order: placement.FIFO}}
}

// playBurst runs the production policy on a trace.
func playBurst(ctx context.Context, jobs []waitJob, known bool, policy scaler.BurstPolicy, futures int) (
	waitResult, error) {
	r := &burstReplay{known: known, policy: policy, futures: futures, jobs: jobs, world: placement.NewSnapshot(),
		planner: burstPlanner(), lengths: scaler.Lengths{Prior: time.Hour}, now: origin,
		classes: map[string]spec.Request{}}
	for _, m := range equalMachines(waitNodes, waitGPUs) {
		r.world.UpsertMachine(m)
	}
	for next := 0; ; {
		if err := ctx.Err(); err != nil {
			return waitResult{}, err
		}
		r.finish()
		for next < len(jobs) && !r.arrival(next).After(r.now) {
			r.submit(next)
			next++
		}
		r.start()
		r.burst()
		var at time.Time
		if len(r.running) > 0 {
			at = r.running[0].end
		}
		if next < len(jobs) && (at.IsZero() || r.arrival(next).Before(at)) {
			at = r.arrival(next)
		}
		if at.IsZero() {
			break
		}
		r.now = at
	}
	r.result.wait /= float64(len(jobs))
	r.result.idle = 1 - r.busy.Hours()/(jobs[len(jobs)-1].arrival*waitNodes*waitGPUs)
	return r.result, nil
}

func hours(h float64) time.Duration { return time.Duration(h * float64(time.Hour)) }

func (r *burstReplay) arrival(i int) time.Time { return origin.Add(hours(r.jobs[i].arrival)) }

// submit puts a job into the queue.
func (r *burstReplay) submit(i int) {
	request := spec.Request{Members: 1, GPUs: r.jobs[i].gpus, GPUMilli: 1000, Execution: spec.AtLeastOnce}
	class := request.Class()
	r.classes[class] = request
	r.world.DefineClass(class, request)
	j := placement.Job{ID: berth.JobID(strconv.Itoa(i)), Class: class, Version: 1, SubmittedAt: r.arrival(i),
		EligibleAt: r.arrival(i)}
	r.waiting = append(r.waiting, j)
	r.world.UpsertJob(j)
}

// finish ends the runs of the present time.
func (r *burstReplay) finish() {
	for len(r.running) > 0 && !r.running[0].end.After(r.now) {
		x := r.running[0]
		r.running = r.running[1:]
		r.lengths.Ended(x.end.Sub(x.start))
		if x.row.Ranks == nil {
			continue
		}
		r.world.RemoveRunning(x.row.Job)
		grantTo(r.world, x.row.Ranks, -1)
	}
}

// start carries out the plan of the engine.
func (r *burstReplay) start() {
	last := r.arrival(len(r.jobs) - 1)
	for _, s := range r.planner.Plan(r.world, r.now).Start {
		j := r.leave(s.Job)
		i, _ := strconv.Atoi(string(s.Job))
		grantTo(r.world, s.Ranks, 1)
		row := placement.Running{Job: j.ID, Class: j.Class, Version: 1, Attempt: s.Attempt, SubmittedAt: j.SubmittedAt,
			Ranks: s.Ranks, StartedAt: r.now}
		r.world.UpsertRunning(row)
		r.run(i, row)
		if r.now.Before(last) {
			r.busy += min(hours(r.jobs[i].run), last.Sub(r.now)) * time.Duration(r.jobs[i].gpus)
		}
	}
}

// run lets a job run from now, and counts its wait.
func (r *burstReplay) run(i int, row placement.Running) {
	x := burstRun{i, r.now, r.now.Add(hours(r.jobs[i].run)), row}
	at, _ := slices.BinarySearchFunc(r.running, x, func(a, b burstRun) int { return a.end.Compare(b.end) })
	r.running = slices.Insert(r.running, at, x)
	r.result.wait += r.now.Sub(r.arrival(i)).Hours()
}

// leave takes a job out of the queue.
func (r *burstReplay) leave(id berth.JobID) placement.Job {
	i := slices.IndexFunc(r.waiting, func(j placement.Job) bool { return j.ID == id })
	j := r.waiting[i]
	r.waiting = slices.Delete(r.waiting, i, i+1)
	r.world.RemoveJob(id)
	return j
}

// burst sends the jobs to the cloud that the production function chooses.
func (r *burstReplay) burst() {
	if len(r.waiting) == 0 {
		return
	}
	q := &scaler.Queue{Planner: r.planner, Waiting: r.waiting, Classes: r.classes, Left: r.left, Futures: r.futures}
	r.world.EachMachine(func(m placement.Machine) { q.Machines = append(q.Machines, m) })
	for _, x := range r.running {
		if x.row.Ranks != nil {
			q.Running = append(q.Running, x.row)
		}
	}
	options := map[berth.JobID]scaler.Option{}
	for _, j := range r.waiting {
		i, _ := strconv.Atoi(string(j.ID))
		run := r.lengths.Mean().Hours()
		if r.known {
			run = r.jobs[i].run
		}
		options[j.ID] = scaler.Option{Cost: run * float64(r.jobs[i].gpus) * gpuHourCost, Policy: r.policy}
	}
	for _, v := range scaler.Burst(q, options, scaler.Limits{}, r.now) {
		if !v.Burst {
			continue
		}
		j := r.leave(v.Job)
		i, _ := strconv.Atoi(string(j.ID))
		r.run(i, placement.Running{Job: j.ID})
		r.result.cost += r.jobs[i].cost()
		r.result.launches++
	}
}

// left returns the time that a job still runs, for scaler.Queue.
func (r *burstReplay) left(id berth.JobID, future int) time.Duration {
	i, _ := strconv.Atoi(string(id))
	ran := time.Duration(0)
	for _, x := range r.running {
		if x.index == i {
			ran = r.now.Sub(x.start)
		}
	}
	if r.known {
		return hours(r.jobs[i].run) - ran
	}
	return r.lengths.Left(id, ran, future)
}

// grantTo adds grants to the use of their machines (times 1) or subtracts them (times -1).
func grantTo(world *placement.Snapshot, grants []berth.Grant, times int64) {
	for _, g := range grants {
		m, _ := world.Machine(g.Machine)
		m.GPUs = slices.Clone(m.GPUs) // the snapshot owns the slice of the row that it returned
		if times > 0 {
			m.Used = m.Used.Add(g.Capacity)
		} else {
			m.Used = m.Used.Sub(g.Capacity)
		}
		for _, d := range g.GPUs {
			m.GPUs[d.Index].UsedMilli += times * d.Milli
		}
		world.UpsertMachine(m)
	}
}
