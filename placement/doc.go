// Package placement decides which machines run which jobs.
//
// A Snapshot is a copy of the waiting jobs and the machines, which deltas keep current; a Planner
// turns the Snapshot into a Plan. Both are pure: they do no I/O and read neither a clock nor a source of
// randomness. The same deltas and the same time give the same plan, and the golden tests in
// testdata rely on this.
//
// The parts of the engine are packages, and each imports only the ones above it in
// this list:
//
//	cluster   machines, kinds, classes of requests, the capacity ledger of a plan
//	queue     choice of the next job: order, shares of tenants, quotas, aging
//	fit       machines for all members of a job, by the packing rule
//	backfill  reserved starts, which later jobs cannot delay; estimates of other starts
//	preempt   victims that make room for a job, and the capacity nominated for it
//	explain   reasons of waiting jobs, computed by the same code
//
// queue and fit do not import each other. This package drives the parts: a job passes queue,
// fit, preempt and backfill in this order until one of them decides. A pruner skips classes whose
// jobs cannot be placed in this plan.
//
// All parts read and change free capacity through one ledger, which restores the machines at
// the end of the plan. Caches that outlive a plan are slices indexed by machine, in the part that
// reads them; they make plans faster and never change a plan.
//
// A Policy holds the order of jobs, quotas, reserved starts and preemption; see
// docs/design/policy.md.
//
// The package writes nothing to the database: a plan is a proposal, and the commit
// checks it again, row by row. An outdated Snapshot causes a refused commit, but
// never a double booking.
//
// The one rule to know: jobs with equal requests form a class. If a class does not
// fit, a plan searches for it only once, however many of its jobs wait. So a
// blocked job delays only its own class.
package placement
