// Package check verifies that a history keeps Berth's promises. From the rows of the
// database and the events of the container engines it lists every breach of the
// invariants of docs/operate/checking.md, with the rows that prove the breach.
//
// It is pure: Verify takes a whole history, Run streams one from a Source, one job and
// one machine at a time, and both apply the same functions. The package shares no
// decision code with the product: it states the product's rules a second time, on
// purpose, so that an error in one place shows in the other.
//
// The order of transactions comes from the ledger, a sequence that numbers the taking,
// the loss and the freeing of each allocation's capacity, and each change of a machine.
// Wall-clock times do not order commits: a transaction that started first may have waited
// for the other one. Where only times exist, the checks allow for Options.Skew.
//
// The one rule to know: a missing record is never a breach by itself. The checks skip
// rows that were archived, or written before the ledger began.
package check
