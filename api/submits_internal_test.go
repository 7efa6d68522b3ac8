package api

import (
	"context"
	"errors"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"berth"
	"berth/db"
	"berth/internal/lib/background"
)

// fakeBucket is a tenant's rate as the database keeps it.
type fakeBucket struct {
	mu         sync.Mutex
	statements int
	granted    int
	rate       float64 // submits a second; 0: no limit
	burst      float64
	used       float64   // of the burst, at the time at
	at         time.Time // zero: all of the burst is left
	full       bool      // nothing is left, for a long time
	fails      bool
	takes      time.Duration
}

func (b *fakeBucket) take(_ context.Context, _ berth.TenantID, _ []db.SubmitLimit, most int) (db.SubmitGrant, error) {
	time.Sleep(b.takes)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.statements++
	switch {
	case b.fails:
		return db.SubmitGrant{}, errors.New("the database does not answer")
	case b.full:
		return db.SubmitGrant{Wait: 1000 * time.Second, Share: 1}, nil
	case b.rate > 0:
		now := time.Now()
		b.used = max(0, b.used-b.rate*now.Sub(b.at).Seconds())
		b.at = now
		if most = min(most, int(math.Floor(b.burst-b.used))); most == 0 {
			return db.SubmitGrant{Wait: 100 * time.Millisecond, Share: 1}, nil
		}
		b.used += float64(most)
	}
	b.granted += most
	return db.SubmitGrant{Granted: most, Share: 1}, nil
}

// set changes the bucket.
func (b *fakeBucket) set(edit func(b *fakeBucket)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	edit(b)
}

// cost returns the statements and the submits that were taken since the last call of cost.
func (b *fakeBucket) cost() (statements, granted int) {
	synctest.Wait() // for blocks under way
	b.mu.Lock()
	defer b.mu.Unlock()
	statements, granted = b.statements, b.granted
	b.statements, b.granted = 0, 0
	return statements, granted
}

// submitsFrom returns the limit of a replica, and a submit of a tenant of a rate.
func submitsFrom(t *testing.T, b *fakeBucket, rate float64) (s *submits, submit func() (time.Duration, error)) {
	t.Helper()
	owner := background.New()
	t.Cleanup(owner.Close)
	s = &submits{take: b.take, owner: owner, leases: newRecent[berth.TenantID, *submitLease](10)}
	limits := []db.SubmitLimit{{Tenant: "team", Rate: rate}, {Tenant: "org", Rate: 100}}
	return s, func() (time.Duration, error) {
		began := time.Now()
		err := s.allow(t.Context(), "team", limits)
		return time.Since(began), err
	}
}

func TestSubmitsAreTakenAsTheyAreUsed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &fakeBucket{}
		_, submit := submitsFrom(t, b, 100)
		for range 100 { // seldom
			if _, err := submit(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2*submitKeep + time.Second)
		}
		if _, n := b.cost(); n != 100 {
			t.Errorf("100 submits, each long after the one before, took %d of the rate", n)
		}
		for range 100 { // in pairs
			for range 2 {
				if _, err := submit(); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(2*submitKeep + time.Second)
		}
		if _, n := b.cost(); n < 200 {
			t.Errorf("200 submits took %d of the rate", n)
		}
		for range 1000 { // often
			if _, err := submit(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		if statements, n := b.cost(); statements > 60 || n > 1025 {
			t.Errorf("1000 submits took %d statements and %d of the rate, want at most 60 and 1025", statements, n)
		}
		time.Sleep(time.Minute)
		for range 300 { // now and then
			if _, err := submit(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(200 * time.Millisecond)
		}
		if _, n := b.cost(); n > 310 {
			t.Errorf("300 submits, five a second, took %d of the rate", n)
		}
		b.set(func(b *fakeBucket) { b.full = true })
		time.Sleep(2 * submitKeep)
		_, _ = submit() // may be lent
		synctest.Wait()
		if _, err := submit(); err == nil || problemOf(err).retryAfter != "60" {
			t.Fatalf("beyond the limit: %v", err)
		}
		b.set(func(b *fakeBucket) { b.full = false }) // the limit was raised
		time.Sleep(submitRest)
		if _, err := submit(); err != nil {
			t.Errorf("a second after the limit was raised: %v", err)
		}
	})
}

// The statement takes long during a flood of another tenant.
func TestSubmitsBelowTheRateDoNotWaitForTheirBlocks(t *testing.T) {
	t.Parallel()
	for _, pace := range []time.Duration{20 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond, time.Second, 10 * time.Second} {
		t.Run(pace.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				_, submit := submitsFrom(t, &fakeBucket{takes: 50 * time.Millisecond}, 100)
				waited := 0
				for n := range 200 {
					took, err := submit()
					if err != nil {
						t.Fatal(err)
					}
					if n == 0 && took > 0 {
						t.Errorf("the first submit waits %s", took)
					}
					if took > 0 {
						waited++
					}
					time.Sleep(pace)
				}
				// The second submit waits for a block, since a tenant that submits seldom makes no second one, and so may
				// the first ones of a flood.
				if waited > 8 {
					t.Errorf("%d of 200 submits, one each %s, wait for a block", waited, pace)
				}
			})
		})
	}
}

// What is lent is charged: a tenant exceeds its rate by one submit each submitKeep at most.
func TestLentSubmitsCountAgainstTheRate(t *testing.T) {
	t.Parallel()
	for _, pause := range []time.Duration{0, submitKeep / 2, submitKeep + time.Millisecond} {
		t.Run(pause.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				_, submit := submitsFrom(t, &fakeBucket{rate: 1, burst: 2, takes: 10 * time.Millisecond}, 1)
				began, accepted := time.Now(), 0
				for time.Since(began) < time.Minute {
					for range 20 {
						if _, err := submit(); err == nil {
							accepted++
						}
						time.Sleep(100 * time.Millisecond)
					}
					time.Sleep(pause)
				}
				elapsed := time.Since(began)
				if most := 2 + int(elapsed.Seconds()) + int(elapsed/submitKeep) + 1; accepted > most {
					t.Errorf("%d submits in %s at a rate of one a second, want at most %d", accepted, elapsed, most)
				}
			})
		})
	}
}

// After a refusal nothing is lent until a block is granted: a tenant may be above its rate by other replicas.
func TestARefusedTenantBorrowsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &fakeBucket{full: true}
		_, submit := submitsFrom(t, b, 100)
		accepted := 0
		for range 600 {
			if _, err := submit(); err == nil {
				accepted++
			}
			time.Sleep(100 * time.Millisecond)
		}
		if accepted != 1 {
			t.Errorf("%d submits of a tenant whose rate is used up elsewhere, want the first one", accepted)
		}
	})
}

// A submit is not lent while the database does not answer, or where the rate is too low for that.
func TestSubmitsWaitWhereNothingMayBeLent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, submit := submitsFrom(t, &fakeBucket{fails: true}, 100)
		_, _ = submit() // lent
		synctest.Wait()
		for range 10 {
			time.Sleep(submitKeep + time.Second)
			if _, err := submit(); err == nil {
				t.Error("a submit is lent after the last one could not be charged")
			}
		}
		if _, submit = submitsFrom(t, &fakeBucket{full: true}, lendRate/2.0); func() bool { _, err := submit(); return err == nil }() {
			t.Error("a submit is lent at one in two seconds")
		}
		s, submit := submitsFrom(t, &fakeBucket{full: true}, 100)
		s.owner.Close()
		if _, err := submit(); err == nil {
			t.Error("a submit is lent that a server which closes cannot charge")
		}
	})
}
