package main

import (
	"math"
	"slices"
	"sort"
)

// The setting of experiment A: Starburst (Luo et al., USENIX ATC '24), table 4. Times are hours here, as
// in the experiment.
const (
	waitJobs    = 500
	waitRate    = 16.0 // arrivals an hour
	waitNodes   = 4
	waitGPUs    = 8
	gpuHourCost = 2.5 // US dollars
)

// waitJob is a job of experiment A.
type waitJob struct {
	arrival, run float64 // hours
	gpus         int
}

// cost returns the price of the job's run on the cloud, in US dollars.
func (j waitJob) cost() float64 { return j.run * float64(j.gpus) * gpuHourCost }

// waitTrace draws the jobs of a seed: the gaps first, then the run times, then the sizes.
func waitTrace(seed uint32) []waitJob {
	r := newMersenne(seed)
	exponential := func() float64 { return -math.Log(1 - r.float()) }
	list := make([]waitJob, waitJobs)
	for i := 1; i < waitJobs; i++ {
		list[i].arrival = list[i-1].arrival + exponential()/waitRate
	}
	for i := range list {
		list[i].run = exponential()
	}
	for i := range list {
		switch u := r.float(); {
		case u < 0.7:
			list[i].gpus = 1
		case u < 0.85:
			list[i].gpus = 2
		case u < 0.95:
			list[i].gpus = 4
		default:
			list[i].gpus = 8
		}
	}
	return list
}

// waitResult is the outcome of one policy on one trace.
type waitResult struct {
	cost     float64 // US dollars
	wait     float64 // mean, in hours
	launches int     // jobs on the cloud
	idle     float64 // share of the GPU hours on premises without a job, until the last arrival
}

// waitRule is a published policy: a job goes to the cloud when it has waited for its budget.
type waitRule struct {
	budget func(waitJob) float64 // hours
	// strict lets no job start before an earlier one.
	strict bool
	// planned sends a job to the cloud at once if a replay of the queue cannot start it within the budget.
	planned bool
}

// The published policies. The factors of waits are about the largest with a mean wait of at most 0.0516 h on
// the published trace; the factor of plan-budget was searched until its cost was the published one.
var waitRules = map[string]waitRule{
	"no-wait":       {budget: func(waitJob) float64 { return 0 }},
	"constant-wait": {budget: func(waitJob) float64 { return 0.2435 }, strict: true},
	"starburst":     {budget: func(j waitJob) float64 { return 0.0785 * j.run * float64(j.gpus) }},
	"starburst-unknown": {
		budget: func(j waitJob) float64 { return 0.1073 * float64(j.gpus) }},
	"plan-budget": {budget: func(j waitJob) float64 { return 0.117 * j.run * float64(j.gpus) }, planned: true},
}

// waitRun is a run on the machines on premises.
type waitRun struct {
	end        float64
	gpus, node int
}

// waitSim plays a published policy. It places by best fit, as the published simulator does, and has
// nothing in common with the engine, whose results it is compared with.
type waitSim struct {
	jobs   []waitJob
	rule   waitRule
	now    float64
	free   [waitNodes]int
	active []waitRun // by end
	queue  []int     // indexes of jobs, in order of arrival
	result waitResult
	busy   float64 // GPU hours on premises
}

// play runs the policy on a trace.
func (rule waitRule) play(jobs []waitJob) waitResult {
	s := &waitSim{jobs: jobs, rule: rule}
	for n := range s.free {
		s.free[n] = waitGPUs
	}
	for next := 0; ; {
		s.active = release(s.active, &s.free, s.now)
		s.expire()
		first := next
		for next < len(jobs) && jobs[next].arrival <= s.now {
			s.queue = append(s.queue, next)
			next++
		}
		s.start()
		if rule.planned {
			s.foresee(first)
		}
		at := math.Inf(1)
		for _, i := range s.queue {
			at = min(at, jobs[i].arrival+rule.budget(jobs[i]))
		}
		if len(s.active) > 0 {
			at = min(at, s.active[0].end)
		}
		if next < len(jobs) {
			at = min(at, jobs[next].arrival)
		}
		if math.IsInf(at, 1) {
			break
		}
		s.now = at
	}
	s.result.wait /= float64(len(jobs))
	s.result.idle = 1 - s.busy/(jobs[len(jobs)-1].arrival*waitNodes*waitGPUs)
	return s.result
}

// release ends the runs that end by a time.
func release(active []waitRun, free *[waitNodes]int, now float64) []waitRun {
	for len(active) > 0 && active[0].end <= now {
		free[active[0].node] += active[0].gpus
		active = active[1:]
	}
	return active
}

// expire sends the jobs to the cloud that have waited for their budget.
func (s *waitSim) expire() {
	s.queue = slices.DeleteFunc(s.queue, func(i int) bool {
		end := s.jobs[i].arrival + s.rule.budget(s.jobs[i])
		if s.now < end {
			return false
		}
		s.burst(i, end)
		return true
	})
}

// burst runs a job on the cloud from a time.
func (s *waitSim) burst(i int, at float64) {
	s.result.cost += s.jobs[i].cost()
	s.result.wait += at - s.jobs[i].arrival
	s.result.launches++
}

// start starts the jobs that fit, in order of arrival.
func (s *waitSim) start() {
	last := s.jobs[len(s.jobs)-1].arrival
	stopped := false
	s.queue = slices.DeleteFunc(s.queue, func(i int) bool {
		j := s.jobs[i]
		n := bestNode(&s.free, j.gpus)
		if n < 0 || stopped {
			stopped = stopped || s.rule.strict
			return false
		}
		s.free[n] -= j.gpus
		s.active = insertRun(s.active, waitRun{s.now + j.run, j.gpus, n})
		s.result.wait += s.now - j.arrival
		s.busy += (min(s.now+j.run, last) - min(s.now, last)) * float64(j.gpus)
		return true
	})
}

// bestNode returns the node with the fewest free GPUs that are enough, or -1.
func bestNode(free *[waitNodes]int, gpus int) int {
	best := -1
	for n, have := range free {
		if have >= gpus && (best < 0 || have < free[best]) {
			best = n
		}
	}
	return best
}

func insertRun(list []waitRun, r waitRun) []waitRun {
	return slices.Insert(list, sort.Search(len(list), func(i int) bool { return list[i].end > r.end }), r)
}

// foresee sends the jobs to the cloud that arrived now, from an index on, and that a replay of the
// queue does not start within their budgets.
func (s *waitSim) foresee(first int) {
	for _, i := range slices.Clone(s.queue) {
		if i < first || s.planned(i) <= s.jobs[i].arrival+s.rule.budget(s.jobs[i]) {
			continue
		}
		s.burst(i, s.now)
		s.queue = slices.DeleteFunc(s.queue, func(o int) bool { return o == i })
	}
}

// planned returns the start of a job by a replay of the queue without further arrivals.
func (s *waitSim) planned(job int) float64 {
	free, active, queue, now := s.free, slices.Clone(s.active), slices.Clone(s.queue), s.now
	for {
		start := math.Inf(1)
		queue = slices.DeleteFunc(queue, func(i int) bool {
			n := bestNode(&free, s.jobs[i].gpus)
			if n < 0 {
				return false
			}
			free[n] -= s.jobs[i].gpus
			active = insertRun(active, waitRun{now + s.jobs[i].run, s.jobs[i].gpus, n})
			if i == job {
				start = now
			}
			return true
		})
		if !math.IsInf(start, 1) {
			return start
		}
		now = active[0].end
		active = release(active, &free, now)
	}
}
