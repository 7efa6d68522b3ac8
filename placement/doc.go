// Package placement decides which machines run which jobs.
//
// A Snapshot mirrors the waiting jobs and the machines, kept current by deltas;
// an Engine turns it into a Plan. Both are pure: no input or output, no clock,
// no chance. The same deltas and the same now give the same plan, which the
// golden conversations in testdata rest on.
//
// A Plan is made by parts, each the owner of its data. A job passes them in this
// order until one of them decides:
//
//	turn         the next job of all, by bands, shares of tenants and quotas
//	placer       machines for all its members, by the rule of packing
//	preemption   victims that make room, and their nominated capacity
//	reservations a start that no later job delays
//	pruner       the classes of which no job is worth another look
//
// All of them read and change free capacity through one ledger, which restores
// the machines at the end. Caches that outlive a plan are slices by node.index in
// the part that reads them; they make plans faster and never different.
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
