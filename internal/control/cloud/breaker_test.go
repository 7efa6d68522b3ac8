package cloud_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
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
		if again := b.Trip(cloud.Capacity, "late", now.Add(time.Minute)); !reflect.DeepEqual(again, b) {
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
	if n := (cloud.Breaker{}).Trip(cloud.Network, "no address", start); n.Until.Sub(start) != 30*time.Minute {
		t.Errorf("network: %+v", n)
	}
	now, b = start, cloud.Breaker{}
	for _, want := range []time.Duration{5, 10, 20, 30, 30} {
		b = b.Trip(cloud.Unsent, "no program", now)
		if d := b.Until.Sub(now); d != want*time.Minute {
			t.Errorf("step %d: a cloud that cannot be called is closed for %s, want %d min", b.Step, d, want)
		}
		now = b.Until
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
		cloud.Spec: "pool lab/p", cloud.Network: "pool lab/p/r/z", cloud.Throttle: "throttle lab/r", cloud.Unknown: " ", cloud.Mismatch: " ",
	} {
		e := &cloud.Error{Kind: kind}
		if b, ok := r.Trips(e); string(b.Scope)+" "+b.Key != want || ok != (want != " ") {
			t.Errorf("%s closes %s %s", kind, b.Scope, b.Key)
		}
		e.Unsent = true
		if b, ok := r.Trips(e); ok {
			t.Errorf("a call that was not made closes %s %s", b.Scope, b.Key)
		}
	}
}

// Settings without an entry for a region leave the other regions open, and are tried again, since other regions may have
// machines meanwhile. A type that a zone does not offer leaves the other types open. A refusal that names an offering
// may be about any setting of the pool.
func TestSettingsWithoutARegionCloseItAlone(t *testing.T) {
	t.Parallel()
	r := cloud.Request{Pool: "p", Provider: "lab", Offering: cloud.Offering{Region: "r", Zone: "z", Type: "x", Market: cloud.Spot}}
	for scope, want := range map[string]cloud.Breaker{
		"r":          {Scope: cloud.ScopePool, Key: "lab/p/r/z", Until: start.Add(30 * time.Minute)},
		"x":          {Scope: cloud.ScopeOffering, Key: "lab/r/z/x/spot", Until: start.Add(3 * time.Minute)},
		"r/z/x/spot": {Scope: cloud.ScopePool, Key: "lab/p"},
		"":           {Scope: cloud.ScopePool, Key: "lab/p"},
	} {
		e := &cloud.Error{Kind: cloud.Spec, Scope: scope, Err: errors.New("no image")}
		b, ok := r.Trips(e)
		b = b.Refused(e, start)
		if !ok || b.Scope != want.Scope || b.Key != want.Key || !b.Until.Equal(want.Until) || !b.Open(start) {
			t.Errorf("the scope %q closes %+v", scope, b)
		}
	}
}

// A quota closes the offers that it has refused, in all zones, under the name that the cloud gives it.
func TestAQuotaClosesTheOffersThatItHasRefused(t *testing.T) {
	t.Parallel()
	r := cloud.Request{Pool: "p", Provider: "lab", Offering: cloud.Offering{Region: "r", Zone: "z", Type: "x", Market: cloud.Spot}}
	for name, want := range map[string]string{
		"r/MaxSpotInstanceCountExceeded": "quota lab/r/MaxSpotInstanceCountExceeded", "global/GPUS": "quota lab/global/GPUS",
		"": "provider lab/r", " r ": "provider lab/r", strings.Repeat("long", 99): "quota lab/" + strings.Repeat("long", 50),
	} {
		b, ok := r.Trips(&cloud.Error{Kind: cloud.Quota, Scope: name, Err: errors.New("limit")})
		if !ok || string(b.Scope)+" "+b.Key != want {
			t.Errorf("quota %q closes %s %s", name, b.Scope, b.Key)
		}
	}
	b, _ := r.Trips(&cloud.Error{Kind: cloud.Quota, Scope: "r/spot"})
	for _, c := range []struct {
		name   string
		change func(r *cloud.Request)
		want   bool
	}{
		{"the same offer", func(*cloud.Request) {}, true},
		{"another zone", func(r *cloud.Request) { r.Zone = "y" }, true},
		{"another pool", func(r *cloud.Request) { r.Pool = "q" }, true},
		{"on demand", func(r *cloud.Request) { r.Market = cloud.OnDemand }, false},
		{"another type", func(r *cloud.Request) { r.Type = "y" }, false},
		{"another region", func(r *cloud.Request) { r.Region = "s" }, false},
		{"another provider", func(r *cloud.Request) { r.Provider = "other" }, false},
	} {
		other := r
		if c.change(&other); other.Concerned()(b) != c.want {
			t.Errorf("%s: %v", c.name, !c.want)
		}
	}
}

