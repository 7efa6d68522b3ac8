// Package placement decides which machines run which jobs.
//
// A Snapshot mirrors the waiting jobs and the machines, kept current by deltas; a Planner turns
// it into a Plan. Both are pure: they do no I/O and read neither a clock nor a source of
// randomness. The same deltas and the same time give the same plan, on which the golden tests
// in testdata rely.
//
// The parts of the engine are packages, and each imports only the ones above it in
// this list:
//
//	cluster   machines, kinds, classes of requests, the capacity ledger of a plan
//	queue     the next job of all: order, shares of tenants, quotas, aging
//	fit       machines for all members of a job, by the rule of packing
//	backfill  a start that no later job delays; estimates
//	preempt   victims that make room, and their nominated capacity
//	explain   why a job waits, by the same code
//
// queue and fit do not import each other. This package drives the parts: a job passes queue,
// fit, preempt and backfill in this order until one of them decides. A pruner skips the classes
// of which no job can be placed in this plan.
//
// All parts read and change free capacity through one ledger, which restores the machines at
// the end. Caches that outlive a plan are slices by the index of the machine, in the part that
// reads them; they make plans faster and never change a plan.
//
// A Policy holds the order of jobs, quotas, reserved starts and preemption; see
// docs/design/policy.md.
//
// The package never writes: a plan is a proposal that the commit checks again,
// row by row. A Snapshot that is behind costs a refusal, not a double booking.
//
// The one rule to know: jobs with equal requests form a class, and a class that
// does not fit is searched for once a plan, however many jobs wait in it. So a
// blocked job delays no class but its own.
package placement
