package autoscale_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"berth"
	"berth/db"
	"berth/internal/control/autoscale"
	"berth/internal/control/cloud"
	"berth/internal/control/cloud/faultcloud"
	"berth/spec"
)

// A quota of spot machines leaves the offers on demand, and a throttled region none.
func TestTheScalerHeedsThePartThatTheCloudNames(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		b    cloud.Breaker
		want cloud.Market
	}{
		{"nothing is closed", cloud.Breaker{Scope: cloud.ScopeQuota, Key: "lab/here/spot", Covers: []string{"lab/here/other/spot"}}, cloud.Spot},
		{"a quota of spot machines", cloud.Breaker{Scope: cloud.ScopeQuota, Key: "lab/here/spot", Covers: []string{"lab/here/big/spot"}}, cloud.OnDemand},
		{"a quota of the region", cloud.Breaker{Scope: cloud.ScopeProvider, Key: "lab/here"}, ""},
		{"a throttled region", cloud.Breaker{Scope: cloud.ScopeThrottle, Key: "lab/here"}, ""},
		{"a region that throttles for some seconds",
			cloud.Breaker{Scope: cloud.ScopeThrottle, Key: "lab/here", Until: now.Add(20 * time.Second)}, cloud.Spot},
		{"a region that has throttled",
			cloud.Breaker{Scope: cloud.ScopeThrottle, Key: "lab/here", Until: now.Add(-time.Hour)}, cloud.Spot},
		{"another throttled region", cloud.Breaker{Scope: cloud.ScopeThrottle, Key: "lab/there"}, cloud.Spot},
	} {
		f := full()
		f.Offers = append(f.Offers, f.Offers[0])
		spotOf(f)
		f.Offers[0].Price = 1
		c.b.Step, c.b.Reason = 1, "refused"
		if c.b.Until.IsZero() {
			c.b.Until = now.Add(time.Minute)
		}
		f.Breakers = []db.ProbedBreaker{{Breaker: c.b}}
		wait(f, "j1", "a", 1)
		f.Saves = map[berth.JobID]bool{"j1": true}
		out := autoscale.Decide(*f)
		var got cloud.Market
		if len(out.Requests) > 0 {
			got = out.Requests[0].Market
		}
		if got != c.want {
			t.Errorf("%s: launches %q, want %q (%+v)", c.name, got, c.want, out.Notes)
		}
	}
}

// The launch for one tenant probes the quota, so the other tenant gets no launch under the quota, also of another type.
func TestAPassProbesAQuotaOnce(t *testing.T) {
	t.Parallel()
	f := full()
	f.Offers = append(f.Offers, offered("bigger", 8))
	f.Breakers = []db.ProbedBreaker{{Breaker: cloud.Breaker{Scope: cloud.ScopeQuota, Key: "lab/here/GPUs", Step: 1, Until: now.Add(-time.Minute),
		Covers: []string{"lab/here/big/on_demand", "lab/here/bigger/on_demand"}}}}
	wait(f, "j1", "a", 1)
	wait(f, "j2", "b", 1)
	machines := 0
	for _, r := range autoscale.Decide(*f).Requests {
		machines += r.Machines
	}
	if machines != 1 {
		t.Errorf("%d machines try the quota", machines)
	}
}

// A wrong clock of one replica or a missing right leaves no other mark here, so one launch an hour tries the cloud.
func TestTheLeaderTriesRefusedCredentialsOnceAnHour(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.sells(offered("big", 8))
	wait(w.facts, string(berth.NewJobID(time.Now())), "default", 1)
	w.cloud.kind, w.cloud.out = cloud.Auth, true
	for _, c := range []struct {
		age  time.Duration // of the last refusal, in addition
		want int           // calls so far
	}{{0, 1}, {30 * time.Minute, 1}, {30 * time.Minute, 2}, {30 * time.Minute, 2}, {30 * time.Minute, 3}} {
		w.exec(`UPDATE breakers SET at = at - make_interval(secs => $1)`, c.age.Seconds())
		for range 4 {
			w.pass()
		}
		n := 0
		for _, list := range w.cloud.calls {
			n += len(list)
		}
		if n != c.want {
			t.Errorf("%d calls, want %d", n, c.want)
		}
	}
}

