package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth"
	"berth/placement"
	"berth/spec"
)

// origin is the start of virtual time.
var origin = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// replay runs jobs on machines in virtual time by the decisions of the production planner,
// in place of the leader and the agents. Starts, stops and resumes are instant. A preempted
// job resumes where it stopped, or at its last checkpoint, at the price of its start cost.
type replay struct {
	snapshot *placement.Snapshot
	planner  placement.Planner
	strategy strategy
	owned    berth.Capacity
	now      time.Time

	tasks     map[berth.JobID]*task
	arrivals  []*task // not submitted yet, by time
	running   []*task // in order of start
	ended     []*task // in order of end
	sampled   bool    // record samples, for the report and the plot
	samples   []sample
	stretches []*stretch                    // in order of end
	marks     []placement.Nomination        // in force
	tenants   map[berth.TenantID]*account   // by id; tenants without a row are absent
	lost      map[berth.JobID]time.Duration // work lost by preemptions
	changes   []change                      // of a recorded period, still to come, by time
	expect    func(*task) time.Duration     // run time by similar jobs; nil: unknown
}

// task is a job in the replay. The job waits, or runs, or has ended.
type task struct {
	work
	job      berth.JobID
	class    string
	left     time.Duration // remaining work, including the start cost of the present run
	done     time.Duration // time it has run before the present run
	attempt  int
	gaveWay  []berth.JobID // jobs for which it was preempted
	starts   int           // not counting those that continued a stretch
	started  time.Time
	ends     time.Time // of the present run, unless it is preempted
	grants   []berth.Grant
	first    time.Time // first start
	finished time.Time
	last     *stretch      // the latest stretch that has ended
	stalled  time.Duration // of its tenant, at submission
}

// stretch is an uninterrupted run of a job on the same machines.
type stretch struct {
	task       *task
	start, end time.Time
	grants     []berth.Grant
}

// strategy is the part of a policy of berth-sim queue that the planner lacks.
type strategy interface {
	// ended reports an ended job; j.done is its run time in all.
	ended(j *task)
	// next returns the time of the next plan if no job arrives or ends before; zero: none.
	next(now time.Time) time.Time
}

// newReplay returns a replay with all machines ready and all jobs still to arrive. Jobs are
// in order of submission.
func newReplay(machines []placement.Machine, jobs []work, planner placement.Planner, s strategy) *replay {
	r := &replay{snapshot: placement.NewSnapshot(), planner: planner, strategy: s, now: origin,
		tasks: map[berth.JobID]*task{}, tenants: map[berth.TenantID]*account{}, lost: map[berth.JobID]time.Duration{}}
	for _, m := range machines {
		r.snapshot.UpsertMachine(m)
		r.owned = r.owned.Add(m.Total)
	}
	for _, w := range jobs {
		t := &task{work: w, job: berth.JobID(w.id), class: w.request.Class(), left: w.length}
		r.snapshot.DefineClass(t.class, w.request)
		r.tasks[t.job] = t
		r.arrivals = append(r.arrivals, t)
	}
	return r
}

// equalMachines returns machines that differ only in their number. They have GPUs and
// nothing else, which is all that the jobs of a trace request.
func equalMachines(count, gpus int) []placement.Machine {
	list := make([]placement.Machine, 0, count)
	for i := range count {
		m := placement.Machine{ID: nodeName(i), Epoch: 1, State: berth.MachineReady}
		m.Total.GPUMilli = int64(gpus) * 1000
		for d := range gpus {
			m.GPUs = append(m.GPUs, placement.Device{Index: d, Model: "gpu", Healthy: true})
		}
		list = append(list, m)
	}
	return list
}

// spread sets the request of each job of a trace: one machine, or as many whole machines as
// the job's GPUs fill. It fails on a job that is larger than the cluster.
func spread(jobs []work, machines, gpus int) error {
	for i, w := range jobs {
		request := spec.Request{Members: 1, GPUs: w.gpus, GPUMilli: 1000, Execution: spec.AtLeastOnce}
		if w.gpus > gpus {
			// The last machine is taken whole too, even where the job uses only a part of
			// its GPUs.
			request.Members, request.GPUs = (w.gpus+gpus-1)/gpus, gpus
		}
		if request.Members > machines {
			return fmt.Errorf("job %s wants %d GPUs: allowed are up to %d, on %d machines of %d", w.id, w.gpus,
				machines*gpus, machines, gpus)
		}
		jobs[i].request = request
	}
	return nil
}

// nodeName pads the number, so that machines sort by number. See also stretch.nodes.
func nodeName(i int) berth.MachineID { return berth.MachineID(fmt.Sprintf("node-%06d", i)) }

// run plays the trace until all jobs have ended. It fails with a stuckError if jobs wait
// and no event can change that.
func (r *replay) run(ctx context.Context) error {
	for len(r.arrivals) > 0 || len(r.running) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		r.now = r.nextEvent()
		// Ends come before arrivals at the same time, so that an arrival finds the released
		// room.
		r.finish()
		r.arrive()
		if err := r.settle(); err != nil {
			return err
		}
		r.record()
	}
	if n := r.snapshot.Jobs(); n > 0 {
		return &stuckError{n}
	}
	return nil
}

