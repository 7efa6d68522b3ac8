// Package intake judges work before it is stored, for all that submit: the API
// for users, the control workers for schedules. What one of them would refuse
// the other refuses as well.
//
// It places nothing and decides no order; it only says no, and why.
//
// The one rule to know: its answers are looks from outside. What must hold
// whoever submits at the same moment, such as how many jobs of a tenant may
// wait, is decided by the transaction that stores the job.
package intake
