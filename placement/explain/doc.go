// Package explain computes the reasons why a job waits: the machines that its request
// excludes, the jobs and quotas ahead of it, and the values that determine its position.
//
// It calls the same code as placement: the clauses that it counts are the clauses that
// fit and cluster check.
package explain
