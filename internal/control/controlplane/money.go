package controlplane

import (
	"bytes"
	"context"
	"crypto/sha256"
	"log/slog"
	"maps"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"berth/db"
	"berth/internal/control/cloud"
	"berth/internal/control/cloud/offers"
)

const (
	settleEvery = time.Minute
	offersEvery = time.Hour
	offersRetry = time.Minute
	// moneyLease is the name of the lease under which one replica settles costs. Two replicas at once would
	// settle each second once all the same.
	moneyLease = "cloud-money"
)

// biller settles the costs of machines of clouds, and warns of spend limits that are reached.
type biller struct {
	spend  *db.Spend
	leased leased
	log    *slog.Logger
}

// addMoney adds the biller, also without providers, since another replica may have them; and the loader of
// the offers, if a file of offers is configured.
func (a *assembly) addMoney() {
	b := &biller{spend: a.db.Spend, log: a.log,
		leased: newLeased(a.db, moneyLease, settleEvery, "costs of cloud machines", a.log)}
	a.middle = append(a.middle, b.run)
	if a.accounts.Offers == "" {
		return
	}
	l := &offerLoader{offers: a.db.Offers, accounts: a.accounts, log: a.log}
	a.middle = append(a.middle, l.run)
}

// run settles at intervals until ctx ends.
func (b *biller) run(ctx context.Context) error {
	return b.leased.run(ctx, func(ctx context.Context) bool {
		if err := b.settle(ctx); err != nil && ctx.Err() == nil {
			b.log.Warn("cannot settle the costs of cloud machines, will retry", "err", err)
		}
		return false // the database has failed, for all replicas
	})
}

// settle settles the costs up to now, and logs each level of a limit once in its period.
func (b *biller) settle(ctx context.Context) error {
	if _, err := b.spend.Settle(ctx); err != nil {
		return err
	}
	reached, err := b.spend.Alert(ctx)
	for _, r := range reached {
		b.log.Warn("spend limit level reached", "tenant", r.Tenant, "level", r.Level, "used_dollars", r.Used,
			"limit_dollars", r.Limit, "period_start", r.Period.UTC().Format(time.DateOnly))
	}
	return err
}

// offerLoader copies the file of offers into the database: at the start, each hour, and on SIGHUP, if the
// file has changed since it was loaded.
type offerLoader struct {
	offers   *db.Offers
	accounts cloud.Accounts
	log      *slog.Logger
	loaded   [sha256.Size]byte // of the file
}

// run loads until ctx ends.
func (l *offerLoader) run(ctx context.Context) error {
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	for {
		wait := offersEvery
		if err := l.load(ctx); err != nil && ctx.Err() == nil {
			l.log.Warn("cannot load the offers, will retry", "file", l.accounts.Offers, "err", err)
			wait = offersRetry
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		case <-hangup:
		}
	}
}

// load replaces the offers of each configured provider if the file has changed. A file with one bad line is
// refused as a whole.
func (l *offerLoader) load(ctx context.Context) error {
	text, err := os.ReadFile(l.accounts.Offers)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(text)
	if sum == l.loaded {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(l.accounts.Providers)) {
		all, err := offers.Read(bytes.NewReader(text), name)
		if err != nil {
			return err
		}
		if err := l.offers.Replace(ctx, name, all, "berthd"); err != nil {
			return err
		}
		l.log.Info("offers loaded", "provider", name, "offers", len(all), "file", l.accounts.Offers)
	}
	l.loaded = sum
	return nil
}
