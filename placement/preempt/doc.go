// Package preempt makes room for a blocked job by ordering running jobs to stop.
//
// A Search finds the machines where the least work is lost, and spares every victim
// that is not needed. The policy limits the victims that a job may displace (see
// the type rights). Nominations keep the capacity that victims release, and the
// capacity of a gang under repair, for one waiting job each.
//
// An Index caches a lower bound of the cost of preemption for each machine. It only
// prunes the search and never changes a plan.
package preempt
