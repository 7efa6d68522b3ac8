package api

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"berth"
	"berth/db"
)

// fakeBucket is a tenant's rate as the database keeps it.
type fakeBucket struct {
	statements, taken int
	full              bool // nothing is left, for a long time
}

func (b *fakeBucket) take(_ context.Context, _ berth.TenantID, _ []db.SubmitLimit, most int) (db.SubmitGrant, error) {
	b.statements++
	if b.full {
		return db.SubmitGrant{Wait: 1000 * time.Second, Share: 1}, nil
	}
	b.taken += most
	return db.SubmitGrant{Granted: most, Share: 1}, nil
}

func TestSubmitsAreTakenAsTheyAreUsed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &fakeBucket{}
		s := &submits{take: b.take, leases: newRecent[berth.TenantID, *submitLease](10)}
		limits := []db.SubmitLimit{{Tenant: "team", Rate: 100}, {Tenant: "org", Rate: 100}}
		submit := func() error { return s.allow(t.Context(), "team", limits) }
		for range 100 { // seldom
			if err := submit(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(2*submitKeep + time.Second)
		}
		if b.taken != 100 {
			t.Errorf("100 submits, each long after the one before, took %d of the rate", b.taken)
		}
		*b = fakeBucket{}
		for range 1000 { // often
			if err := submit(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		if b.statements > 60 || b.taken > 1025 {
			t.Errorf("1000 submits took %d statements and %d of the rate, want at most 60 and 1025", b.statements, b.taken)
		}
		*b = fakeBucket{full: true}
		time.Sleep(2 * submitKeep)
		if err := submit(); err == nil || problemOf(err).retryAfter != "60" {
			t.Fatalf("beyond the limit: %v", err)
		}
		b.full = false // the limit was raised
		time.Sleep(submitRest)
		if err := submit(); err != nil {
			t.Errorf("a second after the limit was raised: %v", err)
		}
	})
}
