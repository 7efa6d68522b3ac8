// Package preempt makes room for a blocked job by ordering running jobs to stop.
//
// A Search finds the machines where preemption loses the least work, and drops every
// victim that turns out to be unnecessary. The policy limits which jobs may be victims (see
// the type rights). A nomination keeps capacity for one waiting job: the capacity that
// victims release for it, or the capacity of a gang under repair.
//
// An Index caches a lower bound of the cost of preemption for each machine. It only prunes
// the search; it never changes a plan.
package preempt
