// Package lifecycle decides how jobs go on.
//
//   - Begin decides whether an attempt can be settled yet, and Settle its result: a
//     Settlement lists the values to store.
//   - Fire decides about one time of a schedule: whether its work is submitted, waits or is
//     left out.
//   - Resume decides from which checkpoint the successor of an ended job starts.
//   - Reconcile decides one pass over an array or a pipeline, and the methods of Parent the
//     details: which elements are due, how it ends, and why. Starting decides whether a child
//     may start.
//
// Every function is pure: it gets the facts that package db has read under locks, and
// returns the change. None reads a clock or a row, and none waits. The transaction, the
// statements and the notices after the commit stay in package db, which calls this package
// between its reads and its writes. The facts therefore cannot change between the decision
// and the write. See docs/adr/0038-decisions-are-pure-functions.md.
package lifecycle
