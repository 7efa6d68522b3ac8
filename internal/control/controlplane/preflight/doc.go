// Package preflight examines an installation of berthd and reports everything that would keep it from
// starting or working, in one run: its settings and files, the database, the clock, Temporal, the object
// store, certificates and secret keys. "berthd check-config" prints the findings.
//
// It changes nothing but one object, which it writes to the object store and deletes again. A check whose
// requirement is missing, such as the schema of a database that does not answer, reports advice instead
// of a result.
//
// The one rule to know: a fault is a condition under which berthd does not start or does not work; advice
// is everything else that an operator should look at.
package preflight
