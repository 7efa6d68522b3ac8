// Package admission validates work before it is stored, for every submitter: the
// API for users, the control workers for schedules. Both refuse the same work.
//
// Admission places no job and orders no queue; it refuses work, with the reason.
//
// The one rule to know: admission reads without locks. The transaction that stores
// the job enforces limits that must hold under concurrent submits, such as the
// number of waiting jobs of a tenant.
package admission
