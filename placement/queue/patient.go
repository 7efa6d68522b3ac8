package queue

import (
	"math"
	"time"

	"berth/placement/cluster"
)

// Patient ranks jobs of known run time: by service to go, as the order srsf does, over
// 1 + time since submission / Patience. Short jobs come first, yet no job starves: a
// job that has waited long enough is ahead of any newcomer. The zero value uses
// UsualPatience. A Patient serves one snapshot at a time.
type Patient struct {
	Patience time.Duration // after which a job's service to go counts half
	now      time.Time
}

// UsualPatience suits clusters whose long jobs run for days.
const UsualPatience = 24 * time.Hour

// UsualExponent is a in remaining time x GPUs^a where nothing else is said. At 1
// a job counts by the GPU time it takes, as if nothing else could run beside
// it; below, that the rest of the machines is not idle meanwhile counts too.
const UsualExponent = 0.75

// Begin implements Ranker.
func (p *Patient) Begin(_ RankView, now time.Time) { p.now = now }

// Waiting implements Ranker.
func (p *Patient) Waiting(j Job, gpus float64) float64 {
	return p.rank(Remaining(j.Remaining, j.TimeLimit)+j.RestartCost, gpus, j.SubmittedAt)
}

// Running implements Ranker.
func (p *Patient) Running(r cluster.Running, gpus float64) float64 {
	left := Remaining(r.Remaining, r.TimeLimit) - max(0, p.now.Sub(r.StartedAt))
	return p.rank(left, gpus, r.SubmittedAt)
}

func (p *Patient) rank(left time.Duration, gpus float64, submitted time.Time) float64 {
	patience := p.Patience
	if patience <= 0 {
		patience = UsualPatience
	}
	age := max(0, p.now.Sub(submitted)).Seconds() / patience.Seconds()
	return max(left, time.Second).Seconds() * math.Pow(gpus, UsualExponent) / (1 + age)
}
