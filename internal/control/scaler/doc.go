// Package scaler decides when machines of a cloud are launched, drained and kept.
//
// All decisions are pure functions of values: no input or output, no clock, no randomness. The same
// input gives the same decision, so the simulator (berth-sim burst) plays the functions that run
// in production.
//
//	Burst    which waiting jobs run on machines of the cloud, by replays of the queue
//	Deadline spot or on demand, for a job that must end in time; used by the simulator alone (docs/adr/0101)
//	Zones    in which order zones are tried, and when a failed zone is tried again
//	Decide   launches, drains and returns from drains, within the limits of a policy
//
// Questions about capacity go to the engine of package placement: a replay plans the queue event
// by event, and a machine that does not exist yet is part of a plan as any other machine.
//
// The package never calls a cloud. A caller commits each launch before the call, counts launches
// of unknown outcome as machines, and passes with each offer the breaker that a failure has left. In berthd, package
// cloud opens and closes the breakers.
package scaler
