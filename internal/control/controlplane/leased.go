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

// newLeased returns the loop of a named lease. Another replica takes over two intervals after the holder
// has stopped without giving the lease back.
func newLeased(d *db.DB, name string, every time.Duration, work string, log *slog.Logger) leased {
	return leased{lease: d.Leader.OpenLease(name, berth.NewSecret()), every: every, work: work, log: log}
}

// run calls do at each interval while the lease is held, first one interval after the start, until ctx ends.
// It then gives the lease back. do reports its own errors.
func (l leased) run(ctx context.Context, do func(context.Context)) error {
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = l.lease.Close(ctx) // else it expires
	}()
	tick := time.NewTicker(l.every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		_, mine, err := l.lease.Acquire(ctx, 2*l.every)
		if err != nil && ctx.Err() == nil {
			l.log.Warn("cannot take a lease, will retry", "work", l.work, "err", err)
		}
		if mine {
			do(ctx)
		}
	}
}
