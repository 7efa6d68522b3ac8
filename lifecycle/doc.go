// Package lifecycle decides how jobs go on. Settle decides the result of an attempt, Begin
// whether an attempt can be settled yet, and Settlement lists the values to store.
//
// Every function is pure: it gets the facts that package db has read under locks, and
// returns the change. None reads a clock or a row, and none waits. The transaction, the
// statements and the notices after the commit stay in package db, which calls this package
// between its reads and its writes. The facts therefore cannot change between the decision
// and the write. See docs/adr/0038-decisions-are-pure-functions.md.
package lifecycle
