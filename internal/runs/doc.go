// Package runs keeps how long jobs without a time limit are likely to run, going
// by jobs like them that have succeeded: the leader and explanations order by it
// where the policy goes by durations.
//
// All it says follows from the rows, so that any process says the same, and it
// writes nothing. It reads only what is asked for: works of which a job waits or
// runs, when they are new or one of theirs has ended. What counts for a step is in
// pipelines that have ended, of which no row of the queue tells: its figure is as
// of when the step was new, or of when whoever asks last began anew (Fresh).
//
// The one rule to know: what it says orders jobs, and promises nothing to others.
package runs
