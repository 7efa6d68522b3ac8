package db_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"berth"
	"berth/internal/control/cloud"
	"berth/spec"
)

// refuses records the refusal of a request.
func (s *stage) refuses(r cloud.Request, e *cloud.Error, settings string) {
	s.t.Helper()
	e.Err = errors.New("refused")
	named, ok := r.Trips(e)
	if !ok {
		s.t.Fatalf("%v trips nothing", e)
	}
	named.Settings = settings
	err := s.db.Launches.Trip(s.t.Context(), named, func(b cloud.Breaker, now time.Time) cloud.Breaker { return b.Refused(e, now) })
	if err != nil {
		s.t.Fatal(err)
	}
}

// closed reports whether an open breaker concerns a request.
func (s *stage) closed(r cloud.Request) bool {
	s.t.Helper()
	list, now, err := s.db.Launches.Breakers(s.t.Context(), r)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, b := range list {
		if b.Open(now) {
			return true
		}
	}
	return false
}

// asks requests a machine of the scaler.
func (s *stage) asks(r cloud.Request, m berth.MachineID) error {
	s.t.Helper()
	r.Tenant = "default"
	_, err := s.db.Scaling.Request(s.t.Context(), s.term(), r, []berth.MachineID{m}, "of "+string(m))
	return err
}

// like returns the request cheap for another type, zone and market.
func like(kind, zone string, market cloud.Market) cloud.Request {
	r := cheap
	r.Type, r.Zone, r.Market = kind, zone, market
	return r
}

func TestAQuotaStopsTheOffersThatItHasRefusedAlone(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	setBurst(t, s.db, "default", spec.Burst{Allow: []string{"lab/eu-1"}, Spot: "prefer"})
	big, small := like("big", "a", cloud.Spot), like("small", "a", cloud.Spot)
	for range 2 { // the second refusal, of a call that was under way, adds nothing
		s.refuses(big, &cloud.Error{Kind: cloud.Quota, Scope: "eu-1/spot"}, "")
	}
	for _, c := range []struct {
		name string
		r    cloud.Request
		want bool
	}{
		{"big spot machines", big, true}, {"big spot machines in another zone", like("big", "b", cloud.Spot), true},
		{"big machines on demand", like("big", "a", cloud.OnDemand), false}, {"small spot machines", small, false},
	} {
		if got := s.closed(c.r); got != c.want {
			t.Errorf("%s: closed is %v", c.name, got)
		}
	}
	if err := s.asks(big, "big-1"); berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("a request under the quota: %v", err)
	}
	for m, r := range map[berth.MachineID]cloud.Request{"od-1": like("big", "a", cloud.OnDemand), "small-1": small} {
		if err := s.asks(r, m); err != nil {
			t.Errorf("a request under no quota: %v", err)
		}
	}
	s.refuses(small, &cloud.Error{Kind: cloud.Quota, Scope: "eu-1/spot"}, "")
	if !s.closed(small) || one[string](s, `SELECT array_to_string(covers, ' ') FROM breakers`) != "lab/eu-1/big/spot lab/eu-1/small/spot" {
		t.Errorf("the quota covers %s", one[string](s, `SELECT array_to_string(covers, ' ') FROM breakers`))
	}
	if n := one[int](s, `SELECT step FROM breakers`); n != 1 {
		t.Errorf("step %d after refusals of calls that were under way", n)
	}
	end := one[time.Time](s, `SELECT until FROM breakers`)
	if r, _, err := s.sends("small-1"); !errors.Is(err, cloud.ErrNotSent) || r.State != cloud.LaunchFailed {
		t.Errorf("a launch from before the refusal of its quota: %s, %v", r.State, err)
	}
	// A leader of the version before, which knows no quotas, finds the offer closed.
	if at := one[time.Time](s, `SELECT until FROM breakers WHERE scope = 'offering' AND key = 'lab/eu-1/a/small/spot'`); !at.Equal(end) {
		t.Errorf("the offer of the withheld launch is closed until %s, and its quota until %s", at, end)
	}
	s.later(30 * time.Minute)
	if err := s.asks(big, "big-2"); err != nil { // the probe of the quota
		t.Fatal(err)
	}
	if err := s.asks(like("small", "b", cloud.Spot), "small-2"); berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("a second probe of the quota: %v", err)
	}
	if _, _, err := s.sends("big-2"); err != nil {
		t.Fatal(err)
	}
	s.sees("big-2")
	if n := one[int](s, `SELECT count(*) FROM breakers WHERE scope = 'quota'`); n != 0 {
		t.Errorf("%d quotas after a success under the quota", n)
	}
}

