package berth

import (
	"fmt"
	"time"
)

// A gang is a job of several members, which are placed, started and restarted
// together.

const (
	// GangGrace bounds the time between SIGTERM and SIGKILL of members that stop
	// because another member of their gang has ended. Most of them hang in communication
	// with that member, and would use up a long stop_grace for nothing.
	GangGrace = 20 * time.Second
	// GangBarrier is the longest wait of prepared members for the last one. Then the last
	// member is given up, and the next attempt avoids its machine.
	GangBarrier = 15 * time.Minute
	// RepairHold is the time for which nominations keep the capacity of a gang's healthy
	// members after an attempt, so that only the lost member needs a new machine.
	RepairHold = time.Minute
)

// GangNetworkName returns the name of the Docker network for one attempt of a gang, on the
// container engine that its members share. Each attempt has its own network, so that a
// remaining container of an earlier attempt cannot reach the members.
func GangNetworkName(job JobID, attempt int) string {
	return fmt.Sprintf("berth-%s-%d", job, attempt)
}
