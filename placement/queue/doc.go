// Package queue orders the waiting jobs and decides which job a plan considers next.
//
// A Queue holds every waiting job by account and class. An account is a tenant with its
// quota; the jobs of one class of one account form a Line, sorted by the Policy. Shares is
// the tree of accounts during one plan: the Contender with the least dominant share comes
// first (dominant resource fairness), and quotas bar a contender from further starts. A
// Turn walks the lines of each contender in queue order.
//
// The order of one account's jobs does not depend on the clock: with aging, the distance
// between the ranks of two jobs stays constant. Only the step at which jobs become overdue,
// and the ranks of a Ranker, move jobs.
//
// The package knows two things about machines: their total capacity, and the accounts of
// the jobs that run.
package queue
