package controlplane

import (
	"context"
	"log/slog"
	"time"

	"berth"
	"berth/db"
)

// leased repeats work at intervals on one replica at a time: the one that holds a lease.
type leased struct {
	lease *db.Lease
	every time.Duration
	work  string // of log lines, such as "sweep of clouds"
	log   *slog.Logger
}

// leasedRest is the number of intervals for which a replica leaves the work to the others. Each of them tries to take
// the lease once in an interval.
const leasedRest = 3

// newLeased returns the loop of a named lease. Another replica takes over two intervals after the holder
// has stopped without giving the lease back.
func newLeased(d *db.DB, name string, every time.Duration, work string, log *slog.Logger) leased {
	return leased{lease: d.Leader.OpenLease(name, berth.NewSecret()), every: every, work: work, log: log}
}

// run calls do at each interval while the lease is held, first one interval after the start, until ctx ends.
// It then gives the lease back. It does so too if do reports that another replica should try the
// work, and rests for leasedRest intervals then. do logs its own errors.
func (l leased) run(ctx context.Context, do func(context.Context) (passOn bool)) error {
	defer l.release(ctx)
	tick := time.NewTicker(l.every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		tick.Reset(l.every)
		_, mine, err := l.lease.Acquire(ctx, 2*l.every)
		if err != nil && ctx.Err() == nil {
			l.log.Warn("cannot take a lease, will retry", "work", l.work, "err", err)
		}
		if mine && do(ctx) {
			l.release(ctx)
			tick.Reset(leasedRest * l.every)
		}
	}
}

// release gives the lease back, also if ctx has ended.
func (l leased) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = l.lease.Close(ctx) // else it expires
}
