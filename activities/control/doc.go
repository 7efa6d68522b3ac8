// Package control holds the steps of workflows that happen beside the database.
// They are run as local activities, within a workflow's own task, and may be
// run twice: each is keyed by job and attempt, and "already so" is success.
//
// It never waits for anything longer than a moment, and holds no policy: what a
// step does is one call of the store.
//
// The one rule to know: it links no SQL. The node worker of agents comes from
// the same package as the control worker, so the store is an interface.
package control
