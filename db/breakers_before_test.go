package db_test

import (
	"errors"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/internal/control/cloud"
	"berth/spec"
)

// leads requests a machine as a leader of the version before does, which knows no quotas and no zones.
func (s *stage) leads(r cloud.Request, m berth.MachineID) {
	s.t.Helper()
	if _, err := s.db.Launches.Request(s.t.Context(), r, []berth.MachineID{m}, "", db.ScalerActor); err != nil {
		s.t.Fatal(err)
	}
}

// A leader of the version before finds the offer of a withheld launch closed. Otherwise it would request such a launch in
// each pass.
func TestALaunchThatIsWithheldForItsZoneClosesItsOffer(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	setBurst(t, s.db, "default", spec.Burst{Allow: []string{"lab/eu-1"}, Spot: "prefer"})
	big, small := like("big", "a", cloud.Spot), like("small", "a", cloud.Spot)
	s.refuses(small, &cloud.Error{Kind: cloud.Network}, "")
	s.leads(big, "big-1")
	if r, _, err := s.sends("big-1"); !errors.Is(err, cloud.ErrNotSent) || r.State != cloud.LaunchFailed {
		t.Fatalf("a launch in a zone without addresses: %s, %v", r.State, err)
	}
	n := one[int](s, `
		SELECT count(*)
		FROM breakers
		WHERE scope = 'offering' AND key = 'lab/eu-1/a/big/spot' AND until > now()`)
	if n != 1 {
		t.Error("the offer is open for a leader of the version before")
	}
}

// The row for older leaders says nothing about the offer: once the region throttles no more, a gang gets all of its
// machines at once, and a refusal of the offer itself counts as its first one.
func TestARowForOlderLeadersIsIgnored(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		refused cloud.Error
		gang    bool // the offer is open for more than one launch after the end
	}{
		"throttling": {cloud.Error{Kind: cloud.Throttle, RetryAfter: 2 * time.Minute}, true},
		"a zone":     {cloud.Error{Kind: cloud.Network}, false},
	} {
		s := newFleet(t)
		s.leads(cheap, "a")
		s.refuses(cheap, &c.refused, "")
		if r, _, err := s.sends("a"); !errors.Is(err, cloud.ErrNotSent) || r.State != cloud.LaunchFailed {
			t.Fatalf("%s: a launch while it is closed: %s, %v", name, r.State, err)
		}
		if n := one[int](s, `SELECT count(*) FROM breakers WHERE scope = 'offering' AND until > now()`); n != 1 {
			t.Errorf("%s: %d rows for older leaders", name, n)
		}
		b, err := s.db.Scaling.Breakers(t.Context())
		if err != nil || len(b) != 1 || b[0].Scope == cloud.ScopeOffering {
			t.Errorf("%s: breakers %+v, %v", name, b, err)
		}
		s.later(30 * time.Minute)
		if c.gang {
			r := cheap
			r.Tenant = "default"
			gang := []berth.MachineID{"g1", "g2"}
			if _, err := s.db.Scaling.Request(t.Context(), s.term(), r, gang, "gang"); err != nil {
				t.Errorf("%s: a gang after its end: %v", name, err)
			}
		}
		s.refuses(cheap, &cloud.Error{Kind: cloud.Capacity}, "")
		if n := one[int](s, `SELECT step FROM breakers WHERE scope = 'offering'`); n != 1 || !s.closed(cheap) {
			t.Errorf("%s: step %d after the first refusal of the offer, closed is %v", name, n, s.closed(cheap))
		}
	}
}

// A launch of a leader of the version before has no probe of a quota or a zone whose time has passed: its first send takes
// the probe, and others wait for the answer.
func TestALaunchOfTheVersionBeforeTriesAQuotaOrAZone(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		refused cloud.Error
	}{{"a quota", cloud.Error{Kind: cloud.Quota, Scope: "eu-1/spot"}}, {"a zone", cloud.Error{Kind: cloud.Network}}} {
		s := newStage(t)
		setBurst(t, s.db, "default", spec.Burst{Allow: []string{"lab/eu-1"}, Spot: "prefer"})
		big, small := like("big", "a", cloud.Spot), like("small", "a", cloud.Spot)
		for _, r := range []cloud.Request{big, small} {
			e := c.refused
			s.refuses(r, &e, "")
		}
		s.later(30 * time.Minute)
		s.leads(big, "big-1")
		s.leads(small, "small-1")
		if r, _, err := s.sends("big-1"); err != nil {
			t.Fatalf("%s has ended: %s, %v", c.name, r.State, err)
		}
		for range 2 {
			if r, _, err := s.sends("small-1"); !errors.Is(err, cloud.ErrTried) || r.State != cloud.LaunchRequested {
				t.Errorf("%s: a second launch while one tries: %s, %v", c.name, r.State, err)
			}
		}
		err := s.asks(like("big", "b", cloud.Spot), "other")
		if c.name == "a quota" && berth.CodeOf(err) != berth.CodeConflict {
			t.Errorf("%s: a request of this version while one tries: %v", c.name, err)
		}
		s.sees("big-1")
		if r, _, err := s.sends("small-1"); err != nil || r.State != cloud.LaunchSent {
			t.Errorf("%s: a launch after the success: %s, %v", c.name, r.State, err)
		}
	}
}

// An offer that is closed as well keeps the launch from being sent, and its probe of the quota stays free.
func TestAWithheldLaunchTakesNoProbe(t *testing.T) {
	t.Parallel()
	s := newFleet(t)
	s.refuses(cheap, &cloud.Error{Kind: cloud.Quota, Scope: "eu-1/spot"}, "")
	s.later(30 * time.Minute)
	s.leads(cheap, "a")
	s.refuses(cheap, &cloud.Error{Kind: cloud.Capacity}, "")
	if r, _, err := s.sends("a"); !errors.Is(err, cloud.ErrNotSent) || r.State != cloud.LaunchFailed {
		t.Errorf("a launch of a closed offer: %s, %v", r.State, err)
	}
	if got := one[string](s, `SELECT probe FROM breakers WHERE scope = 'quota'`); got != "" {
		t.Errorf("launch %s tries the quota", got)
	}
}
