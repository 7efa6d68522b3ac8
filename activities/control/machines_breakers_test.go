package control_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"berth"
	"berth/activities/control"
	"berth/internal/control/cloud"
	"berth/internal/control/cloud/faultcloud"
	"berth/internal/lib/sealer"
	"berth/wire"
)

// requests requests one launch of an admin.
func (s *site) requests(m berth.MachineID, o cloud.Offering) cloud.Request {
	s.t.Helper()
	r := cloud.Request{Pool: "burst", Provider: "test", Offering: o}
	if _, err := s.db.Launches.Request(s.t.Context(), r, []berth.MachineID{m}, "", "user:test"); err != nil {
		s.t.Fatal(err)
	}
	return r
}

// stepOf steps a machine.
func (s *site) stepOf(m berth.MachineID) wire.MachineStepResult {
	s.t.Helper()
	result, err := s.steps(s.cloud).Step(s.t.Context(), wire.MachineInput{Machine: m})
	if err != nil {
		s.t.Fatal(err)
	}
	return result
}

// breakers returns the breakers that concern a request.
func (s *site) breakers(r cloud.Request) []cloud.Breaker {
	s.t.Helper()
	list, _, err := s.db.Launches.Breakers(s.t.Context(), r)
	if err != nil {
		s.t.Fatal(err)
	}
	return list
}

// calls returns the number of calls of Create that reached the cloud.
func (s *site) calls() (n int) {
	s.t.Helper()
	list, err := s.cloud.Calls()
	if err != nil {
		s.t.Fatal(err)
	}
	for _, c := range list {
		if c.Call == "create" {
			n++
		}
	}
	return n
}

func TestAQuotaOfSpotMachinesLeavesTheOthersOpen(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.script(func(x *faultcloud.State) {
		x.Creates = []faultcloud.Fault{{Kind: cloud.Quota, Scope: "r/MaxSpotInstanceCountExceeded"}}
	})
	spot := s.requests("spot-1", cloud.Offering{Region: "r", Type: "big", Market: cloud.Spot})
	s.stepOf("spot-1")
	list := s.breakers(spot)
	if len(list) != 1 || list[0].Scope != cloud.ScopeQuota || list[0].Key != "test/r/MaxSpotInstanceCountExceeded" {
		t.Fatalf("breakers %+v", list)
	}
	dear := spot
	dear.Market = cloud.OnDemand
	if list := s.breakers(dear); len(list) != 0 {
		t.Errorf("on demand: %+v", list)
	}
	if r := s.stepOf(s.scaled("od-1", dear.Offering)); r.State != string(cloud.LaunchRunning) {
		t.Errorf("a launch on demand of the scaler: %+v", r)
	}
}

// scaled requests one launch of the scaler's actor.
func (s *site) scaled(m berth.MachineID, o cloud.Offering) berth.MachineID {
	s.t.Helper()
	_, err := s.db.Launches.Request(s.t.Context(), cloud.Request{Pool: "burst", Provider: "test", Offering: o}, []berth.MachineID{m}, "",
		cloud.ScalerActor)
	if err != nil {
		s.t.Fatal(err)
	}
	return m
}

// A cloud that demands two minutes gets no call of any launch in this time, and then one at a time.
func TestAThrottledCloudIsLeftAloneForTheDemandedTime(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.script(func(x *faultcloud.State) {
		x.Creates = []faultcloud.Fault{{Kind: cloud.Throttle, RetryAfter: 2 * time.Minute}}
	})
	machines := []berth.MachineID{"a-1", "a-2", "a-3"}
	for i, m := range machines {
		s.requests(m, cloud.Offering{Region: "r", Type: fmt.Sprintf("big-%d", i), Market: cloud.OnDemand})
	}
	for range 8 {
		for _, m := range machines {
			if r := s.stepOf(m); time.Duration(r.Wait) > 30*time.Second || r.Settled {
				t.Fatalf("%s: %+v", m, r)
			}
		}
		if n := s.calls(); n != 1 {
			t.Fatalf("%d calls while the cloud throttles", n)
		}
		s.pass(14 * time.Second)
	}
	s.pass(10 * time.Second) // 122 seconds since the refusal
	for _, m := range machines {
		if r := s.stepOf(m); r.State != string(cloud.LaunchRunning) {
			t.Errorf("%s after the demanded time: %+v", m, r)
		}
	}
	if n := s.calls(); n != 4 {
		t.Errorf("%d calls", n)
	}
}

// absent is a provider whose program is missing on this replica.
type absent struct{ *faultcloud.Cloud }

