// Package placement decides which machines run which jobs.
//
// A Snapshot mirrors the waiting jobs and the machines, kept current by deltas;
// an Engine turns it into a Plan. Both are pure: no input or output, no clock,
// no chance. The same deltas and the same now give the same plan, which is what
// the golden conversations in testdata rest on.
//
// A Policy says who comes first (bands, aging, shares of tenants, quotas), for
// whom a start is reserved, and who gives way; see docs/policy.md.
//
// It never writes: a plan is a proposal that the commit checks again, row by
// row, and a Snapshot that is behind costs a refusal, not a double booking.
//
// The one rule to know: jobs with equal requests form a class, and a class that
// does not fit is looked at once a plan, however many jobs wait in it. So one
// that is blocked holds up nobody but its own class.
package placement