// Refused credentials are not forgotten, nor are machines with less than their offer.
func TestARefusalIsForgottenADayAfterItsEnd(t *testing.T) {
	t.Parallel()
	s := newFleet(t)
	for _, e := range []*cloud.Error{
		{Kind: cloud.Quota, Scope: "request 4711"}, {Kind: cloud.Capacity}, {Kind: cloud.Throttle}, {Kind: cloud.Auth},
	} {
		s.refuses(cheap, e, "")
	}
	err := s.db.Launches.Trip(t.Context(), cheap.JoinBreaker(), func(b cloud.Breaker, now time.Time) cloud.Breaker {
		return b.Trip(cloud.Capacity, "less", now)
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		later time.Duration
		want  int
	}{{23 * time.Hour, 5}, {2 * time.Hour, 2}} {
		s.later(c.later)
		if _, err := s.db.Launches.Prune(t.Context(), s.term(), time.Hour, 10); err != nil {
			t.Fatal(err)
		}
		if n := one[int](s, `SELECT count(*) FROM breakers`); n != c.want {
			t.Errorf("%d breakers, want %d", n, c.want)
		}
	}
}

// reopens compares the breaker of the provider with settings, and returns the number of breakers that are half open by it.
func (s *stage) reopens(settings string) int {
	s.t.Helper()
	list, err := s.db.Scaling.Reopen(s.t.Context(), s.term(), []cloud.Breaker{{Scope: cloud.ScopeProvider, Key: "lab", Settings: settings}})
	if err != nil {
		s.t.Fatal(err)
	}
	return len(list)
}

func TestOtherSettingsReopenABreakerForOneLaunch(t *testing.T) {
	t.Parallel()
	s := newFleet(t)
	refused := func(settings string) {
		t.Helper()
		s.refuses(cheap, &cloud.Error{Kind: cloud.Auth}, settings)
	}
	age := func(d time.Duration) { mustExec(t, s.pool, `UPDATE breakers SET at = at - $1::interval`, d) }
	refused("old")
	age(30 * time.Minute)
	if n := s.reopens("old"); n != 0 || !s.closed(cheap) {
		t.Errorf("the refused settings reopen %d breakers", n)
	}
	refused("old")
	if n := s.reopens("new"); n != 1 || s.closed(cheap) {
		t.Fatalf("other settings reopen %d breakers", n)
	}
	if err := s.asks(cheap, "v1"); err != nil {
		t.Errorf("the first launch with other settings: %v", err)
	}
	if err := s.asks(cheap, "v2"); berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("a second launch before the answer to the first: %v", err)
	}
	refused("new")
	if n := s.reopens("new"); n != 0 || !s.closed(cheap) {
		t.Errorf("refused settings reopen %d breakers", n)
	}
	// A replica with another file would reopen it in each pass.
	for _, c := range []struct {
		age  time.Duration
		want int
	}{{time.Minute, 0}, {time.Minute + time.Second, 1}} {
		age(c.age)
		if n := s.reopens("old"); n != c.want {
			t.Errorf("%s later at step 2: %d", c.age, n)
		}
	}
}

// Rights that are given in the cloud change no settings here, so one launch an hour tries refused credentials. Refused
// settings of a pool are not tried without a change.
func TestRefusedCredentialsAreTriedOnceAnHour(t *testing.T) {
	t.Parallel()
	s := newFleet(t)
	age := func(d time.Duration) { mustExec(t, s.pool, `UPDATE breakers SET at = at - $1::interval`, d) }
	for n := range 3 {
		s.refuses(cheap, &cloud.Error{Kind: cloud.Auth}, "same")
		age(30 * time.Minute)
		if n := s.reopens("same"); n != 0 || !s.closed(cheap) {
			t.Errorf("before the hour has passed, %d breakers are half open", n)
		}
		age(30 * time.Minute)
		if n := s.reopens("same"); n != 1 || s.closed(cheap) {
			t.Fatalf("after an hour, %d breakers are half open", n)
		}
		if err := s.asks(cheap, berth.MachineID(fmt.Sprintf("first-%d", n))); err != nil {
			t.Errorf("the first launch after an hour: %v", err)
		}
		if err := s.asks(cheap, berth.MachineID(fmt.Sprintf("second-%d", n))); berth.CodeOf(err) != berth.CodeConflict {
			t.Errorf("a second launch after an hour: %v", err)
		}
	}
	mustExec(t, s.pool, `DELETE FROM breakers`)
	s.refuses(cheap, &cloud.Error{Kind: cloud.Spec}, "same")
	age(24 * time.Hour)
	list, err := s.db.Scaling.Reopen(t.Context(), s.term(), []cloud.Breaker{{Scope: cloud.ScopePool, Key: "lab/" + cheap.Pool, Settings: "same"}})
	if err != nil || len(list) != 0 {
		t.Errorf("refused settings of a pool are tried without a change: %+v, %v", list, err)
	}
}

