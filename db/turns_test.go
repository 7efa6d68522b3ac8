package db_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"berth/db"
	"berth/db/dbtest"
	"berth/internal/lib/overload"
)

// crowded is a database of four connections: one each for reads, changes, look-ups and work.
func crowded(t *testing.T) *db.DB {
	t.Helper()
	return dbtest.DB(t, db.Options{MaxConns: 4})
}

// take holds a connection. One that is held for longer than half a second counts as a
// sign of overload, unless a sweep holds it.
func take(t *testing.T, d *db.DB, class overload.Class) *pgxpool.Conn {
	t.Helper()
	c, err := d.Pool().Acquire(overload.As(t.Context(), class))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// queued waits until so many wait for a connection.
func queued(t *testing.T, d *db.DB, n int) {
	t.Helper()
	for limit := time.Now().Add(waitLimit); ; time.Sleep(time.Millisecond) {
		have := 0
		for _, l := range d.Limiters() {
			for _, q := range l.Stats().Queued {
				have += q
			}
		}
		if have == n {
			return
		}
		if time.Now().After(limit) {
			t.Fatalf("%d wait, want %d", have, n)
		}
	}
}

func TestEndsGetConnectionsBeforeStartsAndSweeps(t *testing.T) {
	t.Parallel()
	d := crowded(t)
	held := take(t, d, overload.Sweep)
	var all sync.WaitGroup
	var mu sync.Mutex
	var order []overload.Class
	for i, class := range []overload.Class{overload.Sweep, overload.Start, overload.End} {
		all.Go(func() {
			c, err := d.Pool().Acquire(overload.As(t.Context(), class))
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			order = append(order, class)
			mu.Unlock()
			c.Release()
		})
		queued(t, d, i+1)
	}
	held.Release() // one at a time go through it
	all.Wait()
	if len(order) != 3 || order[0] != overload.End || order[1] != overload.Start {
		t.Errorf("served in the order %v", order)
	}
}

func TestReadsOfUsersAndWorkDoNotCrowdEachOtherOut(t *testing.T) {
	t.Parallel()
	d := crowded(t)
	work := take(t, d, overload.Sweep)
	take(t, d, overload.Read).Release()  // though work has all of its own
	take(t, d, overload.Write).Release() // likewise
	work.Release()
	read := take(t, d, overload.Read)
	ctx, cancel := context.WithCancel(overload.As(t.Context(), overload.Read))
	gone := make(chan error)
	go func() {
		_, err := d.Pool().Acquire(ctx)
		gone <- err
	}()
	queued(t, d, 1)
	take(t, d, overload.Sweep).Release() // though reads have all of theirs
	take(t, d, overload.Write).Release() // likewise
	cancel()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Errorf("a reader that has gone got %v", err)
	}
	read.Release()
	for _, l := range d.Limiters() {
		if s := l.Stats(); s.InFlight != 0 || s.Binding() {
			t.Errorf("%s is left with %+v", l.Name(), s)
		}
	}
}

// Every call waits for the look-up of its token, so the look-ups must not wait for the calls.
func TestLookUpsOfTokensWaitForNoOtherShare(t *testing.T) {
	t.Parallel()
	d := crowded(t)
	for _, class := range []overload.Class{overload.Sweep, overload.Write, overload.Read} {
		defer take(t, d, class).Release()
	}
	ctx, cancel := context.WithTimeout(overload.As(t.Context(), overload.Vital), time.Minute)
	defer cancel()
	if _, err := d.Tokens.AuthenticateUsers(ctx, []string{"none"}); err != nil {
		t.Error(err)
	}
	if err := d.Ping(ctx); err != nil {
		t.Error(err)
	}
}

// Look-ups that hang, as all do while a migration has locked their table, must not make a replica unready.
func TestTheProbeOfReadinessWaitsForNoShare(t *testing.T) {
	t.Parallel()
	d := crowded(t)
	for _, class := range []overload.Class{overload.Sweep, overload.Write, overload.Read, overload.Vital} {
		defer take(t, d, class).Release()
	}
	ctx, cancel := context.WithTimeout(overload.As(t.Context(), overload.Vital), waitLimit)
	defer cancel()
	if err := d.Ping(ctx); err != nil {
		t.Error(err)
	}
}

// The shares fit into the pool, so no share waits for the connections of another one.
func TestSharesAreAllConnections(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		conns int
		want  db.Shares
	}{
		{4, db.Shares{Reads: 1, Writes: 1, Lookups: 1, Work: 1, LeastWork: 1, Sweeps: 1}},
		{8, db.Shares{Reads: 3, Writes: 2, Lookups: 1, Work: 2, LeastWork: 1, Sweeps: 1}},
		{16, db.Shares{Reads: 6, Writes: 4, Lookups: 2, Work: 4, LeastWork: 3, Sweeps: 2}},
		{100, db.Shares{Reads: 48, Writes: 25, Lookups: 2, Work: 25, LeastWork: 18, Sweeps: 12}},
	} {
		got := db.SharesOf(c.conns)
		if got != c.want {
			t.Errorf("%d connections: %+v, want %+v", c.conns, got, c.want)
		}
		if all := got.Reads + got.Writes + got.Lookups + got.Work; all != c.conns {
			t.Errorf("%d connections: the shares have %d", c.conns, all)
		}
	}
}

// Leases must not wait for anybody.
func TestSignsOfLifeDoNotWaitForTurns(t *testing.T) {
	t.Parallel()
	d := crowded(t)
	for _, class := range []overload.Class{overload.Sweep, overload.Write, overload.Read, overload.Vital} {
		defer take(t, d, class).Release()
	}
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	if err := d.Leader.RenewBeacon(ctx, "test", time.Minute, time.Minute); err != nil {
		t.Error(err)
	}
}

// Sweeps may read for long. Ends must not wait until one of them is done.
func TestSweepsLeaveConnectionsToEnds(t *testing.T) {
	t.Parallel()
	d := dbtest.DB(t, db.Options{MaxConns: 8}) // two for work
	sweep := take(t, d, overload.Sweep)
	ctx, cancel := context.WithCancel(overload.As(t.Context(), overload.Sweep))
	gone := make(chan error)
	go func() {
		_, err := d.Pool().Acquire(ctx)
		gone <- err
	}()
	queued(t, d, 1)
	take(t, d, overload.End).Release()
	cancel()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Errorf("a sweep that has gone got %v", err)
	}
	sweep.Release()
	for _, l := range d.Limiters() {
		if s := l.Stats(); s.InFlight != 0 || s.Binding() {
			t.Errorf("%s is left with %+v", l.Name(), s)
		}
	}
}
