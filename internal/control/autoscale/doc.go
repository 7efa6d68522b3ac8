// Package autoscale launches and terminates cloud machines for waiting jobs. It runs in the leader.
//
// A Loop makes a pass every few seconds: it reads the facts, calls Decide, and carries out the decisions.
// Decide is a pure function. It applies package scaler to each tenant that has a burst policy, pool by pool.
//
// The rules to know: the leader's term fences every write. The loop terminates a machine only after a drain,
// and only if the machine is then empty. It commits the row of a launch before the workflow of the machine
// calls the cloud.
package autoscale
