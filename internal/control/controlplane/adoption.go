package controlplane

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"berth/db"
)

// Intervals at which watch reads the quarantine: in service, and during a quarantine.
const (
	lookEvery        = 5 * time.Second
	quarantinedEvery = time.Second
)

// lookLimit bounds one look at the quarantine.
const lookLimit = 5 * time.Second

// errRestoredBelow ends a process whose database was replaced by a restored one: its parts would act on it.
var errRestoredBelow = errors.New("the database was replaced by a restored one, which is quarantined: restart " +
	"berthd")

// adoption delays every part of a control plane except the API until the cluster is not quarantined. The API
// runs, so machines renew their leases and report, and users can read.
type adoption struct {
	cluster *db.Cluster
	log     *slog.Logger
	every   time.Duration // lookEvery; tests shorten it
	limit   time.Duration // lookLimit; tests shorten it
	adopted chan struct{} // closed once the cluster is in service
}

func newAdoption(d *db.DB, log *slog.Logger) *adoption {
	return &adoption{cluster: d.Cluster, log: log, every: lookEvery, limit: lookLimit,
		adopted: make(chan struct{})}
}

// watch looks at the quarantine until ctx ends. A cluster in service that becomes quarantined is an error.
func (a *adoption) watch(ctx context.Context) error {
	every := min(quarantinedEvery, a.every)
	for waited, served := false, false; ; {
		q, quarantined, err := a.look(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			a.log.Warn("cannot read whether the cluster is quarantined, will retry", "err", err)
		case err != nil:
		case quarantined && served:
			return errRestoredBelow
		case quarantined && !waited:
			waited = true
			a.log.Warn("cluster is quarantined after a restore, run berthd backup adopt to end the quarantine",
				"since", q.Since, "backup_taken", q.Taken)
		case !quarantined && !served:
			if waited {
				a.log.Info("cluster adopted")
			}
			served, every = true, a.every
			close(a.adopted)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(every):
		}
	}
}

// look reads the quarantine, within the limit.
func (a *adoption) look(ctx context.Context) (db.Quarantine, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, a.limit)
	defer cancel()
	return a.cluster.Quarantine(ctx)
}

// after returns a part that runs p once the cluster is in service.
func (a *adoption) after(p part) part {
	return func(ctx context.Context) error {
		select {
		case <-a.adopted:
			return p(ctx)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// errWaits is the answer of the readiness check of a quarantined cluster.
var errWaits = errors.New("restored from a backup: waits for berthd backup adopt")

// check returns errWaits while the cluster is quarantined. A failed read is no error here: the check of the
// database reports it.
func (a *adoption) check(ctx context.Context) error {
	if _, quarantined, err := a.cluster.Quarantine(ctx); err == nil && quarantined {
		return errWaits
	}
	return nil
}