func (absent) Create(context.Context, cloud.Launch) (cloud.Instance, error) {
	return cloud.Instance{}, &cloud.Error{Kind: cloud.Throttle, Unsent: true, Err: errors.New("no program")}
}

// slow is a provider that throttles the termination of instances.
type slow struct{ *faultcloud.Cloud }

func (slow) Terminate(context.Context, cloud.Instance) error {
	return &cloud.Error{Kind: cloud.Throttle, RetryAfter: 3 * time.Minute, Err: errors.New("too many")}
}

func TestACallThatWasNotMadeClosesNothing(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.launch()
	if _, err := s.steps(absent{s.cloud}).Step(t.Context(), wire.MachineInput{Machine: vm}); err != nil {
		t.Fatal(err)
	}
	if list := s.breakers(s.row().Request()); len(list) != 0 {
		t.Errorf("breakers %+v", list)
	}
	s.pass(time.Minute)
	s.step()
	s.is(cloud.LaunchRunning)
}

func TestATerminationWaitsForAsLongAsTheCloudDemands(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.launch()
	s.step()
	s.is(cloud.LaunchRunning)
	s.stop()
	r, err := s.steps(slow{s.cloud}).Step(t.Context(), wire.MachineInput{Machine: vm})
	if err != nil || time.Duration(r.Wait) != 3*time.Minute || r.State != string(cloud.LaunchTerminating) {
		t.Errorf("%+v, %v", r, err)
	}
	if list := s.breakers(s.row().Request()); len(list) != 0 {
		t.Errorf("breakers %+v", list)
	}
}

// The breaker of refused settings knows the settings of the request, also if the file has changed since.
func TestRefusedSettingsAreKnownByTheirHash(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	accounts := func(settings string) cloud.Accounts {
		return cloud.Accounts{URL: "https://berth.test", Providers: map[string]cloud.Account{"test": {Provider: s.cloud,
			Pools: map[string]json.RawMessage{"burst": json.RawMessage(settings)}}}}
	}
	keys, err := sealer.Load(s.keys)
	if err != nil {
		t.Fatal(err)
	}
	step := func(a cloud.Accounts) {
		t.Helper()
		steps := control.NewMachines(control.MachineDeps{Launches: s.db.Launches, Machines: s.db.Machines, Sealer: keys, Clock: s.clock, Accounts: a})
		if _, err := steps.Step(t.Context(), wire.MachineInput{Machine: vm}); err != nil {
			t.Fatal(err)
		}
	}
	bad, good := accounts(`{"image": "bad"}`), accounts(`{"image": "good"}`)
	s.script(func(x *faultcloud.State) {
		x.Creates = []faultcloud.Fault{{Kind: cloud.Throttle}, {Kind: cloud.Spec}}
	})
	s.launch()
	step(bad)
	s.pass(time.Minute)
	step(good) // repeats the stored request
	list := s.breakers(s.row().Request())
	if len(list) != 1 || list[0].Scope != cloud.ScopePool || list[0].Settings == "" {
		t.Fatalf("breakers %+v", list)
	}
	if b := list[0]; b.Settings != bad.Marked(b) || b.Settings == good.Marked(b) {
		t.Errorf("the breaker has the hash %s, bad settings have %s", b.Settings, bad.Marked(b))
	}
}

// rotating is a provider that refuses all calls, and whose credentials are replaced during each call.
type rotating struct {
	*faultcloud.Cloud
	replace func()
}

func (r rotating) Create(context.Context, cloud.Launch) (cloud.Instance, error) {
	r.replace()
	return cloud.Instance{}, &cloud.Error{Kind: cloud.Auth, Err: errors.New("expired")}
}

// rotation is a site whose provider has a file of credentials.
type rotation struct {
	*site
	file string
	keys *sealer.Keys
}

// newRotation returns a rotation with a number of requested launches, which are v-0, v-1 and so on.
func newRotation(t *testing.T, launches int) *rotation {
	t.Helper()
	s := &rotation{site: newSite(t), file: filepath.Join(t.TempDir(), "credentials")}
	keys, err := sealer.Load(s.site.keys)
	if err != nil {
		t.Fatal(err)
	}
	s.keys = keys
	for i := range launches {
		s.requests(berth.MachineID(fmt.Sprintf("v-%d", i)), cloud.Offering{Region: "r", Type: "big", Market: cloud.OnDemand})
	}
	s.write("old")
	return s
}

