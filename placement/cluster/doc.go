// Package cluster holds the machines, the jobs that occupy them and the free
// capacity of a plan.
//
// A Cluster groups machines into kinds: the machines of one kind differ in free
// capacity alone, as far as any defined class of requests can see. Each kind keeps
// its machines in a Tree from tight to roomy, with the largest free capacity of
// every subtree as a bound, so that a search skips subtrees without room. A Class
// is the set of jobs with one request; it caches the kinds that it may use.
//
// A Ledger is the capacity of the cluster while one plan proceeds. It changes the
// machines in place, reverts any suffix of its entries, and restores the machines
// at the end of the plan.
//
// Caches per machine are slices by Node.Index in the package that reads them. A
// kind reports its changed machines to each such cache through a feed.
//
// Nothing in this package is safe for concurrent use.
package cluster
