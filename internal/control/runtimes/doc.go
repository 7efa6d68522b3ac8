// Package runtimes predicts how long jobs without a time limit will run, from the
// jobs like them that succeeded. The leader and explanations order jobs by the
// prediction where the policy orders by duration.
//
// Predictions follow from the rows alone, so that every process predicts the same;
// the package writes nothing. It reads only groups of jobs of which one waits or
// runs, when the group is new or one of its jobs has ended. The history of a step
// lies in pipelines that have ended, which the queue's rows do not show: its
// prediction is as old as the step, or as the caller's last Fresh.
//
// The one rule to know: predictions order jobs and promise nothing to users.
package runtimes
