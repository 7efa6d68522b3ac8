// Package fit finds machines for all members of a job.
//
// A Placer searches the kinds that the job's class may use. Among the machines that
// fit, it chooses by a score (the smallest leftover, see Score) or by the expected
// usable share of the free GPUs (see Packer and docs/design/placement.md), then moves the
// member to a machine with more of its data if the loss is small.
//
// A State holds the caches that outlive a plan: machines grouped by free capacity,
// their cached data and the failed searches of each class. They make plans faster
// and never different.
package fit
