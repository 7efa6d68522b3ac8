package controlplane

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"berth"
	"berth/db"
	"berth/internal/control/cloud"
)

const (
	sweepEvery = time.Minute
	// sweepLease begins the name of the lease under which one replica sweeps a provider; the name of the provider
	// follows, since a replica may lack it. Two sweeps at once would do no harm, but end twice as many instances.
	sweepLease = "cloud-sweep/"
)

// sweeper ends instances of the cluster that no launch needs, and gives rows to instances that a
// restored database has lost. cloud.Judge decides.
type sweeper struct {
	launches *db.Launches
	accounts cloud.Accounts
	log      *slog.Logger
	now      func() time.Time
	counts   *prometheus.CounterVec // by provider and result
}

// The results of a sweep, in berth_cloud_sweeps_total.
const (
	sweepDone   = "done"
	sweepFailed = "failed"
)

// newSweepCounts returns the counters of sweeps. The series of a configured provider exist once its sweep is added.
func newSweepCounts() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "berth", Subsystem: "cloud", Name: "sweeps_total",
		Help: "Sweeps of the providers of the cloud file by this process, by result: done, or failed, after which " +
			"another process tries."}, []string{"provider", "result"})
}

// addSweeper adds the sweep of the configured providers.
func (a *assembly) addSweeper() {
	if len(a.accounts.Providers) == 0 {
		return
	}
	every := sweepEvery / time.Duration(max(a.opts.CloudFaster, 1))
	s := &sweeper{launches: a.db.Launches, accounts: a.accounts, log: a.log, now: time.Now, counts: a.sweeps}
	if a.opts.CloudFaster > 1 {
		s.now = func() time.Time { return a.opts.CloudClock(time.Now()) }
	}
	for _, name := range slices.Sorted(maps.Keys(a.accounts.Providers)) {
		s.counts.WithLabelValues(name, sweepDone)
		s.counts.WithLabelValues(name, sweepFailed)
		l := newLeased(a.db, sweepLease+name, every, "sweep of provider "+name, a.log)
		a.middle = append(a.middle, func(ctx context.Context) error { return s.run(ctx, l, name) })
	}
}

// run sweeps a provider at intervals until ctx ends. The first sweep is an interval after the start. A failed sweep
// goes to another replica: this one may have no network, program or credentials for the cloud.
func (s *sweeper) run(ctx context.Context, l leased, name string) error {
	return l.run(ctx, func(ctx context.Context) bool {
		err := s.sweep(ctx, name)
		switch {
		case err == nil:
			s.counts.WithLabelValues(name, sweepDone).Inc()
		case ctx.Err() == nil:
			s.counts.WithLabelValues(name, sweepFailed).Inc()
			s.log.Warn("cannot sweep a provider, will retry", "provider", name, "err", err)
		}
		return err != nil
	})
}

// sweep lists the instances of one provider, reads the rows after that, and carries out the decision.
// The order matters: the row of a launch is committed before its instance exists, so an instance
// without a row in the later reading has none.
func (s *sweeper) sweep(ctx context.Context, name string) error {
	account := s.accounts.Providers[name]
	_, cluster, incarnation, err := s.launches.ByToken(ctx, nil)
	if err != nil {
		return err
	}
	list, err := account.List(ctx, cluster, account.Regions)
	if err != nil {
		return err
	}
	tokens := make([]string, len(list))
	for i := range list {
		tokens[i] = list[i].Token
	}
	rows, cluster, _, err := s.launches.ByToken(ctx, tokens)
	if err != nil {
		return err
	}
	decision := cloud.Judge(list, rows, cluster, s.now())
	adopted := true
	for _, i := range decision.Adopt {
		adopted = s.adopt(ctx, name, i) && adopted
	}
	// An instance that the rows refuse has the name of another launch, or none: no launch can repeat it.
	if adopted {
		if err := s.launches.Listed(ctx, name, incarnation); err != nil {
			return err
		}
	}
	for _, i := range decision.Odd {
		s.log.Error("instance of a settled launch from before a restore", "provider", name, "machine", i.Machine,
			"launch", i.N, "instance", i.ID)
	}
	for _, i := range decision.End {
		s.log.Warn("terminating an instance that no launch needs", "provider", name, "machine", i.Machine,
			"launch", i.N, "instance", i.ID, "created", i.Created)
		if err := account.Terminate(ctx, i); err != nil {
			s.log.Warn("cannot terminate an instance, will retry", "provider", name, "instance", i.ID, "err", err)
		}
	}
	if decision.Left > 0 {
		s.log.Error("more instances than one sweep may terminate", "provider", name, "left", decision.Left)
	}
	return nil
}

// adopt gives an instance a row, and records it there as seen. It reports false if the database did not
// answer, so that the next sweep tries again. Any other error is final for this instance, and must not
// keep launches waiting for a complete listing.
func (s *sweeper) adopt(ctx context.Context, provider string, i cloud.Instance) bool {
	r, err := s.launches.Adopt(ctx, provider, i)
	if err == nil {
		_, err = s.launches.Change(ctx, r.Ref(), func(now cloud.Record, at time.Time) (cloud.Record, error) {
			next, ok := now.Take(cloud.Next(now, cloud.DefaultLimits, at), cloud.DefaultLimits, at)
			if !ok {
				return now, nil // its workflow was first
			}
			return next, nil
		})
	}
	if err != nil {
		s.log.Error("cannot adopt an instance from before a restore", "provider", provider, "machine", i.Machine,
			"launch", i.N, "instance", i.ID, "err", err)
		return berth.CodeOf(err) != berth.CodeUnavailable
	}
	s.log.Warn("adopted an instance from before a restore", "provider", provider, "machine", i.Machine, "launch", i.N,
		"instance", i.ID)
	return true
}
