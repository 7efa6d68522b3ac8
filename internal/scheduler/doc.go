// Package scheduler is the leader: one process of many that places the waiting
// jobs, judges silent machines and repairs what has come apart.
//
// Every process runs Run; the database elects one at a time and fences its
// writes, so that a leader that was deposed without noticing changes nothing.
// All that a leader knows stands in the database, and its successor begins by
// reading it.
//
// It never talks to a machine, and to Temporal only through the interfaces it
// is given: what machines and workflows should do, it writes, and hints at.
//
// The one rule to know: the loop that places owns the mirror of the queue
// alone; commits run beside it, one at a time, and their decisions count in the
// mirror from the moment they are planned.
package scheduler