// stuckError reports jobs that wait although nothing runs and nothing is still to arrive.
type stuckError struct{ jobs int }

func (e *stuckError) Error() string {
	return fmt.Sprintf("%d jobs wait for ever: no machine, or no quota, is large enough for them", e.jobs)
}

// nextEvent returns the earliest of the next arrival, the next end of a run and, while jobs
// wait, the next plan that the strategy wants. Virtual time jumps there.
func (r *replay) nextEvent() time.Time {
	var at time.Time
	earlier := func(t time.Time) {
		if at.IsZero() || t.Before(at) {
			at = t
		}
	}
	if len(r.arrivals) > 0 {
		earlier(origin.Add(r.arrivals[0].submitted))
	}
	for _, t := range r.running {
		earlier(t.ends)
	}
	if r.snapshot.Jobs() > 0 {
		if t := r.strategy.next(r.now); t.After(r.now) {
			earlier(t)
		}
	}
	return at
}

// arrive submits the jobs of the present time.
func (r *replay) arrive() {
	for len(r.arrivals) > 0 && !origin.Add(r.arrivals[0].submitted).After(r.now) {
		t := r.arrivals[0]
		if a := r.tenants[t.tenant]; a != nil {
			t.stalled = a.stalledBy(r.now)
		}
		r.wait(t)
		r.arrivals = r.arrivals[1:]
	}
}

// wait puts a new or a preempted job into the queue. The submission time stays the same, so
// a preempted job keeps its age.
func (r *replay) wait(t *task) {
	submitted := origin.Add(t.submitted)
	j := placement.Job{
		ID: t.job, Tenant: t.tenant, Class: t.class, Version: 1, Attempt: t.attempt, Priority: t.priority,
		Preemptible: !t.firm, Parent: t.parent, Parallel: t.parallel, Unaged: t.early, LikeName: t.like,
		TimeLimit: t.timeLimit, Stalled: t.stalled, SubmittedAt: submitted.Add(-t.early), EligibleAt: submitted,
		Done: t.done, RestartCost: t.startCost, PreemptedFor: t.gaveWay,
	}
	if t.declared {
		j.Remaining = t.left
	}
	if r.expect != nil {
		j.Expected = r.expect(t)
	}
	r.snapshot.UpsertJob(j)
}

// finish ends the runs that have done all their work.
func (r *replay) finish() {
	for _, t := range slices.Clone(r.running) {
		if t.ends.After(r.now) {
			continue
		}
		r.stop(t)
		t.finished = r.now
		r.ended = append(r.ended, t)
		r.strategy.ended(t)
	}
}

// stop ends a run and releases its capacity, after its end or for a preemption. A run of no
// length did not happen: its start is neither counted nor paid for.
func (r *replay) stop(t *task) {
	ran := r.now.Sub(t.started)
	switch {
	case ran == 0:
		t.left -= t.startCost
		t.starts--
	case t.saves || !r.now.Before(t.ends):
		// A clean end, or a job that saves on preemption: all work counts.
		t.left -= ran
	default:
		// A preempted job resumes from its last checkpoint. It has paid the start cost and
		// keeps the work up to the checkpoint; the rest is lost. A stop within the start
		// cost loses no work.
		kept := time.Duration(0)
		if worked := ran - t.startCost; worked > 0 {
			if t.checkpoint > 0 {
				kept = worked.Truncate(t.checkpoint)
			}
			r.lost[t.job] += worked - kept
		}
		t.left -= t.startCost + kept
	}
	if ran > 0 {
		t.done += ran
		t.last = &stretch{t, t.started, r.now, t.grants}
		r.stretches = append(r.stretches, t.last)
	}
	r.snapshot.RemoveRunning(t.job)
	r.hold(t.grants, -1)
	r.used(t, ran)
	t.grants = nil
	r.running = slices.DeleteFunc(r.running, func(o *task) bool { return o == t })
}

// hold adds the grants to the use of the machines (times 1) or subtracts them (times -1).
func (r *replay) hold(grants []berth.Grant, times int64) {
	for _, g := range grants {
		m, ok := r.snapshot.Machine(g.Machine)
		if !ok {
			panic("berth-sim: grant on unknown machine " + string(g.Machine))
		}
		// The snapshot owns the slice of the row that it returned.
		m.GPUs = slices.Clone(m.GPUs)
		if times > 0 {
			m.Used = m.Used.Add(g.Capacity)
		} else {
			m.Used = m.Used.Sub(g.Capacity)
		}
		for _, d := range g.GPUs {
			m.GPUs[d.Index].UsedMilli += times * d.Milli
		}
		r.snapshot.UpsertMachine(m)
	}
}

// maxRounds bounds the plans at one time, against a policy that preempts in a cycle.
const maxRounds = 10_000

