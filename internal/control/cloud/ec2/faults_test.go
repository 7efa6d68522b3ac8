package ec2_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"berth/internal/control/cloud"
	"berth/internal/control/cloud/ec2"
	"berth/internal/control/cloud/ec2/ec2fake"
)

// requested returns the row of a launch before its first send.
func requested(l cloud.Launch) cloud.Record {
	return cloud.Record{Machine: l.Machine, N: l.N, State: cloud.LaunchRequested, Pool: l.Pool, Offering: l.Offering,
		Token: l.Token, Cluster: l.Cluster, Incarnation: 1, Current: 1}
}

// follow moves the row of a launch whose agent never joins by the decisions of its workflow, until the launch is
// settled. It returns the reasons of the states, and the time that passed on the clock of the cloud.
func follow(t *testing.T, p *ec2.Provider, fake *ec2fake.Cloud, l cloud.Launch) (r cloud.Record, reasons []string,
	passed time.Duration) {
	t.Helper()
	r = requested(l)
	limits, now := cloud.DefaultLimits, time.Now()
	see := func(i cloud.Instance, err error) {
		t.Helper()
		if err == nil {
			r, err = r.See(i, now)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for passed < time.Hour && !r.State.Settled() {
		before := r
		s := cloud.Next(r, limits, now)
		switch s.Act {
		case cloud.ActSend:
			var err error
			if r, err = r.Send(l.Hash(), "key", "join", limits, now); err != nil {
				t.Fatal(err)
			}
			see(p.Create(t.Context(), l))
		case cloud.ActFind:
			see(p.Find(t.Context(), r.Launch()))
		case cloud.ActTerminate:
			if err := p.Terminate(t.Context(), r.At()); err != nil {
				t.Fatal(err)
			}
			r = r.Asked(nil, now)
		case cloud.ActMove:
			r, _ = r.Take(s, limits, now)
		}
		if r.State != before.State {
			reasons = append(reasons, r.Reason)
			if r.State == cloud.LaunchTerminating && !before.NeverJoined(r) {
				t.Error("the launch does not count as one that never joined")
			}
			continue
		}
		passed += s.Wait
		now = now.Add(s.Wait)
		fake.Advance(s.Wait)
	}
	return r, reasons, passed
}

// EC2 shows an instance without an address as running. Its agent never joins, so the launch ends it, and the offering
// is closed as after other machines that never join.
func TestAnInstanceWithoutAnAddressIsEnded(t *testing.T) {
	t.Parallel()
	p, fake := open(t, ec2fake.Options{Boot: time.Minute, End: time.Minute})
	create(t, p, launch("burst-0"))
	fake.Inject(ec2fake.Fault{Action: "RunInstances", Kind: ec2fake.NoAddress})
	r, reasons, passed := follow(t, p, fake, launch("burst-1"))
	all := fake.Instances()
	if all[0].Address == "" || all[1].Address != "" || len(all) != 2 {
		t.Errorf("the addresses are %q and %q of %d instances", all[0].Address, all[1].Address, len(all))
	}
	limit := cloud.DefaultLimits.JoinLimit
	if r.State != cloud.LaunchGone || !strings.Contains(strings.Join(reasons, "; "), "the instance did not join within 15m0s") ||
		passed < limit || passed > limit+5*time.Minute {
		t.Errorf("after %s the launch is %s: %q", passed, r.State, reasons)
	}
	if one, other := fake.State(all[0].ID), fake.State(all[1].ID); one != "running" || other != "terminated" {
		t.Errorf("the instance with an address is %s, the other one %s", one, other)
	}
}

// A cloud that boots two instances for one token shows both. The launch has the one that the answer names. The sweep
// ends the other one, and only that.
func TestTheSecondInstanceOfATokenIsSwept(t *testing.T) {
	t.Parallel()
	p, fake := open(t, ec2fake.Options{})
	l := launch("burst-1")
	fake.Inject(ec2fake.Fault{Action: "RunInstances", Kind: ec2fake.Twice})
	i := create(t, p, l)
	if again := create(t, p, l); again.ID != i.ID || len(fake.Instances()) != 2 {
		t.Errorf("a repetition returns %s, not %s; there are %d instances", again.ID, i.ID, len(fake.Instances()))
	}
	r, err := requested(l).Send(l.Hash(), "key", "join", cloud.DefaultLimits, time.Now())
	if err == nil {
		r, err = r.See(i, time.Now())
	}
	if err != nil {
		t.Fatal(err)
	}
	found, err := p.Find(t.Context(), l)
	if err != nil || found.ID == i.ID {
		t.Fatalf("found %+v, %v: the fault must show the other instance first", found, err)
	}
	if after, err := r.See(found, time.Now()); !errors.Is(err, cloud.ErrSecond) || after != r {
		t.Errorf("the other instance is recorded as %+v, %v", after, err)
	}
	for age, want := range map[time.Duration]string{0: "", cloud.SweepAge: found.ID} {
		list, err := p.List(t.Context(), uid, []string{"eu-test-1"})
		if err != nil || len(list) != 2 {
			t.Fatalf("the list is %+v, %v", list, err)
		}
		s := cloud.Judge(list, map[string]cloud.Record{l.Token: r}, uid, found.Created.Add(age))
		ends := ""
		for _, i := range s.End {
			ends += i.ID
		}
		if ends != want || len(s.Adopt)+len(s.Odd)+s.Left != 0 {
			t.Errorf("after %s the sweep is %+v, want the end of %q", age, s, want)
		}
	}
	if err := p.Terminate(t.Context(), found); err != nil {
		t.Fatal(err)
	}
	if found, err := p.Find(t.Context(), l); err != nil || found.ID != i.ID {
		t.Errorf("after the sweep found %+v, %v", found, err)
	}
}

// EC2 refuses requests of a host whose clock is wrong. The error names the difference, and leaves the call to other
// hosts. The age of an instance by the cloud's clock may delay a sweep, and never ends an instance in use.
func TestTheClocksOfTheCloudAndOfTheHostDiffer(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		skew  time.Duration
		text  string
		swept int // instances of a settled launch that a sweep ends at once
	}{
		{20 * time.Minute, "the clock of this host is 20m0s behind EC2's", 0},
		{-20 * time.Minute, "the clock of this host is 20m0s ahead of EC2's", 1},
	} {
		p, fake := open(t, ec2fake.Options{Skew: c.skew})
		l := launch("burst-1")
		_, err := p.Create(t.Context(), l)
		if e := want(t, err, cloud.Throttle, "RequestExpired"); !e.Unsent {
			t.Errorf("the wrong clock of one host speaks for all: %v", err)
		}
		want(t, err, cloud.Throttle, c.text)
		if n := len(fake.Instances()); n != 0 {
			t.Errorf("a refused request created %d instances", n)
		}
		i := create(t, p, l) // by the SDK, which has learned the difference
		list, err := p.List(t.Context(), uid, []string{"eu-test-1"})
		if err != nil || len(list) != 1 || (time.Until(i.Created)-c.skew).Abs() > 10*time.Minute {
			t.Fatalf("created at %s, listed %+v, %v", i.Created, list, err)
		}
		r := requested(l)
		for state, swept := range map[cloud.LaunchState]int{
			cloud.LaunchSent: 0, cloud.LaunchRunning: 0, cloud.LaunchServing: 0, cloud.LaunchFailed: c.swept,
		} {
			r.State, r.Instance = state, i.ID
			if state == cloud.LaunchSent {
				r.Instance = ""
			}
			s := cloud.Judge(list, map[string]cloud.Record{l.Token: r}, uid, time.Now())
			if len(s.End) != swept || len(s.Adopt)+len(s.Odd) != 0 {
				t.Errorf("a difference of %s, a launch that is %s: the sweep is %+v", c.skew, state, s)
			}
		}
	}
	// Without a difference of the clocks the error names none.
	p, fake := open(t, ec2fake.Options{})
	fake.Inject(ec2fake.Fault{Kind: ec2fake.Refuse, Status: 400, Code: "RequestExpired"})
	_, err := p.Create(t.Context(), launch("burst-1"))
	if want(t, err, cloud.Auth, "RequestExpired"); strings.Contains(err.Error(), "clock") {
		t.Errorf("the error names a clock: %v", err)
	}
}