// Refusals while a breaker is open leave the hash that tripped it. A row without a hash gets one.
func TestALaterRefusalLeavesTheRefusedSettings(t *testing.T) {
	t.Parallel()
	s := newFleet(t)
	settings := func() string { return one[string](s, `SELECT settings FROM breakers`) }
	for _, c := range []struct{ sent, want string }{{"", ""}, {"old", "old"}, {"new", "old"}, {"", "old"}} {
		s.refuses(cheap, &cloud.Error{Kind: cloud.Auth}, c.sent)
		if got := settings(); got != c.want {
			t.Errorf("after the refusal of %q the breaker has the hash %q", c.sent, got)
		}
	}
	mustExec(t, s.pool, `UPDATE breakers SET until = clock_timestamp()`)
	if s.refuses(cheap, &cloud.Error{Kind: cloud.Auth}, "new"); settings() != "new" {
		t.Errorf("after the refusal of the probe the breaker has the hash %q", settings())
	}
}

// A version before stores no settings: the breaker keeps the ones of the leader, which are not tried twice.
func TestABreakerOfTheVersionBeforeGetsSettings(t *testing.T) {
	t.Parallel()
	s := newFleet(t)
	trip := func() { // as migration 0060's version does, after it has locked the row
		mustExec(t, s.pool, `INSERT INTO breakers (scope, key, until, reason) VALUES ('provider', 'lab', '-infinity', 'none yet') ON CONFLICT DO NOTHING`)
		mustExec(t, s.pool, `UPDATE breakers SET until = NULL, step = step + 1, reason = 'no rights', at = clock_timestamp() - interval '30 minutes',
			probe = '', probe_at = NULL WHERE scope = 'provider' AND key = 'lab'`)
	}
	trip()
	if n := s.reopens("first"); n != 0 || !s.closed(cheap) || one[string](s, `SELECT settings FROM breakers`) != "first" {
		t.Errorf("settings that may be the refused ones reopen %d breakers", n)
	}
	if n := s.reopens("second"); n != 1 {
		t.Errorf("other settings reopen %d breakers", n)
	}
	trip()
	if n := s.reopens("second"); n != 0 || !s.closed(cheap) {
		t.Errorf("settings that the version before has tried reopen %d breakers", n)
	}
	// The breaker of the region that the version before trips for a quota, and its success.
	mustExec(t, s.pool, `DELETE FROM breakers`)
	mustExec(t, s.pool, `INSERT INTO breakers (scope, key, until, reason) VALUES ('provider', 'lab/eu-1', now() + interval '30 minutes', 'quota')`)
	if !s.closed(cheap) {
		t.Error("the quota of the version before is ignored")
	}
}

func TestAChangeOfAPoolReopensItsBreakers(t *testing.T) {
	t.Parallel()
	s := newFleet(t)
	other := cheap
	other.Pool = "q"
	for _, r := range []cloud.Request{cheap, other} {
		s.refuses(r, &cloud.Error{Kind: cloud.Spec}, "bad")
	}
	s.refuses(cheap, &cloud.Error{Kind: cloud.Capacity}, "")
	if err := s.db.Pools.Set(t.Context(), "p", spec.PoolRules{Description: "again"}, "user:test"); err != nil {
		t.Fatal(err)
	}
	if list, err := s.db.Launches.Closed(t.Context(), "p", []string{"lab"}); err != nil || len(list) != 0 {
		t.Errorf("closed for the changed pool: %+v, %v", list, err)
	}
	if list, err := s.db.Launches.Closed(t.Context(), "q", []string{"lab"}); err != nil || len(list) != 1 || list[0].Key != "lab/q" {
		t.Errorf("closed for another pool: %+v, %v", list, err)
	}
	if list, err := s.db.Launches.Closed(t.Context(), "q", nil); err != nil || len(list) != 0 {
		t.Errorf("closed for a pool that no cloud serves: %+v, %v", list, err)
	}
	if n := one[int](s, `SELECT count(*) FROM breakers WHERE scope = 'offering' AND until > now()`); n != 1 {
		t.Error("a change of the pool opens an offer without room")
	}
}

