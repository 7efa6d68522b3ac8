// Package berth holds the nouns of Berth, a durable job orchestrator for GPU
// and CPU clusters: jobs, machines, GPUs, allocations, attempts, checkpoints,
// the job's state machine, how failures are classified, and the names that
// the other packages share (task queues, workflow ids, labels, activities).
//
// It imports the standard library only and does no I/O. Every other package
// imports it; it imports none of them.
//
// The one rule to know: a job's row in PostgreSQL is the truth about the job.
// The types here are how that row is spoken of, never a copy that may differ.
package berth
