package scaler

import (
	"time"

	"berth/internal/control/cloud"
)

// Deadline is the state of a job that must end in time and may run on spot machines. Its checkpoints
// limit the cost of a lost machine to a restart.
//
// Only the simulator uses it (berth-sim burst): job files have no deadline, see docs/adr/0101. The leader's scaler
// chooses the market of a launch by price, by the burst policy and by placement.spot, see decider.choices.
type Deadline struct {
	Work, Left       time.Duration // work still to be done, and time until the deadline
	AllWork, AllTime time.Duration // both at the job's submission
	Restart          time.Duration // work that each start adds
	Pending          time.Duration // work of the present start that is still to be done
	Step             time.Duration // until the next decision
	Running          cloud.Market  // market of the machine that the job runs on; "": none
	// Open states that a spot machine can be had, or that the job runs on one.
	Open bool
	// OpenFor is the time since which a spot machine can be had without a break; a caller that finds
	// out by trying sets Settled.
	OpenFor time.Duration
}

// Settled is a value of OpenFor for callers that do not watch the market.
const Settled = 1000 * time.Hour

// settleRestarts is the time, in restarts, for which spot machines must have been on offer before a job
// leaves a machine on demand for one: after a short offer the restarts cost more than the job saves.
const settleRestarts = 2.5

// Choose returns the market for the time until the next decision; "" waits. The job is never late
// if its first decision has enough time and no step takes longer than Step.
//
// The job runs on spot machines where they can be had. Where they cannot, it waits as long as its
// progress is ahead of the time that has passed, and otherwise runs on demand until spot machines have
// been on offer for settleRestarts. A safety rule has priority: the job runs on demand if the loss of
// the machine at the next step could make it late.
func (d Deadline) Choose() cloud.Market {
	choice := cloud.Market("")
	switch {
	case d.Open && d.Running == cloud.OnDemand && float64(d.OpenFor+d.Step) <= settleRestarts*float64(d.Restart):
		choice = cloud.OnDemand
	case d.Open:
		choice = cloud.Spot
	case d.Running == cloud.OnDemand || d.behind():
		choice = cloud.OnDemand
	}
	if choice != cloud.OnDemand && !d.safe(choice) {
		return cloud.OnDemand
	}
	return choice
}

// behind reports whether the share of the work that is done is smaller than the share of the time that
// has passed.
func (d Deadline) behind() bool {
	passed, done := d.AllTime-d.Left, d.AllWork-d.Work
	return float64(done) < float64(d.AllWork)*float64(passed)/float64(d.AllTime)
}

// safe reports whether the job ends in time if it runs on a market until the next decision, loses its
// machine then, and goes on demand.
func (d Deadline) safe(m cloud.Market) bool {
	work := d.Work
	if m == cloud.Spot {
		start := d.Restart
		if d.Running == cloud.Spot {
			start = d.Pending
		}
		work -= max(0, d.Step-start)
	}
	return work+d.Restart <= d.Left-d.Step
}
