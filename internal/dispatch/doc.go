// Package dispatch starts and pokes the workflows of jobs. A submitted row is
// its own outbox: the process that stored it starts its workflow at once,
// others a moment later, and a sweep repeats what was missed.
//
// It never decides anything about a job, and nothing it does must succeed: a
// start is repeated by the sweep, a poke by the leader's reconciler.
//
// The one rule to know: a poke for a job whose first step waits in this process
// is handed to that step, and to the workflow as a signal otherwise, decided
// under one lock, so that it cannot fall in between.
package dispatch
