// Package dispatch starts and signals the workflows of jobs. A submitted row is its
// own outbox: the process that stored it starts its workflow at once, another
// process does so a moment later, and a sweep repeats missed starts.
//
// It decides nothing about a job, and none of its calls must succeed: the sweep
// repeats a start, the leader's reconciler repeats a poke.
//
// Calls makes all calls to Temporal, under one limit. TemporalSchedules keeps the
// Temporal Schedules that are the clocks of schedules. Dispatcher embeds both.
//
// The one rule to know: a poke for a job whose first step waits in this process
// wakes that step; any other poke is a signal to the workflow. One lock decides
// between the two, so that no poke is lost.
package dispatch
