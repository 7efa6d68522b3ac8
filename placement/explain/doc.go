// Package explain states why a job waits: the machines that its request rules out,
// the jobs and quotas ahead of it, and the values that its position depends on.
//
// It calls the same code as placement: a clause that it counts is the clause that
// fit and cluster check.
package explain
