// Package backfill reserves starts for blocked jobs and estimates the starts of all
// other jobs.
//
// A reservation holds capacity from a future time on: the earliest time at which
// running jobs will have released enough capacity. Other jobs may use this capacity
// only if they end before that time. A Flow estimates the starts of jobs without a
// reservation: it treats the machines of each kind as one pool.
//
// An Index caches the future releases of each machine between plans. It makes plans
// faster and never changes a plan.
package backfill
