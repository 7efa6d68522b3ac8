package queue

import (
	"math"
	"time"

	"berth/placement/cluster"
)

// Adaptive ranks jobs of known run time by remaining time x GPUs^a, as the order srsf does,
// with an exponent a that follows the length of the queue. Behind a long queue all others wait
// for the GPU time that a job holds, so a is near DeepExponent. In a short queue other machines
// are about to be free, and the run time counts more.
//
// An Adaptive serves one snapshot at a time. Its ranks follow from the snapshot alone.
type Adaptive struct {
	now      time.Time // time of the current plan
	exponent float64   // in the current plan
}

// Exponents of Adaptive.
const (
	// ShallowExponent is the exponent while no job waits.
	ShallowExponent = 0.2
	// DeepExponent is the limit of the exponent as the queue grows.
	DeepExponent = 0.9
	// HalfwayQueue is the number of waiting jobs per running one at which the exponent is
	// halfway between the two.
	HalfwayQueue = 1
)

// Begin implements Ranker.
func (p *Adaptive) Begin(view RankView, now time.Time) {
	waiting, running := 0.0, 0.0
	view.EachJob(func(Job) { waiting++ })
	view.EachRunning(func(cluster.Running) { running++ })
	p.now = now
	p.exponent = DeepExponent - (DeepExponent-ShallowExponent)/(1+waiting/max(1, running)/HalfwayQueue)
}

// Waiting implements Ranker.
func (p *Adaptive) Waiting(j Job, gpus float64) float64 {
	return p.rank(Remaining(j.Remaining, j.TimeLimit)+j.RestartCost, gpus)
}

// Running implements Ranker.
func (p *Adaptive) Running(r cluster.Running, gpus float64) float64 {
	return p.rank(Remaining(r.Remaining, r.TimeLimit)-max(0, p.now.Sub(r.StartedAt)), gpus)
}

// rank returns remaining seconds x GPUs^a. A remaining time below a second counts as a
// second, so that a job that outran its estimate keeps a positive rank.
func (p *Adaptive) rank(left time.Duration, gpus float64) float64 {
	return max(left, time.Second).Seconds() * math.Pow(gpus, p.exponent)
}