// Refused settings stop all launches until an operator changes them; then one launch tries.
func TestTheLeaderTriesChangedSettings(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.sells(offered("big", 8))
	wait(w.facts, string(berth.NewJobID(time.Now())), "default", 1)
	restart := func(settings string) {
		t.Helper()
		accounts := cloud.Accounts{URL: "http://berth.test", Providers: map[string]cloud.Account{"lab": {Provider: w.cloud, Regions: []string{"here"},
			Settings: json.RawMessage(settings)}}}
		w.steps.Accounts, w.loop.Accounts = accounts, accounts
	}
	calls := func() (n int) {
		for _, list := range w.cloud.calls {
			n += len(list)
		}
		return n
	}
	w.cloud.kind = cloud.Spec
	w.cloud.out = true
	restart(`{"image": "gone"}`)
	passes := func(step string, want int) {
		t.Helper()
		for range 4 {
			w.pass()
		}
		w.exec(`UPDATE breakers SET at = at - interval '2 hours'`)
		if n := calls(); n != want {
			t.Errorf("%s: %d calls, want %d", step, n, want)
		}
	}
	passes("refused settings", 1)
	passes("two hours later", 1)
	restart(`{"image": "gone, too"}`)
	passes("other bad settings", 2)
	passes("the same", 2)
	w.cloud.out = false
	passes("the same, which the cloud would take", 2)
	restart(`{"image": "there"}`)
	passes("good settings", 3)
	if list := w.launches(); len(list) != 1 || list[0].State != string(cloud.LaunchRunning) {
		t.Errorf("launches %+v", list)
	}
	if b, err := w.db.Scaling.Breakers(t.Context()); err != nil || len(b) != 0 {
		t.Errorf("breakers %+v, %v", b, err)
	}
}

// A zone for which the settings of the pool have no image is tried again once they have one.
func TestTheLeaderTriesAZoneWhoseSettingsHaveAnImageNow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.sells(offered("big", 8))
	wait(w.facts, string(berth.NewJobID(time.Now())), "default", 1)
	restart := func(settings string) {
		lab := cloud.Account{Provider: w.cloud, Regions: []string{"here"}, Settings: json.RawMessage(settings)}
		accounts := cloud.Accounts{URL: "http://berth.test", Providers: map[string]cloud.Account{"lab": lab}}
		w.steps.Accounts, w.loop.Accounts = accounts, accounts
	}
	w.cloud.kind, w.cloud.scope, w.cloud.out = cloud.Spec, "here", true
	for _, c := range []struct {
		settings string
		want     int // calls so far
	}{{`{"images": {}}`, 1}, {`{"images": {}}`, 1}, {`{"images": {"here": "i-1"}}`, 2}} {
		restart(c.settings)
		for range 4 {
			w.pass()
		}
		w.exec(`UPDATE breakers SET at = at - interval '2 minutes'`) // the least distance of a reopening
		n := 0
		for _, list := range w.cloud.calls {
			n += len(list)
		}
		if n != c.want {
			t.Errorf("%s: %d calls, want %d", c.settings, n, c.want)
		}
	}
}

// Nobody can correct the credentials of a provider that is no longer configured.
func TestOnlyConfiguredProvidersAreShownAsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, key := range []string{"gone", "lab"} {
		w.exec(`INSERT INTO breakers (scope, key, until, reason) VALUES ('provider', $1, NULL, 'no rights')`, key)
	}
	w.pass()
	r := prometheus.NewRegistry()
	r.MustRegister(w.shows)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "berth_cloud_breakers_lasting" && m.GetLabel()[0].GetValue() == "provider" {
				seen++
				if v := m.GetGauge().GetValue(); v != 1 {
					t.Errorf("%v providers are refused, want 1", v)
				}
			}
		}
	}
	if seen != 1 {
		t.Errorf("%d series of the metric", seen)
	}
}

// deaf is a provider whose program is missing on all replicas.
type deaf struct {
	*faultcloud.Cloud
	calls int
}

func (d *deaf) Create(context.Context, cloud.Launch) (cloud.Instance, error) {
	d.calls++
	return cloud.Instance{}, &cloud.Error{Kind: cloud.Throttle, Unsent: true, Err: errors.New("no program")}
}

// Jobs whose cheapest cloud cannot be called get machines of another one, although the launches that were never sent are
// as many as the policy lets grow.
func TestJobsLeaveACloudThatNobodyCanCall(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.sells(offered("big", 8))
	dear := offered("big", 9)
	if err := w.db.Offers.Replace(t.Context(), "dear", []cloud.Offer{dear.Offer}, "user:test"); err != nil {
		t.Fatal(err)
	}
	err := w.db.Burst.Set(t.Context(), "default", spec.Burst{Allow: []string{"lab/here", "dear/here"},
		Grow: &spec.BurstGrow{Machines: 2, Per: spec.Duration(time.Hour)},
		When: &spec.BurstWhen{PlannedWaitOver: spec.Duration(time.Hour)}}, "user:test")
	if err != nil {
		t.Fatal(err)
	}
	none := &deaf{Cloud: w.cloud.Cloud}
	accounts := cloud.Accounts{URL: "http://berth.test", Providers: map[string]cloud.Account{
		"lab": {Provider: none, Regions: []string{"here"}}, "dear": {Provider: w.cloud, Regions: []string{"here"}}}}
	w.steps.Accounts, w.loop.Accounts = accounts, accounts
	w.steps.Limits.Patience = time.Nanosecond // each launch is given up after its first call
	for range 2 {
		wait(w.facts, string(berth.NewJobID(time.Now())), "default", 1)
	}
	for range 6 {
		w.pass()
	}
	if none.calls != 1 {
		t.Errorf("%d calls of the cloud that cannot be called", none.calls)
	}
	list := w.launches()
	if len(list) != 2 || list[0].Provider != "dear" || list[1].Provider != "dear" {
		t.Errorf("launches %+v", list)
	}
}
