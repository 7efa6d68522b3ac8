// Package scheduler is the leader: the one process of many that places waiting
// jobs, declares silent machines lost and repairs inconsistencies.
//
// Every process calls Run. The database elects one leader at a time and fences its
// writes, so that a leader that was deposed without noticing changes nothing. The
// database holds the leader's whole state; a successor begins by reading it.
//
// The leader never calls a machine, and calls Temporal only through the interfaces
// that it is given. It writes orders for machines and workflows into rows, and then
// notifies both.
//
// The one rule to know: the placement loop alone owns the in-memory mirror of the
// queue. Commits run concurrently with it, one at a time, and the mirror counts a
// decision from the moment it was planned.
package scheduler
