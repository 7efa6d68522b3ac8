package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"berth"
	"berth/internal/control/cloud"
	"berth/internal/control/scaler"
	"berth/placement"
)

// The setting of experiment C: every job runs on the cloud. Machines boot, and are billed by the second for at
// least a minute, at a price by their GPUs.
const (
	shapeBoot  = 4 * time.Minute
	shapeLeast = time.Minute
)

// shapePolicy is a row of experiment C.
type shapePolicy struct {
	name   string
	sizes  []int // GPUs of the machines on offer
	policy scaler.Policy
}

// shapePolicies are the rows. The first two repeat the published rules: the same idle time for all sizes.
var shapePolicies = []shapePolicy{
	{"eights", []int{8}, scaler.Policy{Idle: 10 * time.Minute}},
	{"shapes", []int{1, 2, 4, 8}, scaler.Policy{Idle: 30 * time.Minute}},
	{"berth", []int{1, 2, 4, 8}, scaler.Policy{Idle: time.Minute, IdleCost: 2.5}},
	{"berth-eager", []int{1, 2, 4, 8}, scaler.Policy{Idle: time.Minute, IdleCost: 10}},
}

// shapeReplay plays experiment C with the engine and scaler.Decide.
type shapeReplay struct {
	now      time.Time
	offers   []scaler.Offer
	policy   scaler.Policy
	planner  placement.Planner
	world    *placement.Snapshot
	arrivals []work
	waiting  []scaler.Job
	lengths  map[berth.JobID]time.Duration
	running  []shapeRun                          // by end
	machines map[berth.MachineID]*scaler.Machine // that exist
	booting  []*scaler.Machine                   // by launch
	launched int
	result   shapeResult
}

// shapeRun is a job that runs.
type shapeRun struct {
	end   time.Time
	job   berth.JobID
	ranks []berth.Grant
}

// shapeResult is the outcome: GPU time, waits in total, and launches.
type shapeResult struct {
	paid, used, waited time.Duration
	jobs, launches     int
}

// paidOverUsed returns the GPU time that was paid over the GPU time of jobs.
func (r shapeResult) paidOverUsed() float64 { return float64(r.paid) / float64(r.used) }

// cost returns the price of the paid GPU time, in US dollars.
func (r shapeResult) cost() float64 { return r.paid.Hours() * gpuHourCost }

// idle returns the share of the paid GPU time without a job.
func (r shapeResult) idle() float64 { return 1 - float64(r.used)/float64(r.paid) }

// wait returns the mean wait.
func (r shapeResult) wait() time.Duration { return r.waited / time.Duration(max(1, r.jobs)) }

// playShapes runs the jobs of a trace under a policy.
func playShapes(ctx context.Context, jobs []work, p shapePolicy) (shapeResult, error) {
	r := &shapeReplay{now: origin, policy: p.policy, planner: burstPlanner(), world: placement.NewSnapshot(),
		lengths: map[berth.JobID]time.Duration{}, machines: map[berth.MachineID]*scaler.Machine{}}
	r.policy.Allow, r.policy.Max = []string{"sim/region"}, maxMachines
	for _, size := range p.sizes {
		r.offers = append(r.offers, scaler.Offer{Provider: "sim", Offer: cloud.Offer{GPUs: size, GPUType: "gpu",
			Price:    gpuHourCost * float64(size),
			Offering: cloud.Offering{Region: "region", Type: fmt.Sprint(size), Market: cloud.OnDemand}}})
	}
	r.arrivals = slices.Clone(jobs)
	if err := spread(r.arrivals, maxMachines, p.sizes[len(p.sizes)-1]); err != nil {
		return shapeResult{}, err
	}
	for {
		if err := ctx.Err(); err != nil {
			return shapeResult{}, err
		}
		r.finish()
		r.boot()
		r.submit()
		r.start()
		r.decide()
		at, ok := r.next()
		if !ok {
			return r.result, nil
		}
		r.now = at
	}
}

// finish ends the runs of the present time.
func (r *shapeReplay) finish() {
	for len(r.running) > 0 && !r.running[0].end.After(r.now) {
		x := r.running[0]
		r.running = r.running[1:]
		r.world.RemoveRunning(x.job)
		grantTo(r.world, x.ranks, -1)
		for _, g := range x.ranks {
			m := r.machines[g.Machine]
			if m.Row, _ = r.world.Machine(g.Machine); m.Row.Used == (berth.Capacity{}) {
				m.EmptySince = r.now
			}
		}
	}
}

// boot makes machines ready.
func (r *shapeReplay) boot() {
	for len(r.booting) > 0 && !r.booting[0].Launched.Add(shapeBoot).After(r.now) {
		m := r.booting[0]
		r.booting = r.booting[1:]
		m.State, m.EmptySince = scaler.Ready, r.now
		r.world.UpsertMachine(m.Row)
	}
}

