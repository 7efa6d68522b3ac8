package admission

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"berth/db"
	"berth/internal/lib/background"
	"berth/placement"
)

// cancelTime is the time that a database takes to end a query whose context has ended.
const cancelTime = 300 * time.Millisecond

// hanging is a query that ends only with its context, and then takes cancelTime.
type hanging struct{ began, ended atomic.Int64 }

func (h *hanging) query(ctx context.Context) error {
	h.began.Add(1)
	<-ctx.Done()
	time.Sleep(cancelTime)
	h.ended.Add(1)
	return ctx.Err()
}

func (h *hanging) machines(ctx context.Context) (*placement.Snapshot, error) {
	return nil, h.query(ctx)
}

func (h *hanging) tenants(ctx context.Context) ([]db.TenantRow, error) { return nil, h.query(ctx) }

// closing closes an owner while n queries hang, and returns an error unless Close returns exactly when they have ended.
func (h *hanging) closing(t *testing.T, owner *background.Group, n int64) {
	t.Helper()
	synctest.Wait()
	if h.began.Load() != n || h.ended.Load() != 0 {
		t.Fatalf("%d queries have begun and %d have ended, want %d and 0", h.began.Load(), h.ended.Load(), n)
	}
	began := time.Now()
	owner.Close()
	if h.ended.Load() != n || time.Since(began) != cancelTime {
		t.Errorf("Close returned after %s, when %d of %d queries had ended", time.Since(began), h.ended.Load(), n)
	}
}

func TestCloseAwaitsTheReadingOfTheMachines(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, owner := &hanging{}, background.New()
		f := &fleet{readings: readings{read: h.machines, owner: owner}}
		answers := make(chan error, 2)
		for n := range 2 { // they share one reading
			go func() { answers <- f.satisfiable(t.Context(), "a", milli(int64(1000+n))) }()
		}
		h.closing(t, owner, 1)
		for range 2 {
			if err := <-answers; !errors.Is(err, errClosed) {
				t.Errorf("a submit during Close: %v", err)
			}
		}
		if err := f.satisfiable(t.Context(), "a", milli(3000)); !errors.Is(err, errClosed) || h.began.Load() != 1 {
			t.Errorf("a submit after Close: %v, %d readings", err, h.began.Load())
		}
	})
}

// Two readings are readingPause apart. A close does not wait for the pause, after which a query would find the
// connections closed.
func TestCloseEndsThePauseBeforeAReading(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, x := fleetOf(t, 8)
		if err := f.satisfiable(t.Context(), "a", milli(1000)); err != nil {
			t.Fatal(err)
		}
		answer := make(chan error, 1)
		go func() { answer <- f.satisfiable(t.Context(), "a", milli(9000)) }() // needs another reading
		synctest.Wait()
		began := time.Now()
		f.readings.owner.Close()
		if took := time.Since(began); took > 0 || x.reads.Load() != 1 {
			t.Errorf("Close took %s, %d readings, want one", took, x.reads.Load())
		}
		if err := <-answer; !errors.Is(err, errClosed) {
			t.Errorf("the submit that waited for the reading: %v", err)
		}
	})
}

// No call waits for the renewal of an answer, but Close does.
func TestCloseAwaitsTheRenewalOfAnAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f, _ := fleetOf(t, 8)
		if err := f.satisfiable(t.Context(), "a", milli(1000)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(fleetMemory + time.Second)
		h := &hanging{}
		f.readings.read = h.machines
		if err := f.satisfiable(t.Context(), "a", milli(1000)); err != nil {
			t.Errorf("a submit whose answer is renewed: %v", err)
		}
		h.closing(t, f.readings.owner, 1)
		if len(f.fits) != 0 { // without a lock: no goroutine is left
			t.Errorf("the answer stays that could not be renewed: %v", f.fits)
		}
	})
}

func TestCloseAwaitsTheQueryForQuotas(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		table, owner := &slowTable{}, background.New()
		q := &quotas{list: table.list, owner: owner}
		if _, err := q.read(t.Context()); err != nil {
			t.Fatal(err)
		}
		h := &hanging{}
		q.list = h.tenants
		time.Sleep(quotaMemory)
		if _, err := q.read(t.Context()); err != nil { // begins a query
			t.Fatal(err)
		}
		q.forget()
		answer := make(chan error, 1)
		go func() {
			_, err := q.read(t.Context())
			answer <- err
		}()
		h.closing(t, owner, 1)
		if err := <-answer; !errors.Is(err, errClosed) {
			t.Errorf("a call that waited for the query: %v", err)
		}
		time.Sleep(quotaPause)
		if _, err := q.read(t.Context()); !errors.Is(err, errClosed) || h.began.Load() != 1 {
			t.Errorf("a call after Close: %v, %d queries", err, h.began.Load())
		}
	})
}