// write replaces the file of credentials.
func (s *rotation) write(text string) {
	s.t.Helper()
	if err := os.WriteFile(s.file, []byte(text), 0o600); err != nil {
		s.t.Error(err)
	}
}

// accounts returns the accounts of a provider with the file.
func (s *rotation) accounts(p cloud.Provider) cloud.Accounts {
	return cloud.Accounts{URL: "https://berth.test", Providers: map[string]cloud.Account{"test": {Provider: p, Files: []string{s.file}}}}
}

// stepWith steps a machine with a provider.
func (s *rotation) stepWith(p cloud.Provider, m berth.MachineID) {
	s.t.Helper()
	steps := control.NewMachines(control.MachineDeps{Launches: s.db.Launches, Machines: s.db.Machines, Sealer: s.keys, Clock: s.clock,
		Accounts: s.accounts(p)})
	if _, err := steps.Step(s.t.Context(), wire.MachineInput{Machine: m}); err != nil {
		s.t.Error(err)
	}
}

// mark returns the hash of the settings with a text in the file.
func (s *rotation) mark(text string) string {
	s.t.Helper()
	s.write(text)
	return s.accounts(nil).Marked(cloud.Breaker{Scope: cloud.ScopeProvider, Key: "test"})
}

// refused returns the hash of the settings in the breaker of the provider.
func (s *rotation) refused() string {
	s.t.Helper()
	list := s.breakers(cloud.Request{Pool: "burst", Provider: "test"})
	if len(list) != 1 || list[0].Scope != cloud.ScopeProvider || !list[0].Open(s.clock(time.Now())) {
		s.t.Fatalf("breakers %+v", list)
	}
	return list[0].Settings
}

// The breaker has the hash of the credentials of the refused call, although the file is replaced during the call and
// before the refusals of later calls: the new credentials differ from the refused ones and are tried.
func TestRefusedCredentialsAreTheOnesOfTheCall(t *testing.T) {
	t.Parallel()
	s := newRotation(t, 3)
	s.stepWith(rotating{s.cloud, func() { s.write("new") }}, "v-0")
	old := s.mark("old")
	if got := s.refused(); got != old {
		t.Fatalf("the breaker has the hash %s, the refused credentials have %s", got, old)
	}
	s.mark("new") // the file is replaced, and the other launches are refused with the new credentials
	s.stepWith(rotating{s.cloud, func() {}}, "v-1")
	s.stepWith(rotating{s.cloud, func() { s.write("newest") }}, "v-2")
	if got := s.refused(); got != old {
		t.Errorf("after refusals while the breaker was open its hash is %s, that of the refused credentials is %s", got, old)
	}
}

// A call with old credentials is refused after the leader has reopened the breaker for the new ones: the breaker has
// the hash of the old ones, so that the leader reopens the breaker once more.
func TestAnOldCallRefusedAfterAReopeningLeavesTheNewCredentialsToBeTried(t *testing.T) {
	t.Parallel()
	s := newRotation(t, 2)
	fresh := s.mark("new")
	old := s.mark("old")
	s.stepWith(rotating{s.cloud, func() {
		s.stepWith(rotating{s.cloud, func() {}}, "v-1") // the first refusal
		s.write("new")
		s.exec(`UPDATE breakers SET until = clock_timestamp(), probe = '', probe_at = NULL, settings = $1`, fresh)
	}}, "v-0")
	if got := s.refused(); got != old {
		t.Errorf("the breaker has the hash %s; old credentials %s, new ones %s", got, old, fresh)
	}
}

// After a refusal the number of launches without an answer doubles with each round of successes: 1, 2, 4.
func TestASuccessDoublesTheWindowAfterARefusal(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	o := cloud.Offering{Region: "r", Type: "big", Market: cloud.OnDemand}
	s.script(func(x *faultcloud.State) { x.Creates = []faultcloud.Fault{{Kind: cloud.Capacity}} })
	s.requests("refused", o)
	s.stepOf("refused")
	s.exec(`DELETE FROM breakers`) // its time has passed, and the crowd is requested without a probe
	q := newQueue(s)
	list := s.crowd(cloud.ScalerActor)
	for _, want := range []int32{1, 2, 4, crowdSize - 7} {
		q.entered.Store(0)
		ended := s.at(q, list)
		if n := q.entered.Load(); n != want {
			t.Errorf("%d launches without an answer, want %d", n, want)
		}
		q.let()
		rest(ended)
		q.shut()
	}
	if n := len(s.seen().Instances); n != crowdSize {
		t.Errorf("%d instances", n)
	}
}
