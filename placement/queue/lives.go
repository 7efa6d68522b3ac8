package queue

import (
	"math"
	"math/bits"
	"time"
)

// stages is in how many stages a life is told: the first takes firstStage, and
// each further one as long as all before it. The last ends after about 60 days.
const (
	stages     = 20
	firstStage = 20 * time.Second
)

// stageStarts are the times at which stages begin; the last one never ends.
var stageStarts = func() (b [stages + 1]time.Duration) {
	for i := range stages {
		b[i+1] = firstStage << i
	}
	return b
}()

// stage is the stage of a job that has run for that long.
func stage(ran time.Duration) int {
	return min(bits.Len64(uint64(ran/firstStage)), stages-1)
}

// lives counts, by stage, jobs that ended in it and how much of it jobs went
// through: together, how likely one in it ends there.
type lives struct {
	ends  [stages]float64
	spent [stages]float64 // 1: one job, the whole stage
	past  [stages]float64 // jobs that went through all stages before, not yet in spent
}

// blur is the part of an end that counts to the stages beside its own, since
// likeness is not sameness.
const blur = 0.3

// note adds a job, times weight; sum has to follow.
func (l *lives) note(s sibling, weight float64) {
	k := stage(s.ran)
	l.past[k] += weight
	part := min(1, (s.ran-stageStarts[k]).Seconds()/(stageStarts[k+1]-stageStarts[k]).Seconds())
	if !s.over {
		l.spent[k] += weight * part
		return
	}
	l.spent[k] += weight * max(0.5, part)
	if k == 0 || k == stages-1 {
		l.ends[k] += weight
		return
	}
	l.ends[k] += weight * (1 - blur)
	l.ends[k-1] += weight * blur / 2
	l.ends[k+1] += weight * blur / 2
}

// sum makes what was noted count in the stages before.
func (l *lives) sum() {
	through := 0.0
	for k := stages - 1; k >= 0; k-- {
		l.spent[k] += through
		through += l.past[k]
		l.past[k] = 0
	}
}

// shrunk counts all jobs of each stage together as at most one.
func (l *lives) shrunk() lives {
	x := *l
	for i, n := range x.spent {
		if n > 1 {
			x.spent[i], x.ends[i] = 1, x.ends[i]/n
		}
	}
	return x
}

// doubt adds a little of what is known of jobs in general: of those that come to
// a stage, one in five ends in it.
func (l *lives) doubt() {
	for i := range l.spent {
		l.spent[i] += 0.3
		l.ends[i] += 0.3 * 0.2
	}
}

// cost is the least expected time, in seconds, for each end among jobs that have
// run for that long and go on until the end of some stage: the inverse of the
// Gittins index.
func (l *lives) cost(ran time.Duration) float64 {
	left, spent, ended, best := 1.0, 0.0, 0.0, math.Inf(1)
	for k := stage(ran); k < stages; k++ {
		whole := (stageStarts[k+1] - stageStarts[k]).Seconds()
		span := whole
		if ran > stageStarts[k] {
			span = max((stageStarts[k+1] - ran).Seconds(), whole/20)
		}
		hazard := l.ends[k] / l.spent[k] / whole
		ends := 1 - math.Exp(-hazard*span)
		spent += left * ends / hazard
		ended += left * ends
		left -= left * ends
		best = min(best, spent/ended)
	}
	return best
}
