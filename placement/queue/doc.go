// Package queue decides which job is next.
//
// A Queue holds every waiting job by account and class. An account is a tenant
// with its quota; the jobs of one class of one account form a Line, sorted by the
// Policy. Shares is the tree of accounts during one plan: the contender with the
// least share comes first, and quotas bar it from further starts. A Turn walks the
// lines of each contender in order.
//
// The order of one account's jobs does not depend on the clock: with aging, the
// distance between two jobs stays constant. Only the step at which jobs become
// overdue, and a Ranker, sort them again.
//
// The package knows no machines beyond their total capacity and the accounts of the
// jobs that run.
package queue
