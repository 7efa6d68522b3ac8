package admission

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"berth/db"
	"berth/wire"
)

// slowTable answers after a time, or fails, and counts the queries.
type slowTable struct {
	takes   atomic.Int64 // time.Duration
	fails   atomic.Bool
	queries atomic.Int64
	open    atomic.Int64
	most    atomic.Int64
}

func (x *slowTable) list(ctx context.Context) ([]db.TenantRow, error) {
	x.queries.Add(1)
	n := x.open.Add(1)
	defer x.open.Add(-1)
	x.most.Store(max(n, x.most.Load()))
	select {
	case <-time.After(time.Duration(x.takes.Load())):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if x.fails.Load() {
		return nil, errors.New("the table is locked")
	}
	return []db.TenantRow{{Tenant: wire.Tenant{ID: "a"}}}, nil
}

func TestManySubmitsReadTheQuotasOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		table := &slowTable{}
		q := &quotas{list: table.list, owner: owned(t)}
		table.takes.Store(int64(time.Second))
		crowd := func(n int) (failed int64) {
			var all sync.WaitGroup
			var bad atomic.Int64
			for range n {
				all.Go(func() {
					if rows, err := q.read(t.Context()); err != nil || len(rows) != 1 {
						bad.Add(1)
					}
				})
			}
			all.Wait()
			return bad.Load()
		}
		if bad := crowd(100); bad > 0 || table.queries.Load() != 1 {
			t.Errorf("the first hundred: %d failed, %d queries", bad, table.queries.Load())
		}
		table.takes.Store(int64(time.Hour)) // the table is locked
		for range 20 {
			time.Sleep(time.Second)
			began := time.Now()
			if bad := crowd(30); bad > 0 || time.Since(began) > quotaWait {
				t.Errorf("beside a locked table: %d failed after %s", bad, time.Since(began))
			}
		}
		if n := table.most.Load(); n > 1 {
			t.Errorf("%d queries at once", n)
		}
		time.Sleep(2 * quotaStale)
		if bad := crowd(30); bad != 30 || table.most.Load() > 1 {
			t.Errorf("with rows that are too old: %d of 30 failed, %d queries at once", bad, table.most.Load())
		}
		table.takes.Store(0)
		time.Sleep(quotaPause)
		if bad := crowd(30); bad > 0 {
			t.Errorf("after the lock: %d failed", bad)
		}
	})
}

func TestAChangeOfAQuotaIsSeenAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		table := &slowTable{}
		q := &quotas{list: table.list, owner: owned(t)}
		if _, err := q.read(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * quotaMemory)
		table.takes.Store(int64(time.Second))
		_, _ = q.read(t.Context()) // begins a query
		synctest.Wait()
		q.forget()
		if _, err := q.read(t.Context()); err != nil || table.queries.Load() != 3 {
			t.Errorf("after a change during a query: %v, %d queries, want one that began after the change", err, table.queries.Load())
		}
		table.fails.Store(true)
		q.forget()
		if _, err := q.read(t.Context()); err == nil {
			t.Error("rows from before a change are used where the rows cannot be read")
		}
	})
}
