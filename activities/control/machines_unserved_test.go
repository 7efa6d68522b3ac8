package control_test

import (
	"strings"
	"testing"
	"time"

	"berth"
	"berth/activities/control"
	"berth/internal/control/cloud"
	"berth/internal/control/cloud/faultcloud"
	"berth/wire"
)

// A launch that no berthd can send fails after some time, so that its job gets another offer. Until then another berthd
// may send it. A launch that was sent is in doubt, and one of an admin is the admin's.
func TestALaunchThatNoReplicaCanSendFails(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, actor, age string
		keys, sent       bool
		want             cloud.LaunchState
	}{
		{"no such provider", cloud.ScalerActor, "15 min", true, false, cloud.LaunchFailed},
		{"no secret keys", cloud.ScalerActor, "15 min", false, false, cloud.LaunchFailed},
		{"a young launch", cloud.ScalerActor, "14 min", true, false, cloud.LaunchRequested},
		{"a launch of an admin", "user:test", "1 day", true, false, cloud.LaunchRequested},
		{"a launch that was sent", cloud.ScalerActor, "1 day", true, true, cloud.LaunchSent},
	} {
		s := newSite(t)
		big := cloud.Request{Pool: "burst", Provider: "test",
			Offering: cloud.Offering{Region: "r", Type: "big", Market: cloud.OnDemand}}
		_, err := s.db.Launches.Request(t.Context(), big, []berth.MachineID{vm}, "", c.actor)
		if err != nil {
			t.Fatal(err)
		}
		if c.sent {
			s.script(func(x *faultcloud.State) { x.Creates = []faultcloud.Fault{{Kind: cloud.Throttle}} })
			if _, err := s.steps(s.cloud).Step(t.Context(), wire.MachineInput{Machine: vm}); err != nil {
				t.Fatal(err)
			}
			s.exec(`UPDATE launches SET last_sent_at = last_sent_at - interval '1 min'`)
		}
		s.exec(`UPDATE launches SET created_at = created_at - $1::interval`, c.age)
		steps := s.steps(s.cloud)
		if c.keys {
			steps.Accounts = cloud.Accounts{Providers: map[string]cloud.Account{"other": {}}}
		} else {
			steps = control.NewMachines(control.MachineDeps{Launches: s.db.Launches, Machines: s.db.Machines,
				Clock: s.clock, Accounts: steps.Accounts})
		}
		result, err := steps.Step(t.Context(), wire.MachineInput{Machine: vm})
		r := s.row()
		if r.State != c.want || (err == nil) != c.want.Settled() || result.Settled != c.want.Settled() {
			t.Errorf("%s: the launch is %s (%s), the step is %+v, %v", c.name, r.State, r.Reason, result, err)
		}
		if c.want.Settled() && !strings.HasPrefix(r.Reason, "not sent for 15m0s: ") {
			t.Errorf("%s: the reason is %q", c.name, r.Reason)
		}
	}
}

// A launch in doubt whose provider has left the cloud file becomes unresolved like any other one: the alert counts it,
// and an admin can settle it.
func TestALaunchInDoubtWithoutItsProviderIsUnresolved(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.launch()
	s.script(func(x *faultcloud.State) { x.Creates = []faultcloud.Fault{{Kind: cloud.Unknown}} })
	s.step()
	s.is(cloud.LaunchSent)
	lacks := s.steps(s.cloud)
	lacks.Accounts = cloud.Accounts{Providers: map[string]cloud.Account{"other": {}}}
	for _, c := range []struct {
		after time.Duration
		want  cloud.LaunchState
	}{
		{time.Minute, cloud.LaunchSent}, // another replica may have the provider
		{cloud.DefaultLimits.Patience, cloud.LaunchUnresolved},
		{time.Hour, cloud.LaunchUnresolved},
	} {
		s.pass(c.after)
		_, err := lacks.Step(t.Context(), wire.MachineInput{Machine: vm})
		if berth.CodeOf(err) != berth.CodeUnavailable {
			t.Errorf("the step: %v", err)
		}
		s.is(c.want)
	}
	r := s.row()
	if !strings.Contains(r.Reason, "no provider test") {
		t.Errorf("the reason is %q", r.Reason)
	}
	if _, err := r.Absent("user:test"); err != nil {
		t.Error(err)
	}
	s.step() // by a replica that has the provider again
	s.is(cloud.LaunchUnresolved)
}
