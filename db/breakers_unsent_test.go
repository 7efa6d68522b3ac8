package db_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/internal/control/cloud"
	"berth/spec"
)

// unsent is the failure of a call that was not made.
func unsent() *cloud.Error {
	return &cloud.Error{Kind: cloud.Throttle, Unsent: true, Err: errors.New("no program")}
}

// givesUp sends the first launch of a machine, fails its calls by an error, and gives the launch up after the time for
// which a launch is repeated.
func (s *stage) givesUp(m berth.MachineID, e *cloud.Error) cloud.Record {
	s.t.Helper()
	if _, _, err := s.sends(m); err != nil {
		s.t.Fatal(err)
	}
	s.answers(m, e)
	return s.abandons(m)
}

// abandons gives up the first launch of a machine, whose first send is moved into the past.
func (s *stage) abandons(m berth.MachineID) cloud.Record {
	s.t.Helper()
	mustExec(s.t, s.pool, `UPDATE launches SET sent_at = sent_at - interval '5 min' WHERE machine = $1`, m)
	ref := cloud.Ref{Machine: m, N: 1}
	r, err := s.db.Launches.Change(s.t.Context(), ref, func(r cloud.Record, now time.Time) (cloud.Record, error) {
		after, ok := r.Take(cloud.Next(r, cloud.DefaultLimits, now), cloud.DefaultLimits, now)
		if !ok {
			s.t.Errorf("the launch of %s is not given up: %+v", m, r)
		}
		return after, nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

// growth returns the number of launches that count as growth.
func (s *stage) growth() int {
	s.t.Helper()
	list, err := s.db.Scaling.Growth(s.t.Context(), time.Now().Add(-time.Hour))
	if err != nil {
		s.t.Fatal(err)
	}
	return len(list)
}

// A cloud that no replica can call is closed for a while, so that jobs get offers of others, and then tried by one
// launch at a time. The launches that it never got are no growth.
func TestACloudThatNobodyCanCallIsClosed(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	setBurst(t, s.db, "default", spec.Burst{Allow: []string{"lab/eu-1", "lab/eu-2", "dear/eu-1"}})
	for _, m := range []berth.MachineID{"a", "b", "late"} {
		if err := s.asks(cheap, m); err != nil {
			t.Fatal(err)
		}
	}
	far, dear := cheap, cheap
	far.Region, dear.Provider = "eu-2", "dear"
	if r := s.givesUp("a", unsent()); r.State != cloud.LaunchFailed || s.growth() != 2 {
		t.Errorf("the launch is %s, and %d launches are growth", r.State, s.growth())
	}
	for name, c := range map[string]struct {
		r    cloud.Request
		want bool
	}{"the offer": {cheap, true}, "another region": {far, true}, "another provider": {dear, false}} {
		if got := s.closed(c.r); got != c.want {
			t.Errorf("%s: closed is %v", name, got)
		}
	}
	list, err := s.db.Launches.Closed(t.Context(), cheap.Pool, []string{"lab"})
	if err != nil || len(list) != 1 || !list[0].Lasting(time.Now()) ||
		list[0].Reason != "no berthd could call the cloud for machine a: unsent: no program" {
		t.Errorf("closed for the pool: %+v, %v", list, err)
	}
	// A launch from before is withheld, and one that was sent changes nothing.
	if r, _, err := s.sends("late"); !errors.Is(err, cloud.ErrNotSent) || r.State != cloud.LaunchFailed {
		t.Errorf("a launch from before: %s, %v", r.State, err)
	}
	if n := one[int](s, `SELECT step FROM breakers`); n != 1 {
		t.Errorf("step %d", n)
	}
	for step, probe := range []berth.MachineID{"p1", "p2"} {
		s.later(time.Duration(5<<step)*time.Minute + time.Second)
		if err := s.asks(cheap, probe); err != nil {
			t.Fatalf("the probe after step %d: %v", step+1, err)
		}
		if err := s.asks(far, "second"); berth.CodeOf(err) != berth.CodeConflict {
			t.Errorf("a second launch while one tries: %v", err)
		}
		s.givesUp(probe, unsent())
		if n := one[int](s, `SELECT step FROM breakers WHERE until > now()`); n != step+2 || s.growth() != 1 {
			t.Errorf("step %d after probe %s, growth %d", n, probe, s.growth())
		}
	}
	s.later(30 * time.Minute)
	if err := s.asks(cheap, "p3"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.sends("p3"); err != nil {
		t.Fatal(err)
	}
	s.sees("p3")
	if n := one[int](s, `SELECT count(*) FROM breakers`); n != 0 {
		t.Errorf("%d breakers after a success", n)
	}
}

// Another replica can call a cloud that has answered a launch meanwhile.
func TestACloudThatAnswersAnotherLaunchStaysOpen(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(s *stage){
		"an instance": func(s *stage) { s.sees("b") },
		"a refusal": func(s *stage) {
			s.answers("b", &cloud.Error{Kind: cloud.Capacity, Err: errors.New("no room")})
		},
		"none": func(s *stage) { s.answers("b", unsent()) },
	} {
		s := newFleet(t)
		for _, m := range []berth.MachineID{"a", "b"} {
			if _, err := s.db.Launches.Request(t.Context(), cheap, []berth.MachineID{m}, "", "user:test"); err != nil {
				t.Fatal(err)
			}
			if _, _, err := s.sends(m); err != nil {
				t.Fatal(err)
			}
		}
		s.answers("a", unsent())
		answer(s)
		s.abandons("a")
		if got := s.closed(cheap); got != (name == "none") {
			t.Errorf("after %s of another launch: closed is %v", name, got)
		}
	}
}

// A launch whose repeats have waited was not tried for as long as a launch is repeated.
func TestALaunchWhoseRepeatsWaitClosesNoProvider(t *testing.T) {
	t.Parallel()
	for name, waits := range map[string]func(s *stage){
		"a throttled call of another launch": func(s *stage) {
			demand := &cloud.Error{Kind: cloud.Throttle, RetryAfter: 10 * time.Minute}
			s.refuses(cheap, demand, "")
			s.answers("b", demand)
		},
		"five minutes without any berthd": func(s *stage) {
			mustExec(t, s.pool, `
				UPDATE launches
				SET last_sent_at = last_sent_at - interval '5 min', answered_at = answered_at - interval '5 min'
				WHERE machine = 'a'`)
		},
	} {
		s := newFleet(t)
		far := cheap
		far.Region = "eu-2"
		for _, m := range []berth.MachineID{"a", "b"} {
			if _, err := s.db.Launches.Request(t.Context(), cheap, []berth.MachineID{m}, "", "user:test"); err != nil {
				t.Fatal(err)
			}
			if _, _, err := s.sends(m); err != nil {
				t.Fatal(err)
			}
		}
		s.answers("a", unsent())
		waits(s)
		if r := s.abandons("a"); r.ErrorKind != cloud.Unsent || s.closed(far) {
			t.Errorf("after %s: the kind is %s, another region is closed: %v", name, r.ErrorKind, s.closed(far))
		}
	}
}

// While a send has no answer, no text may state that the cloud was not called: an instance may exist.
func TestASendWithoutAnAnswerIsNotShownAsUnsent(t *testing.T) {
	t.Parallel()
	s := newFleet(t)
	if err := s.asks(cheap, "a"); err != nil {
		t.Fatal(err)
	}
	note := db.BurstNote{Job: jobA, Code: "launched", Machines: []berth.MachineID{"a"}}
	if err := s.db.Scaling.WriteNotes(t.Context(), s.term(), []db.BurstNote{note}, nil); err != nil {
		t.Fatal(err)
	}
	for step, want := range []cloud.Kind{"", cloud.Unsent, "", cloud.Unsent} {
		if step%2 == 0 {
			mustExec(t, s.pool, `UPDATE launches SET last_sent_at = last_sent_at - interval '1 min'`)
			if _, _, err := s.sends("a"); err != nil {
				t.Fatal(err)
			}
		} else {
			s.answers("a", unsent())
		}
		shown, err := s.db.Scaling.ShowNotes(t.Context(), []berth.JobID{jobA})
		if err != nil || len(shown[jobA].Launches) != 1 || shown[jobA].Launches[0].ErrorKind != string(want) {
			t.Errorf("step %d: the note shows %+v, want the kind %q, %v", step, shown[jobA].Launches, want, err)
		}
	}
}

// People read the truth about a launch that is withheld: the provider was not called, or another launch tries it.
func TestAWithheldLaunchSaysWhyItWaits(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	setBurst(t, s.db, "default", spec.Burst{Allow: []string{"lab/eu-1"}})
	for _, m := range []berth.MachineID{"a", "b", "c"} {
		if err := s.asks(cheap, m); err != nil {
			t.Fatal(err)
		}
	}
	s.givesUp("a", unsent())
	reason := func(m berth.MachineID, want string) {
		t.Helper()
		r, _, err := s.sends(m)
		if !errors.Is(err, cloud.ErrNotSent) || !strings.Contains(r.Reason, want) ||
			strings.Contains(r.Reason, "refused") {
			t.Errorf("%s: %q, want %q, %v", m, r.Reason, want, err)
		}
	}
	reason("b", "(closed: all offers of lab, until 2")
	s.later(6 * time.Minute)
	if err := s.asks(cheap, "probe"); err != nil {
		t.Fatal(err)
	}
	reason("c", "(closed: all offers of lab, one launch at a time tries it): no berthd could call the cloud")
}

// A launch of the scaler that has certainly no instance repeats its calls like a first send: a refusal of another
// launch ends it without a call, and only one launch tries the offering.
func TestARepeatWithoutAnInstanceObeysTheBreakers(t *testing.T) {
	t.Parallel()
	throttled := &cloud.Error{Kind: cloud.Throttle, Err: errors.New("too many")}
	full, wrong := &cloud.Error{Kind: cloud.Capacity}, &cloud.Error{Kind: cloud.Auth}
	for name, c := range map[string]struct {
		first   *cloud.Error // answer to the first send; nil: none
		refusal *cloud.Error // of another launch of the offering; nil: its send has no answer
		byHand  bool
		state   cloud.LaunchState
		tried   bool
	}{
		"not made, the offer has no room":   {unsent(), full, false, cloud.LaunchFailed, false},
		"throttled, the offer has no room":  {throttled, full, false, cloud.LaunchFailed, false},
		"not made, credentials are refused": {unsent(), wrong, false, cloud.LaunchFailed, false},
		"not made, another launch tries":    {unsent(), nil, false, cloud.LaunchSent, true},
		"in doubt, the offer has no room":   {nil, full, false, cloud.LaunchSent, false},
		"by hand, the offer has no room":    {unsent(), full, true, cloud.LaunchSent, false},
	} {
		s := newFleet(t)
		request := s.asks
		if c.byHand {
			request = func(r cloud.Request, m berth.MachineID) error {
				_, err := s.db.Launches.Request(t.Context(), r, []berth.MachineID{m}, "", "user:test")
				return err
			}
		}
		if err := errors.Join(request(cheap, "a"), request(cheap, "b")); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.sends("a"); err != nil {
			t.Fatal(err)
		}
		if c.first != nil {
			s.answers("a", c.first)
		}
		if c.refusal != nil {
			s.refuses(cheap, c.refusal, "")
		} else if _, _, err := s.sends("b"); err != nil {
			t.Fatal(err)
		}
		mustExec(t, s.pool, `UPDATE launches SET last_sent_at = last_sent_at - interval '1 min' WHERE machine = 'a'`)
		r, _, err := s.sends("a")
		withheld := c.state == cloud.LaunchFailed
		if r.State != c.state || errors.Is(err, cloud.ErrNotSent) != withheld ||
			errors.Is(err, cloud.ErrTried) != c.tried {
			t.Errorf("%s: the launch is %s, %v", name, r.State, err)
		}
		if withheld && !strings.HasPrefix(r.Reason, "not sent again, since no such launch is sent now (closed: ") {
			t.Errorf("%s: the reason is %q", name, r.Reason)
		}
		if n := one[int](s, `SELECT sends FROM launches WHERE machine = 'a'`); withheld && n != 1 {
			t.Errorf("%s: %d sends", name, n)
		}
	}
}

// The repeats of a throttled launch end, too. Its region has a breaker of its own.
func TestALaunchThatIsThrottledToItsEndClosesNoProvider(t *testing.T) {
	t.Parallel()
	s := newFleet(t)
	if err := s.asks(cheap, "a"); err != nil {
		t.Fatal(err)
	}
	s.givesUp("a", &cloud.Error{Kind: cloud.Throttle, Err: errors.New("too many")})
	if s.closed(cheap) || s.growth() != 1 {
		t.Errorf("closed is %v, growth %d", s.closed(cheap), s.growth())
	}
}

// A launch whose calls are not made keeps no other launch of a throttled region waiting.
func TestALaunchWhoseCallsAreNotMadeHoldsNoProbe(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before *cloud.Error // answer to a send before the throttling; nil: none
		answer *cloud.Error // to the sends of the probe; nil: none
		waits  bool         // for the time in which a probe may lack its answer
	}{
		"no call was ever made": {answer: unsent()},
		"calls were made before": {before: &cloud.Error{Kind: cloud.Throttle, Err: errors.New("too many")},
			answer: unsent(), waits: true},
		"no call is answered": {waits: true},
	} {
		s := newFleet(t)
		for _, m := range []berth.MachineID{"a", "b"} {
			if _, err := s.db.Launches.Request(t.Context(), cheap, []berth.MachineID{m}, "", "user:test"); err != nil {
				t.Fatal(err)
			}
		}
		later := func(d time.Duration) {
			s.later(d)
			mustExec(t, s.pool, `
				UPDATE launches
				SET last_sent_at = last_sent_at - $1::interval, doubt_at = doubt_at - $1::interval`, d)
		}
		send := func() {
			t.Helper()
			if _, _, err := s.sends("a"); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		if c.before != nil {
			send()
			s.answers("a", c.before)
		}
		s.refuses(cheap, &cloud.Error{Kind: cloud.Throttle}, "")
		later(10 * time.Second)
		for range 3 {
			send()
			if c.answer != nil {
				s.answers("a", c.answer)
			}
			_, _, err := s.sends("b")
			if _, waits := errors.AsType[*cloud.PauseError](err); waits != c.waits {
				t.Fatalf("%s: another launch: %v", name, err)
			}
			if !c.waits {
				break // it has the probe
			}
			later(41 * time.Second)
		}
		if _, _, err := s.sends("b"); c.waits && err != nil {
			t.Errorf("%s: another launch after %s: %v", name, cloud.TriedFor, err)
		}
	}
}
