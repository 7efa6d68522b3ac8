// Package fit finds machines for all members of a job.
//
// A Placer searches the kinds of machines that the job's class may use. Among the machines
// that fit, it chooses by a score (the smallest leftover, see score.go) or by the expected
// fragmentation cost: the fall of the expected usable share of the free GPUs (see Packer
// and docs/design/placement.md). Then it moves the member to a machine that caches more of
// the job's data, if the loss is small.
//
// A State holds the caches that outlive a plan: machines grouped by free capacity, their
// cached data and the failed searches of each class. These caches only make plans faster;
// they never change a plan.
package fit