// A zone whose settings have no image is tried again by one launch once an admin changes the pool, or its settings.
func TestAChangeReopensTheZonesOfAPool(t *testing.T) {
	t.Parallel()
	zone := cheap.NetworkBreaker()
	reopens := func(s *stage, settings string) {
		s.t.Helper()
		zone.Settings = settings
		if _, err := s.db.Scaling.Reopen(t.Context(), s.term(), []cloud.Breaker{zone}); err != nil {
			t.Fatal(err)
		}
	}
	sets := func(s *stage, pool string) {
		s.t.Helper()
		if err := s.db.Pools.Set(t.Context(), pool, spec.PoolRules{Description: "again"}, "user:test"); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		change func(s *stage)
		opens  bool
	}{
		"the pool":     {func(s *stage) { sets(s, cheap.Pool) }, true},
		"another pool": {func(s *stage) { sets(s, "q") }, false},
		"the settings": {func(s *stage) { reopens(s, "new") }, true},
		"nothing":      {func(s *stage) { reopens(s, "old") }, false},
	} {
		s := newFleet(t)
		s.refuses(cheap, &cloud.Error{Kind: cloud.Spec, Scope: cheap.Region}, "old")
		if err := s.asks(cheap, "closed"); berth.CodeOf(err) != berth.CodeConflict {
			t.Fatalf("%s: a launch in the closed zone: %v", name, err)
		}
		mustExec(t, s.pool, `UPDATE breakers SET at = at - interval '61 seconds'`) // the least distance
		c.change(s)
		if err := s.asks(cheap, "first"); (err == nil) != c.opens {
			t.Errorf("%s: the first launch: %v", name, err)
		}
		if err := s.asks(cheap, "second"); berth.CodeOf(err) != berth.CodeConflict {
			t.Errorf("%s: a second launch before the answer to the first: %v", name, err)
		}
	}
}

// Addresses return when machines end, so a full subnet closes its zone for the pool alone, and for a time.
func TestAFullSubnetClosesItsZoneForAWhile(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	setBurst(t, s.db, "default", spec.Burst{Allow: []string{"lab/eu-1"}, Spot: "prefer"})
	here, there := like("big", "a", cloud.Spot), like("big", "b", cloud.Spot)
	s.refuses(here, &cloud.Error{Kind: cloud.Network}, "bad")
	other := here
	other.Pool = "q"
	for _, c := range []struct {
		name string
		r    cloud.Request
		want bool
	}{
		{"the offer", here, true}, {"another type", like("small", "a", cloud.OnDemand), true}, {"another zone", there, false},
		{"another pool", other, false},
	} {
		if got := s.closed(c.r); got != c.want {
			t.Errorf("%s: closed is %v", c.name, got)
		}
	}
	if list, err := s.db.Launches.Closed(t.Context(), here.Pool, []string{"lab"}); err != nil || len(list) != 1 || list[0].Until.IsZero() {
		t.Errorf("closed for the pool: %+v, %v", list, err)
	}
	s.later(30 * time.Minute)
	if err := s.asks(here, "big-1"); err != nil {
		t.Fatal(err)
	}
	if err := s.asks(like("small", "a", cloud.Spot), "small-1"); berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("a second launch tries the zone: %v", err)
	}
	if _, _, err := s.sends("big-1"); err != nil {
		t.Fatal(err)
	}
	s.sees("big-1")
	if n := one[int](s, `SELECT count(*) FROM breakers`); n != 0 {
		t.Errorf("%d breakers after a success in the zone", n)
	}
}