// A cloud that throttles is left alone for as long as it demands, and for longer after each refusal without a demand.
func TestThrottlingLastsForTheDemandedTime(t *testing.T) {
	t.Parallel()
	demand := func(d time.Duration) *cloud.Error {
		return &cloud.Error{Kind: cloud.Throttle, RetryAfter: d, Err: errors.New("too many")}
	}
	var b cloud.Breaker
	now := start
	for _, want := range []int{5, 10, 20, 40, 80, 160, 300, 300} {
		b = b.Refused(demand(time.Second), now)
		if d := b.Until.Sub(now); d != time.Duration(want)*time.Second {
			t.Errorf("step %d: %s, want %d s", b.Step, d, want)
		}
		now = b.Until
	}
	b = cloud.Breaker{}.Refused(demand(2*time.Minute), start)
	if d := b.Until.Sub(start); d != 2*time.Minute {
		t.Errorf("%s of 2 demanded minutes", d)
	}
	b = b.Refused(demand(10*time.Minute), start.Add(time.Minute)) // of a call that was under way
	if d := b.Until.Sub(start); d != 11*time.Minute || b.Step != 1 {
		t.Errorf("%s, step %d after a second demand", d, b.Step)
	}
	if d := b.Refused(demand(time.Second), start.Add(time.Minute)).Until.Sub(start); d != 11*time.Minute {
		t.Errorf("%s after a smaller demand", d)
	}
	if d := (cloud.Breaker{}).Refused(demand(24*time.Hour), start).Until.Sub(start); d != time.Hour {
		t.Errorf("%s of a demanded day", d)
	}
	capacity := &cloud.Error{Kind: cloud.Capacity, RetryAfter: 9 * time.Hour, Err: errors.New("none")}
	if d := (cloud.Breaker{}).Refused(capacity, start).Until.Sub(start); d != 3*time.Minute {
		t.Errorf("a refusal for capacity: %s", d)
	}
}

// An admin must hear of settings that have nothing for a region only if a second launch was refused for it.
func TestAClosedZoneLastsIfItsSettingsLackIt(t *testing.T) {
	t.Parallel()
	r := cloud.Request{Pool: "p", Provider: "lab",
		Offering: cloud.Offering{Region: "r", Zone: "z", Type: "x", Market: cloud.Spot}}
	for _, c := range []struct {
		e    cloud.Error
		want [2]bool // after the first refusal and after the second
	}{
		{cloud.Error{Kind: cloud.Spec, Scope: "r"}, [2]bool{false, true}},
		{cloud.Error{Kind: cloud.Network, Scope: "r/z"}, [2]bool{false, false}},
		{cloud.Error{Kind: cloud.Spec, Scope: "r/z/x/spot"}, [2]bool{true, true}},
	} {
		c.e.Err = errors.New("refused")
		b, _ := r.Trips(&c.e)
		now := start
		for i, want := range c.want {
			if b = b.Refused(&c.e, now); b.Lasting(now) != want || !b.Corrected(now) {
				t.Errorf("%s, refusal %d: lasting is %v, corrected %v", &c.e, i+1, b.Lasting(now), b.Corrected(now))
			}
			now = now.Add(31 * time.Minute)
		}
	}
}

