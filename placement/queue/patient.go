package queue

import (
	"math"
	"time"

	"berth/placement/cluster"
)

// Patient ranks jobs of known run time by remaining service, as the order srsf does,
// divided by 1 + time since submission / Patience. Short jobs come first, yet no job
// starves: a job that has waited long enough is ahead of every newcomer.
//
// The zero value uses UsualPatience. A Patient serves one snapshot at a time.
type Patient struct {
	Patience time.Duration // age at which a job's remaining service counts half; 0: UsualPatience
	now      time.Time     // time of the current plan
}

// UsualPatience is the default patience. It suits clusters whose long jobs run for days.
const UsualPatience = 24 * time.Hour

// UsualExponent is the default exponent a in remaining time x GPUs^a. With 1, a job counts
// by its GPU time, as if nothing else could run at the same time. A smaller exponent
// accounts for the other machines, which do not idle meanwhile.
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

// rank returns remaining seconds x GPUs^UsualExponent over 1 + age/Patience. A remaining
// time below a second counts as a second, so that a job that outran its estimate keeps a
// positive rank.
func (p *Patient) rank(left time.Duration, gpus float64, submitted time.Time) float64 {
	patience := p.Patience
	if patience <= 0 {
		patience = UsualPatience
	}
	age := max(0, p.now.Sub(submitted)).Seconds() / patience.Seconds()
	return max(left, time.Second).Seconds() * math.Pow(gpus, UsualExponent) / (1 + age)
}
