package autoscale_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"berth/db"
	"berth/internal/control/autoscale"
)

// Concurrent callers share a reading that none of them ends. It is used for five seconds, and an error is not kept.
func TestQuotesShareAReading(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var reads atomic.Int32
		var fails error
		q := &autoscale.Quoter{Accounts: full().Accounts}
		autoscale.ReadBy(q, func(ctx context.Context) (autoscale.Facts, db.BurstState, error) {
			reads.Add(1)
			time.Sleep(time.Second)
			return *full(), db.BurstState{}, errors.Join(fails, ctx.Err())
		})
		ask := func(ctx context.Context) error {
			_, err := q.Of(ctx, autoscale.Quoted{})
			return err
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended, others := make(chan error, 1), make(chan error, 2)
		go func() { ended <- ask(ctx) }()
		synctest.Wait()
		for range 2 {
			go func() { others <- ask(t.Context()) }()
		}
		synctest.Wait()
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("a caller that has ended: %v", err)
		}
		for range 2 {
			if err := <-others; err != nil {
				t.Errorf("the end of one caller ends the reading of another: %v", err)
			}
		}
		time.Sleep(4 * time.Second)
		if err := ask(t.Context()); err != nil || reads.Load() != 1 {
			t.Errorf("%d readings after four seconds, %v", reads.Load(), err)
		}
		q.Forget()
		if err := ask(t.Context()); err != nil || reads.Load() != 2 {
			t.Errorf("%d readings after a change, %v", reads.Load(), err)
		}
		time.Sleep(5 * time.Second)
		fails = errors.New("no database")
		if err := ask(t.Context()); !errors.Is(err, fails) || reads.Load() != 3 {
			t.Errorf("%d readings after five seconds, %v", reads.Load(), err)
		}
		fails = nil
		if err := ask(t.Context()); err != nil || reads.Load() != 4 {
			t.Errorf("%d readings after an error, %v", reads.Load(), err)
		}
	})
}
