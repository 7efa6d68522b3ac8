// Package controlplane puts Berth's control plane together: the API, the
// control worker, the dispatcher and the leader, each a role that a process
// may or may not play. cmd/berthd, cmd/berth-dev and the end-to-end tests run
// the same composition.
//
// It contains no logic of its own. It waits for PostgreSQL, on which every part
// depends, and not for Temporal: while Temporal is away, jobs are accepted, shown
// and run on.
//
// The one rule to know: parts stop in the order in which they are used: first
// the API, then workers and leader, then the clients that these use.
package controlplane
