// Package scaler decides when to launch, drain and keep cloud machines.
//
// All decisions are pure functions of values, without I/O, clock or randomness. The same input gives
// the same decision, so the simulator (berth-sim burst) runs the same functions as production.
//
//	Burst    selects the waiting jobs for cloud machines, by replays of the queue
//	Deadline chooses spot or on demand for a job with a deadline; only the simulator uses it (docs/adr/0101)
//	Zones    orders the zones, and decides when to try a failed zone again
//	Decide   launches, drains and undrains machines, within the limits of a policy
//
// The engine of package placement answers questions about capacity: a replay plans the queue event
// by event, and a plan treats a machine that does not exist yet like any other machine.
//
// The package never calls a cloud. The caller commits each launch before it calls the cloud, counts
// launches of unknown outcome as machines, and passes each offer with its breaker, which records the
// failures of the offer. In berthd, package cloud opens and closes the breakers.
package scaler