// submit puts the jobs of the present time into the queue.
func (r *shapeReplay) submit() {
	for len(r.arrivals) > 0 && !origin.Add(r.arrivals[0].submitted).After(r.now) {
		w := r.arrivals[0]
		r.arrivals = r.arrivals[1:]
		class := w.request.Class()
		r.world.DefineClass(class, w.request)
		j := placement.Job{ID: berth.JobID(w.id), Class: class, Version: 1, SubmittedAt: r.now, EligibleAt: r.now}
		r.world.UpsertJob(j)
		r.waiting = append(r.waiting, scaler.Job{Job: j, Request: w.request})
		r.lengths[j.ID] = w.length
		r.result.jobs++
		r.result.used += w.length * time.Duration(w.gpus)
	}
}

// start carries out the plan of the engine.
func (r *shapeReplay) start() {
	for _, s := range r.planner.Plan(r.world, r.now).Start {
		i := slices.IndexFunc(r.waiting, func(j scaler.Job) bool { return j.ID == s.Job })
		j := r.waiting[i]
		r.waiting = slices.Delete(r.waiting, i, i+1)
		r.world.RemoveJob(s.Job)
		grantTo(r.world, s.Ranks, 1)
		r.world.UpsertRunning(placement.Running{Job: j.ID, Class: j.Class, Version: 1, Attempt: s.Attempt,
			SubmittedAt: j.SubmittedAt, Ranks: s.Ranks, StartedAt: r.now})
		r.result.waited += r.now.Sub(j.SubmittedAt)
		x := shapeRun{r.now.Add(r.lengths[j.ID]), j.ID, s.Ranks}
		at, _ := slices.BinarySearchFunc(r.running, x, func(a, b shapeRun) int { return a.end.Compare(b.end) })
		r.running = slices.Insert(r.running, at, x)
		for _, g := range s.Ranks {
			m := r.machines[g.Machine]
			m.Row, _ = r.world.Machine(g.Machine)
			m.EmptySince = time.Time{}
		}
	}
}

// decide carries out the launches and drains of the production function.
func (r *shapeReplay) decide() {
	in := scaler.Input{Now: r.now, Jobs: r.waiting, Offers: r.offers, Policy: r.policy, Planner: r.planner}
	expired := false
	for _, m := range r.machines {
		// Of the ready machines, those with jobs are left out: a member of a gang takes a whole machine, and
		// other jobs that wait fit on no ready one.
		if m.State == scaler.Launching || !m.EmptySince.IsZero() {
			in.Machines = append(in.Machines, *m)
			expired = expired || r.policy.Expired(*m, r.now)
		}
	}
	if len(in.Jobs) == 0 && !expired {
		return
	}
	slices.SortFunc(in.Machines, func(a, b scaler.Machine) int { return a.Launched.Compare(b.Launched) })
	d := scaler.Decide(in)
	for _, l := range d.Launches {
		m := &scaler.Machine{State: scaler.Launching, Price: l.Offer.Price, Launched: r.now,
			Row: scaler.MachineOf(l.Offer.Offer, nodeName(r.launched))}
		r.launched++
		r.result.launches++
		r.machines[m.Row.ID] = m
		r.booting = append(r.booting, m)
	}
	for _, id := range d.Drain {
		m := r.machines[id]
		delete(r.machines, id)
		r.world.RemoveMachine(id)
		r.result.paid += max(shapeLeast, r.now.Sub(m.Launched)) * time.Duration(len(m.Row.GPUs))
	}
}

// next returns the time of the next event; ok is false when nothing is left.
func (r *shapeReplay) next() (at time.Time, ok bool) {
	earlier := func(t time.Time) {
		if !ok || t.Before(at) {
			at, ok = t, true
		}
	}
	if len(r.arrivals) > 0 {
		earlier(origin.Add(r.arrivals[0].submitted))
	}
	if len(r.running) > 0 {
		earlier(r.running[0].end)
	}
	if len(r.booting) > 0 {
		earlier(r.booting[0].Launched.Add(shapeBoot))
	}
	for _, m := range r.machines {
		// An expired machine that still exists is needed by a job that waits for a further machine.
		if m.State == scaler.Ready && !m.EmptySince.IsZero() && !r.policy.Expired(*m, r.now) {
			earlier(m.EmptySince.Add(r.policy.Keep(m.Price)))
		}
	}
	return at, ok
}

// shapes prints experiment c.
func (f *burstFlags) shapes(ctx context.Context, out io.Writer) error {
	jobs, err := readTrace(f.trace)
	if err != nil {
		return &usageError{err}
	}
	var all []string
	for _, p := range shapePolicies {
		all = append(all, p.name)
	}
	names, err := f.chosen(all)
	if err != nil {
		return err
	}
	fmt.Fprintln(out, "POLICY\tCOST\tWAIT\tLAUNCHES\tIDLE\tPAID / USED") //nolint:errcheck // Flush reports it
	for _, p := range shapePolicies {
		if !slices.Contains(names, p.name) {
			continue
		}
		r, err := playShapes(ctx, jobs, p)
		if err != nil {
			return err
		}
		//nolint:errcheck // Flush reports it
		fmt.Fprintf(out, "%s\t$%.2f\t%.1f s\t%d\t%.1f %%\t%.3f\n", p.name, r.cost(), r.wait().Seconds(), r.launches,
			100*r.idle(), r.paidOverUsed())
	}
	return nil
}
