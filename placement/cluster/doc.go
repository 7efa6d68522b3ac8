// Package cluster holds the machines, the jobs that occupy them and the free
// capacity of a plan.
//
// A Cluster groups machines into kinds: no class of requests distinguishes two machines
// of one kind, except by their free capacity. Each kind keeps its machines in a Tree,
// ordered from the least to the most free capacity. Every subtree has its largest free
// capacity as a bound, so that a search skips subtrees without room. A Class is the set
// of jobs with equal requests; it caches the kinds that its jobs may use.
//
// A Ledger tracks the free capacity of the cluster during one plan. It changes the
// machines in place, can revert its latest entries back to any earlier one, and restores
// the machines at the end of the plan.
//
// A cache per machine is a slice indexed by Node.Index, in the package that reads it.
// A kind reports its changed machines to each such cache through a feed.
//
// Nothing in this package is safe for concurrent use.
package cluster
