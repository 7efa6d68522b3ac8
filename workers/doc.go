// Package workers wires task queues to workflows and activities: the control
// worker beside the database, and the node worker of a machine's agent. It
// holds their options, and what every activity passes through: the mapping of
// errors, the limit on payloads, the log.
//
// Workers start when Temporal answers and not before, and start again after it
// was away: no program of Berth needs Temporal to come up.
//
// The one rule to know: it links no SQL, because agents import it.
package workers
