// Package berth holds the nouns that every part of Berth shares: ids, statuses
// and the job's state machine, allocations and their phases, capacity,
// checkpoints, reasons, errors, and the names that processes agree on (task
// queues, workflow ids, activities, container labels, object keys).
//
// Three packages build on package berth. Package spec has the files and requests of users,
// package failure decides on the end of an attempt, and package wire has the documents
// that processes exchange. The four import the standard library and each other in this
// order, and do no I/O.
//
// The one rule to know: a job's row in PostgreSQL is the truth about the job. The types of
// this package describe that row; no process keeps a second copy that could differ.
package berth
