// Package preempt makes room for a blocked job by ordering running jobs to stop.
//
// A Search finds the machines where preemption loses the least work, and spares every
// victim that turns out to be unnecessary. The policy limits the victims of a job (see the
// type rights). Nominations keep the capacity that victims release, and the capacity of a
// gang under repair, for one waiting job each.
//
// An Index caches a lower bound of the cost of preemption for each machine. It only prunes
// the search; it never changes a plan.
package preempt
