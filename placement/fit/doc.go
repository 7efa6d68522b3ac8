// Package fit finds machines for all members of a job.
//
// A Placer searches the kinds of machines that the job's class may use. Among the machines
// that fit, it chooses by a score (the smallest leftover, see score.go) or by the expected
// fragmentation cost: the decrease of the expected usable share of the free GPUs (see Packer
// and docs/design/placement.md). Then it moves the member to a machine that caches more of
// the job's data, if the score there is only slightly worse.
//
// A State holds the caches that outlive a plan: the machines grouped by free capacity, the
// data cached on each machine, and the failed searches of each class. These caches only make plans faster;
// they never change a plan.
package fit
