package cloud_test

import (
	"testing"
	"time"

	"berth/internal/control/cloud"
)

func TestABreakerStaysOpenLongerWithEachRefusal(t *testing.T) {
	t.Parallel()
	var b cloud.Breaker
	now := start
	for _, want := range []time.Duration{3, 6, 12, 24, 48, 60, 60} {
		if b.Open(now) {
			t.Fatalf("open at %s", now)
		}
		b = b.Trip(cloud.Capacity, "none", now)
		if again := b.Trip(cloud.Capacity, "late", now.Add(time.Minute)); again != b {
			t.Errorf("a refusal while it is open: %+v", again)
		}
		if d := b.Until.Sub(now); d != want*time.Minute {
			t.Errorf("step %d: open for %s, want %d min", b.Step, d, want)
		}
		now = b.Until
	}
	if q := (cloud.Breaker{}).Trip(cloud.Quota, "limit", start); q.Until.Sub(start) != 30*time.Minute {
		t.Errorf("quota: %+v", q)
	}
	if a := (cloud.Breaker{}).Trip(cloud.Auth, "no rights", start); !a.Open(start.AddDate(1, 0, 0)) {
		t.Errorf("auth: %+v", a)
	}
}

func TestARefusalClosesNoMoreThanItIsAbout(t *testing.T) {
	t.Parallel()
	r := cloud.Request{Pool: "p", Provider: "lab", Offering: cloud.Offering{Region: "r", Zone: "z", Type: "x", Market: cloud.Spot}}
	for kind, want := range map[cloud.Kind]string{
		cloud.Capacity: "offering lab/r/z/x/spot", cloud.Quota: "provider lab/r", cloud.Auth: "provider lab",
		cloud.Spec: "pool lab/p", cloud.Network: "pool lab/p", cloud.Throttle: " ", cloud.Unknown: " ", cloud.Mismatch: " ",
	} {
		if b, ok := r.Trips(kind); string(b.Scope)+" "+b.Key != want || ok != (want != " ") {
			t.Errorf("%s closes %s %s", kind, b.Scope, b.Key)
		}
	}
}
