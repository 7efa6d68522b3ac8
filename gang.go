package berth

import (
	"fmt"
	"time"
)

// A gang is a job of several members, which are placed, started and restarted
// together.

const (
	// GangGrace bounds the time between SIGTERM and SIGKILL of members that stop
	// because another member of their gang has ended: they wait for it as a rule,
	// and would do so for all of a long stop_grace.
	GangGrace = 20 * time.Second
	// GangBarrier is how long members that are ready to start wait for the last one
	// before it is given up and its machine avoided.
	GangBarrier = 15 * time.Minute
	// RepairHold is how long the capacity of a gang's healthy members is kept for it
	// after an attempt, so that only the lost member needs a new place.
	RepairHold = time.Minute
)

// GangNetworkName is the Docker network of one attempt of a gang, on the engine
// that its members share. Each attempt has its own, so that a straggler of an
// earlier attempt reaches no member.
func GangNetworkName(job JobID, attempt int) string {
	return fmt.Sprintf("berth-%s-%d", job, attempt)
}
