// Package check verifies that a history keeps Berth's promises: given what the
// rows of the database say, and what the container engines saw, it lists every
// breach of the invariants of docs/operate/checking.md, with the rows that prove it.
//
// It is pure: Verify takes a whole history, Run streams one from a Source, one
// job and one machine at a time, and both apply the same functions. It knows
// nothing of how the product decides; where it states a rule that the product
// states too, it does so on purpose in its own words.
//
// The one rule to know: absence of a record is never a breach by itself. Rows
// that were archived, or written before the ledger began, are left alone.
package check