// settle plans, and carries out the plans, until a plan changes nothing.
func (r *replay) settle() error {
	for range maxRounds {
		r.snapshot.SetNominations(r.marks)
		r.save()
		plan := r.planner.Plan(r.snapshot, r.now)
		r.marks = slices.DeleteFunc(r.marks, func(m placement.Nomination) bool {
			return slices.ContainsFunc(plan.Release, func(o placement.Nomination) bool {
				return o.For == m.For && o.Machine == m.Machine && o.Victim == m.Victim
			})
		})
		r.displace(plan)
		for _, s := range plan.Start {
			r.start(r.tasks[s.Job], s)
		}
		if len(plan.Start) == 0 && len(plan.Preempt) == 0 && len(plan.Withdraw) == 0 {
			r.stall(plan.Stalled)
			return nil
		}
	}
	return fmt.Errorf("at %s the policy starts and stops jobs for ever", r.now.Sub(origin))
}

// displace carries out the preemptions for the first claimant only. The victims may release
// more than that job needs, so the next plan decides again on the other claimants.
func (r *replay) displace(plan placement.Plan) {
	if len(plan.Preempt) == 0 {
		return
	}
	claimant := plan.Preempt[0].For
	for _, m := range plan.Nominate {
		if m.For == claimant {
			r.marks = append(r.marks, m)
		}
	}
	for _, p := range plan.Preempt {
		if p.For != claimant {
			continue
		}
		t := r.tasks[p.Job]
		r.stop(t)
		t.gaveWay = append(t.gaveWay, p.For)
		r.wait(t)
	}
}

// start carries out a start of the plan.
func (r *replay) start(t *task, s berth.Start) {
	t.attempt, t.started, t.grants = s.Attempt, r.now, s.Ranks
	t.left += t.startCost
	t.starts++
	if t.attempt == 1 {
		t.first = r.now
	}
	// Preempted and placed on the same machines at the same time: the job was never
	// interrupted, so the stretch continues, and neither a start nor a start cost counts.
	if l := t.last; t.saves && l != nil && l.end.Equal(r.now) &&
		l.nodes() == (&stretch{task: t, grants: s.Ranks}).nodes() {
		t.left -= t.startCost
		t.starts--
		t.started, t.done, t.left = l.start, t.done-l.end.Sub(l.start), t.left+l.end.Sub(l.start)
		r.stretches = slices.DeleteFunc(r.stretches, func(o *stretch) bool { return o == l })
		t.last = nil
	}
	t.ends = t.started.Add(t.left)
	r.snapshot.RemoveJob(t.job)
	r.hold(s.Ranks, 1)
	running := placement.Running{
		Job: t.job, Tenant: t.tenant, Class: t.class, Version: 1, Attempt: t.attempt, Priority: t.priority,
		Preemptible: !t.firm, Parent: t.parent, Unaged: t.early, LikeName: t.like,
		TimeLimit: t.timeLimit, SubmittedAt: origin.Add(t.submitted - t.early), Ranks: s.Ranks,
		StartedAt: t.started, Done: t.done,
		RestartCost: t.startCost, PreemptedFor: t.gaveWay,
	}
	if t.declared {
		running.Remaining = t.left
	}
	if r.expect != nil {
		running.Expected = r.expect(t)
	}
	r.snapshot.UpsertRunning(running)
	r.running = append(r.running, t)
	r.penalise(t)
}

// rows returns the stretches by start, then job, as rows of the output file.
func (r *replay) rows() [][]string {
	list := slices.Clone(r.stretches)
	slices.SortStableFunc(list, func(a, b *stretch) int {
		return cmp.Or(a.start.Compare(b.start), strings.Compare(a.task.id, b.task.id))
	})
	rows := [][]string{{"job_id", "start", "end", "nodes"}}
	for _, s := range list {
		rows = append(rows, []string{s.task.id, instant(s.start), instant(s.end), s.nodes()})
	}
	return rows
}

// instant formats a time as seconds since the start of the trace, to the nanosecond,
// without trailing zeros.
func instant(t time.Time) string {
	ns := t.Sub(origin).Nanoseconds()
	s := fmt.Sprintf("%d.%09d", ns/1e9, ns%1e9)
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}

// nodes returns "machine:GPUs" for each machine of the run, by number. A job larger than a
// machine holds whole machines and may use a part of the last one.
func (s *stretch) nodes() string {
	numbers := make([]int, 0, len(s.grants))
	for _, g := range s.grants {
		n, err := strconv.Atoi(strings.TrimPrefix(string(g.Machine), "node-"))
		if err != nil {
			panic("berth-sim: machine without a number: " + string(g.Machine))
		}
		numbers = append(numbers, n)
	}
	slices.Sort(numbers)
	left := s.task.gpus
	parts := make([]string, 0, len(numbers))
	for _, n := range numbers {
		use := min(left, len(s.grants[0].GPUs))
		parts = append(parts, fmt.Sprintf("%d:%d", n, use))
		left -= use
	}
	return strings.Join(parts, ";")
}
