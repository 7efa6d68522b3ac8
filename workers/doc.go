// Package workers connects task queues to workflows and activities: the control worker and
// the worker of the waiters, both in the replicas of the control plane. It sets their
// options, and intercepts every activity to map errors, limit payloads and log.
//
// A worker starts when Temporal answers, and restarts after an outage: no program of Berth
// needs Temporal in order to start.
//
// The one rule to know: agents do not link this package. They connect to the API alone.
package workers
