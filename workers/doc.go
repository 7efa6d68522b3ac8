// Package workers wires task queues to workflows and activities: the control
// worker and the worker of the waiters, both in the replicas of the control plane.
// It holds their options, and what every activity passes through: the mapping of
// errors, the limit on payloads, the log.
//
// Workers start when Temporal answers and not before, and start again after it
// was away: no program of Berth needs Temporal to come up.
//
// The one rule to know: agents do not link it. They speak to the API alone.
package workers
