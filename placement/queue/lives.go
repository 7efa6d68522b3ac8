package queue

import (
	"math"
	"math/bits"
	"time"
)

// stages is the number of stages into which run times are divided. The first stage takes
// firstStage, and each further one as long as all earlier stages together. The last stage
// starts after about 60 days.
const (
	stages     = 20
	firstStage = 20 * time.Second
)

// stageStarts holds the run time at which each stage starts. The last stage also covers all
// longer run times.
var stageStarts = func() (b [stages + 1]time.Duration) {
	for i := range stages {
		b[i+1] = firstStage << i
	}
	return b
}()

// stage returns the stage of a job that has run for the given time.
func stage(ran time.Duration) int {
	return min(bits.Len64(uint64(ran/firstStage)), stages-1)
}

// lives is a histogram of run times: per stage, the weight of jobs that ended in the stage,
// and the time that jobs spent in that stage. The quotient ends/spent is the hazard rate,
// in ends per stage length.
type lives struct {
	ends  [stages]float64 // weight of jobs that ended in the stage
	spent [stages]float64 // in stage lengths: 1 is one job for the whole stage
	past  [stages]float64 // jobs that passed all earlier stages, until sum adds this time to spent
}

// blur is the part of an end that counts for the two neighboring stages, since similar jobs
// do not run exactly equally long.
const blur = 0.3

// note adds a job with a weight; a negative weight removes the job. sum must follow.
func (l *lives) note(s sibling, weight float64) {
	k := stage(s.ran)
	l.past[k] += weight
	part := min(1, (s.ran-stageStarts[k]).Seconds()/(stageStarts[k+1]-stageStarts[k]).Seconds())
	if !s.over {
		l.spent[k] += weight * part
		return
	}
	l.spent[k] += weight * max(0.5, part) // even an early end counts half a stage
	if k == 0 || k == stages-1 {
		l.ends[k] += weight
		return
	}
	l.ends[k] += weight * (1 - blur)
	l.ends[k-1] += weight * blur / 2
	l.ends[k+1] += weight * blur / 2
}

// add adds the jobs of another histogram, each with a weight.
func (l *lives) add(o *lives, weight float64) {
	for k := range l.ends {
		l.ends[k] += weight * o.ends[k]
		l.spent[k] += weight * o.spent[k]
		l.past[k] += weight * o.past[k]
	}
}

// sum adds the noted jobs to the time spent in all stages before their own.
func (l *lives) sum() {
	through := 0.0
	for k := stages - 1; k >= 0; k-- {
		l.spent[k] += through
		through += l.past[k]
		l.past[k] = 0
	}
}

// shrunk returns a copy in which the jobs of each stage together weigh at most 1, with
// unchanged hazard rates.
func (l *lives) shrunk() lives {
	x := *l
	for i, n := range x.spent {
		if n > 1 {
			x.spent[i], x.ends[i] = 1, x.ends[i]/n
		}
	}
	return x
}

// doubt adds a weak prior of 0.3 jobs in each stage, one in five of which ends in that
// stage. It also keeps the hazard rate of a stage without jobs above zero.
func (l *lives) doubt() {
	for i := range l.spent {
		l.spent[i] += 0.3
		l.ends[i] += 0.3 * 0.2
	}
}

// cost returns the inverse of the Gittins index: the least expected run time, in seconds,
// per job that ends, among jobs that have run for ran and continue until the end of some
// stage. The minimum is over that stage.
func (l *lives) cost(ran time.Duration) float64 {
	best := math.Inf(1)
	l.walk(ran, func(ratio float64) { best = min(best, ratio) })
	return best
}

// whole returns the same ratio for jobs that continue through all stages: their expected
// remaining time.
func (l *lives) whole(ran time.Duration) float64 {
	last := 0.0
	l.walk(ran, func(ratio float64) { last = ratio })
	return last
}

// walk calls f for each stage from that of ran on, with the expected run time per job that
// ends, among jobs that continue until the end of the stage.
//
// For each such stage, left is the probability that a job reaches it, spent the expected
// run time up to its end, and ended the probability of an end by then.
func (l *lives) walk(ran time.Duration, f func(ratio float64)) {
	left, spent, ended := 1.0, 0.0, 0.0
	for k := stage(ran); k < stages; k++ {
		whole := (stageStarts[k+1] - stageStarts[k]).Seconds()
		span := whole
		if ran > stageStarts[k] {
			// At least a twentieth of the stage: the last stage may be over already.
			span = max((stageStarts[k+1] - ran).Seconds(), whole/20)
		}
		hazard := l.ends[k] / l.spent[k] / whole // ends per second
		ends := 1 - math.Exp(-hazard*span)       // probability of an end within span
		spent += left * ends / hazard
		ended += left * ends
		left -= left * ends
		f(spent / ended)
	}
}