func TestPeopleReadWhichPartIsClosed(t *testing.T) {
	t.Parallel()
	for want, b := range map[string]cloud.Breaker{
		"the offer lab/r/z/x/spot":              {Scope: cloud.ScopeOffering, Key: "lab/r/z/x/spot"},
		"all offers of lab in r":                {Scope: cloud.ScopeProvider, Key: "lab/r"},
		"all offers of lab":                     {Scope: cloud.ScopeProvider, Key: "lab"},
		"all offers of lab in pool burst":       {Scope: cloud.ScopePool, Key: "lab/burst"},
		"offers of lab in r/z for pool burst":   {Scope: cloud.ScopePool, Key: "lab/burst/r/z"},
		"offers of lab in r for pool burst":     {Scope: cloud.ScopePool, Key: "lab/burst/r/"},
		"offers of lab under the quota r/VCPUs": {Scope: cloud.ScopeQuota, Key: "lab/r/VCPUs"},
		"new machines of lab in r":              {Scope: cloud.ScopeThrottle, Key: "lab/r"},
	} {
		if got := b.What(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// The hash of refused settings changes with everything by which an operator may correct them, and with nothing else.
func TestTheMarkOfSettingsChangesWithThem(t *testing.T) {
	t.Parallel()
	key := filepath.Join(t.TempDir(), "credentials")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(key, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("first")
	accounts := func(program, settings, p, q string) cloud.Accounts {
		return cloud.Accounts{Providers: map[string]cloud.Account{"lab": {Program: program, Files: []string{key, "/nowhere/else"},
			Settings: json.RawMessage(settings), Pools: map[string]json.RawMessage{"p": json.RawMessage(p), "q": json.RawMessage(q)}}}}
	}
	a := accounts("prog", `{"a": 1}`, `{"b":2}`, `{}`)
	pool := cloud.Breaker{Scope: cloud.ScopePool, Key: "lab/p"}
	all := cloud.Breaker{Scope: cloud.ScopeProvider, Key: "lab"}
	for _, c := range []struct {
		name      string
		to        cloud.Accounts
		pool, all bool // whether the mark changes
	}{
		{"spaces", accounts("prog", `{ "a":1 }`, `{"b": 2}`, `{}`), false, false},
		{"another program", accounts("prog2", `{"a":1}`, `{"b":2}`, `{}`), true, true},
		{"other settings of all pools", accounts("prog", `{"a":2}`, `{"b":2}`, `{}`), false, true},
		{"other settings of the pool", accounts("prog", `{"a":1}`, `{"b":3}`, `{}`), true, true},
		{"other settings of another pool", accounts("prog", `{"a":1}`, `{"b":2}`, `{"c":3}`), false, true},
	} {
		if zone := (cloud.Breaker{Scope: cloud.ScopePool, Key: "lab/p/r/z"}); c.to.Marked(zone) != c.to.Marked(pool) {
			t.Errorf("%s: a zone of the pool has a mark of its own", c.name)
		}
		if got := c.to.Marked(pool) != a.Marked(pool); got != c.pool {
			t.Errorf("%s: of the pool %v", c.name, got)
		}
		if got := c.to.Marked(all) != a.Marked(all); got != c.all {
			t.Errorf("%s: of the provider %v", c.name, got)
		}
	}
	if sent := a.Mark(pool, json.RawMessage(`{"b":1}`)); sent == a.Marked(pool) {
		t.Error("the mark of a request is that of the present settings, not of the ones that were sent")
	}
	before := a.Marked(pool) + a.Marked(all)
	write("other")
	if a.Marked(pool)+a.Marked(all) == before || a.Marked(pool) == "" {
		t.Error("new credentials leave the mark as it was")
	}
	for _, b := range []cloud.Breaker{{Scope: cloud.ScopeProvider, Key: "lab/r"}, {Scope: cloud.ScopePool, Key: "other/p"},
		{Scope: cloud.ScopeOffering, Key: "lab/r/z/x/spot"}, {Scope: cloud.ScopeQuota, Key: "lab"}} {
		if m := a.Marked(b); m != "" {
			t.Errorf("breaker %+v has the mark %s", b, m)
		}
	}
}
