// Package admission validates work before it is stored, for every submitter: the
// API for users, the control workers for schedules. Both refuse the same work.
//
// Admission places nothing and orders nothing; it refuses, with the reason.
//
// The one rule to know: admission reads without locks. What must hold under
// concurrent submits, such as how many jobs of a tenant may wait, is decided by
// the transaction that stores the job.
package admission
