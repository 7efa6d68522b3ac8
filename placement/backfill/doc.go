// Package backfill reserves starts for blocked jobs and estimates the starts of all
// others.
//
// Reservations hold capacity from a future time on: the earliest time at which the
// jobs that occupy machines have released enough. Other jobs may use that capacity
// only if they end before. A Flow estimates the starts of jobs without a
// reservation: it treats the machines of each kind as one pool.
//
// An Index caches the releases of each machine between plans. It makes plans faster
// and never different.
package backfill
