package main

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"berth/placement"
)

// queuePolicy is a policy of berth-sim queue, chosen by name.
type queuePolicy struct {
	name  string
	knows bool                                 // whether the planner knows run times in advance
	about string                               // for the help
	build func() (placement.Planner, strategy) // new state for each run
}

// preempts returns a planner of order srsf in which jobs may preempt jobs of a later rank.
func preempts(p placement.Policy) placement.Planner {
	p.Order, p.Preempt, p.Outrank = placement.SRSF, true, 1
	return placement.Planner{Policy: p}
}

// reservedStarts is the number of reserved starts of fifo. More of them change little and take
// longer to compute.
const reservedStarts = 4

// queuePolicies are described, with their results, in docs/design/simulation.md.
var queuePolicies = []queuePolicy{
	{"srsf", true, "least remaining time x GPUs^a first, displacing others; a grows with the queue from 0.2 to 0.9",
		func() (placement.Planner, strategy) {
			return preempts(placement.Policy{Ranker: &placement.Adaptive{}}), quiet{}
		}},
	{"sjf", true, "least run time first; no preemption", func() (placement.Planner, strategy) {
		// Exponent 0: a narrow long job that passes a wide short one cannot be stopped again.
		return placement.Planner{Policy: placement.Policy{Order: placement.SRSF, Durations: placement.Known}}, quiet{}
	}},
	{"fair", true, "as srsf, but the longer a job waits the more it counts, so that none starves",
		func() (placement.Planner, strategy) {
			return preempts(placement.Policy{Ranker: &placement.Patient{}}), quiet{}
		}},
	{"learned", false, "the jobs likeliest to end soon first, by what jobs submitted near them did; displacing others",
		func() (placement.Planner, strategy) {
			l := placement.NewLearned()
			return preempts(placement.Policy{Ranker: l, MaxOutranked: placement.LearnedPreemptions}), learning{l}
		}},
	{"fifo", true, "earliest submission first; the first four jobs without room have reserved starts",
		func() (placement.Planner, strategy) {
			return placement.Planner{Policy: placement.Policy{Order: placement.FIFO, Backfill: reservedStarts}}, quiet{}
		}},
}

// play runs the jobs of a trace on equal machines under the policy.
func (p queuePolicy) play(ctx context.Context, jobs []work, machines, gpus int) (*replay, error) {
	// The replay passes a run time to the planner only for a policy that may know it. Every
	// preempted job resumes where it stopped: a trace says nothing about checkpoints.
	list := slices.Clone(jobs)
	for i := range list {
		list[i].declared, list[i].saves = p.knows, true
	}
	planner, s := p.build()
	if planner.Policy.Backfill > 0 {
		// Reserved starts go by time limits. Nothing preempts here, so each job starts once.
		for i := range list {
			list[i].timeLimit = list[i].length + list[i].startCost
		}
	}
	r := newReplay(equalMachines(machines, gpus), list, planner, s)
	return r, r.run(ctx)
}

// policyNamed returns the policy of that name; the error lists the allowed names.
func policyNamed(name string) (queuePolicy, error) {
	i := slices.IndexFunc(queuePolicies, func(p queuePolicy) bool { return p.name == name })
	if i < 0 {
		return queuePolicy{}, fmt.Errorf("--policy %q: allowed are %s", name, strings.Join(policyNames(), ", "))
	}
	return queuePolicies[i], nil
}

func policyNames() []string {
	names := make([]string, 0, len(queuePolicies))
	for _, p := range queuePolicies {
		names = append(names, p.name)
	}
	return names
}

// policyHelp returns one line per policy for the command's help.
func policyHelp() string {
	var b strings.Builder
	for _, p := range queuePolicies {
		knows := "does not know durations"
		if p.knows {
			knows = "knows durations"
		}
		fmt.Fprintf(&b, "  %-8s %s: %s\n", p.name, knows, p.about)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// quiet is the strategy of policies that plan only at arrivals and ends of jobs.
type quiet struct{}

func (quiet) ended(*task)              {}
func (quiet) next(time.Time) time.Time { return time.Time{} }

// learning reports the run times of ended jobs to the estimator, and plans when the
// estimator expects ranks to change.
type learning struct{ *placement.Learned }

func (l learning) ended(t *task) {
	l.Ended(placement.Ended{Tenant: t.tenant, GPUs: float64(t.gpus), SubmittedAt: origin.Add(t.submitted), Ran: t.done})
}

func (l learning) next(now time.Time) time.Time { return l.Next(now) }

// percentile returns the q-quantile, q from 0 to 1, of sorted values by linear
// interpolation between the two nearest; 0 for an empty list.
func percentile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	x := q * float64(len(sorted)-1)
	i := int(math.Floor(x))
	if i+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[i] + (x-float64(i))*(sorted[i+1]-sorted[i])
}
