// Package control implements the steps of workflows. Steps run in the replicas of the
// control plane, next to the database. They are local activities, within a workflow's own
// task, and may run twice: each is keyed by job and attempt, and "already so" is success.
//
// A step holds no policy and makes one call of the store. Only Reserve waits, for the
// grant, and for no longer than GrantWait.
//
// The one rule to know: the package links no SQL. Its store is an interface, which
// tracedStore of internal/control/controlplane implements over the stores of db.
package control
