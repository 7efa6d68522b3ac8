// Package delivery runs senders: it claims due items of an outbox in the database and delivers each of them in a
// goroutine. Any number of processes may deliver from one outbox, since a claim gives an item to one of them for the
// time of a lease.
//
// The one rule to know: slow receivers of one tenant must not delay the items of others. So a tenant has at
// most twice Share items under way, and its items are left out of claims from Share on.
package delivery

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"berth"
)

// Bounds limit one claim.
type Bounds struct {
	Crowded []berth.TenantID // tenants with a full share, whose items are left out
	Each    int              // most items of one tenant
	Limit   int              // most items in all
}

// Loop delivers the items of one outbox. All fields are required.
type Loop[T any] struct {
	What    string // items in log lines, such as "webhooks"
	Claim   func(context.Context, Bounds) ([]T, error)
	Tenant  func(T) berth.TenantID
	Deliver func(context.Context, T) // delivers and records the result
	Look    time.Duration            // between two claims of an empty outbox
	Most    int                      // items under way in this process
	Share   int                      // items of one tenant in a claim
	Logger  *slog.Logger

	mu       sync.Mutex
	underWay map[berth.TenantID]int
	total    int
}

// Run delivers until ctx ends, and returns after the deliveries that are under way. An item whose delivery was
// cut off is due again at the end of its lease.
func (l *Loop[T]) Run(ctx context.Context) error {
	l.underWay = map[berth.TenantID]int{}
	done := make(chan struct{}, 1)
	var deliveries sync.WaitGroup
	defer deliveries.Wait()
	look := time.NewTicker(l.Look)
	defer look.Stop()
	for {
		list, err := l.claim(ctx)
		if err != nil && ctx.Err() == nil {
			l.Logger.Warn("cannot read due "+l.What, "err", err)
		}
		for _, item := range list {
			deliveries.Go(func() {
				defer l.ended(item, done)
				l.Deliver(ctx, item)
			})
		}
		if len(list) > 0 {
			continue // there may be more
		}
		select {
		case <-look.C:
		case <-done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// claim takes due items, up to the free places.
func (l *Loop[T]) claim(ctx context.Context) ([]T, error) {
	l.mu.Lock()
	b := Bounds{Each: l.Share, Limit: l.Most - l.total}
	for tenant, n := range l.underWay {
		if n >= l.Share {
			b.Crowded = append(b.Crowded, tenant)
		}
	}
	l.mu.Unlock()
	if b.Limit == 0 {
		return nil, nil
	}
	list, err := l.Claim(ctx, b)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, item := range list {
		l.underWay[l.Tenant(item)]++
		l.total++
	}
	return list, err
}

// ended frees the place of an item and wakes the loop, which may have waited for a free place.
func (l *Loop[T]) ended(item T, done chan<- struct{}) {
	tenant := l.Tenant(item)
	l.mu.Lock()
	if l.underWay[tenant]--; l.underWay[tenant] == 0 {
		delete(l.underWay, tenant)
	}
	l.total--
	l.mu.Unlock()
	select {
	case done <- struct{}{}:
	default:
	}
}

// Pause returns how long to wait after a number of tries: first after one, four times as long after each
// further one, at most longest. It adds a jitter of a fifth, since receivers that were away must not be called
// by all senders at once.
func Pause(tries int, first, longest time.Duration) time.Duration {
	wait := first
	for range min(tries-1, 20) {
		wait = min(4*wait, longest)
	}
	return wait - wait/10 + rand.N(wait/5+1)
}