// All sends of a region wait while its cloud throttles, also repeats and launches of admins; then one tries.
func TestSendsWaitWhileTheCloudThrottles(t *testing.T) {
	t.Parallel()
	s := newFleet(t)
	if err := s.asks(like("other", cheap.Zone, cheap.Market), "scaled"); err != nil {
		t.Fatal(err)
	}
	far := cheap
	far.Region = "eu-2"
	for m, r := range map[berth.MachineID]cloud.Request{"by-hand": cheap, "far": far} {
		if _, err := s.db.Launches.Request(t.Context(), r, []berth.MachineID{m}, "", "user:test"); err != nil {
			t.Fatal(err)
		}
	}
	waits := func(m berth.MachineID) time.Duration {
		t.Helper()
		r, _, err := s.sends(m)
		pause, ok := errors.AsType[*cloud.PauseError](err)
		if err != nil && !ok {
			t.Fatalf("%s: %s, %v", m, r.State, err)
		}
		if !ok {
			return 0
		}
		return pause.Wait
	}
	throttle := func(after time.Duration) {
		t.Helper()
		s.refuses(cheap, &cloud.Error{Kind: cloud.Throttle, RetryAfter: after}, "")
	}
	throttle(20 * time.Second)
	if err := s.asks(like("third", cheap.Zone, cheap.Market), "asked"); err != nil {
		t.Errorf("a request that would wait for 20 seconds: %v", err)
	}
	for _, m := range []berth.MachineID{"scaled", "by-hand"} {
		if d := waits(m); d <= 10*time.Second || d > 20*time.Second {
			t.Errorf("%s waits for %s", m, d)
		}
	}
	if d := waits("far"); d != 0 {
		t.Errorf("a launch of another region waits for %s", d)
	}
	s.later(20 * time.Second)
	if d := waits("by-hand"); d != 0 {
		t.Errorf("the first launch after the time waits for %s", d)
	}
	if d := waits("scaled"); d != 5*time.Second {
		t.Errorf("a second launch waits for %s while the first one tries", d)
	}
	s.answers("by-hand", &cloud.Error{Kind: cloud.Capacity, Err: errors.New("no room")})
	if n := one[int](s, `SELECT count(*) FROM breakers WHERE scope = 'throttle'`); n != 0 {
		t.Error("another refusal leaves the cloud throttled")
	}
	throttle(10 * time.Minute)
	if r, _, err := s.sends("scaled"); !errors.Is(err, cloud.ErrNotSent) || r.State != cloud.LaunchFailed {
		t.Errorf("a launch of the scaler that would wait for ten minutes: %s, %v", r.State, err)
	}
	if err := s.asks(cheap, "later"); berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("a request while the cloud throttles: %v", err)
	}
}

// answers records the refusal of the last send of a machine's first launch.
func (s *stage) answers(m berth.MachineID, e *cloud.Error) {
	s.t.Helper()
	_, err := s.db.Launches.Change(s.t.Context(), cloud.Ref{Machine: m, N: 1}, func(r cloud.Record, now time.Time) (cloud.Record, error) {
		return r.Refused(e, r.LastSentAt, now), nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// Only a send takes the probe of throttling: a launch that is requested and not sent would hold the others back.
func TestARequestTakesNoProbeOfThrottling(t *testing.T) {
	t.Parallel()
	s := newFleet(t)
	if _, err := s.db.Launches.Request(t.Context(), cheap, []berth.MachineID{"by-hand"}, "", "user:test"); err != nil {
		t.Fatal(err)
	}
	s.refuses(cheap, &cloud.Error{Kind: cloud.Throttle}, "")
	s.refuses(cheap, &cloud.Error{Kind: cloud.Capacity}, "")
	s.later(5 * time.Minute)
	if err := s.asks(cheap, "scaled"); err != nil {
		t.Fatal(err)
	}
	if got := one[string](s, `SELECT string_agg(scope || ' ' || probe, ', ' ORDER BY scope) FROM breakers`); got != "offering scaled/1, throttle " {
		t.Errorf("after the request the probes are %q", got)
	}
	if _, _, err := s.sends("by-hand"); err != nil {
		t.Errorf("a launch by hand before the requested one is sent: %v", err)
	}
}

// A probe of unknown outcome does not stop all launches until it is resolved.
func TestAnotherLaunchTriesAfterAProbeWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	s := newFleet(t)
	for _, m := range []berth.MachineID{"a", "b"} {
		if _, err := s.db.Launches.Request(t.Context(), cheap, []berth.MachineID{m}, "", "user:test"); err != nil {
			t.Fatal(err)
		}
	}
	s.refuses(cheap, &cloud.Error{Kind: cloud.Throttle}, "")
	s.later(5 * time.Second)
	if _, _, err := s.sends("a"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.sends("b"); err == nil {
		t.Fatal("two launches try at once")
	}
	s.later(cloud.TriedFor + time.Second)
	if _, _, err := s.sends("b"); err != nil {
		t.Errorf("after %s without an answer: %v", cloud.TriedFor, err)
	}
}
