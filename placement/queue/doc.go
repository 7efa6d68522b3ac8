// Package queue orders the waiting jobs and decides which job a plan considers next.
//
// A Queue holds every waiting job by account and class. An account is a tenant with its
// quota; the jobs of one class and one account form a Line, sorted by the Policy. Shares is
// the tree of accounts during one plan: the Contender with the least dominant share comes
// first (dominant resource fairness), and a quota that is used up excludes a contender from
// further starts. A Turn visits the lines of each contender in queue order.
//
// The order of one account's jobs does not depend on the clock: with aging, the distance
// between the ranks of two jobs stays constant. Only two events change the order: a job
// becomes overdue, or a Ranker returns new ranks.
//
// The package needs only two facts about machines: their total capacity, and the accounts
// of the running jobs.
package queue
