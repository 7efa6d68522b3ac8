package gce_test

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"cloud.google.com/go/auth"
	"cloud.google.com/go/compute/metadata"

	"berth"
	"berth/internal/control/cloud"
	"berth/internal/control/cloud/cloudtest"
	"berth/internal/control/cloud/gce"
	"berth/internal/control/cloud/gce/gcefake"
	"berth/wire"
)

const uid = "0197c1a2-5f3b-7d1e-9a55-1b2c3d4e5f60"

// losing are credentials of which one fetch fails after next was set.
type losing struct{ next atomic.Bool }

func (l *losing) Token(ctx context.Context) (*auth.Token, error) {
	if l.next.Swap(false) {
		return nil, errors.New("no answer")
	}
	return tokens{}.Token(ctx)
}

// tokens are credentials of the tests.
type tokens struct{ err error }

func (t tokens) Token(context.Context) (*auth.Token, error) {
	if t.err != nil {
		return nil, t.err
	}
	return &auth.Token{Value: "example"}, nil
}

const hash = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// settings are valid settings of a pool.
const settings = `{
	"image": "projects/berth-images/global/images/family/berth-gpu",
	"network": "global/networks/burst", "subnetworks": {"eu-test1": "regions/eu-test1/subnetworks/burst"},
	"network_tags": ["berth"], "service_account": "berth@berth-test.iam.gserviceaccount.com",
	"disk": {"gib": 200, "type": "pd-balanced"}, "max_run_duration": "24h",
	"labels": {"team": "vision", "cost": "17"}, "metadata": {"enable-oslogin": "TRUE"},
	"agent": {"url": "https://berth.example/agents/amd64", "sha256": "` + hash + `"}
}`

// open returns a provider with a cloud of its own.
func open(t *testing.T, o gcefake.Options) (*gce.Provider, *gcefake.Cloud) {
	t.Helper()
	return openWith(t, o, gce.Options{})
}

func openWith(t *testing.T, o gcefake.Options, p gce.Options) (*gce.Provider, *gcefake.Cloud) {
	t.Helper()
	fake := gcefake.New(o)
	server := httptest.NewServer(fake)
	t.Cleanup(server.Close)
	if p.Credentials == nil && p.NoCredentials == nil {
		p.Credentials = tokens{}
	}
	p.Project, p.Endpoint, p.Poll = gcefake.Project, server.URL, 5*time.Millisecond
	provider, err := gce.New(p)
	if err != nil {
		t.Fatal(err)
	}
	return provider, fake
}

func offering() cloud.Offering {
	return cloud.Offering{Region: "eu-test1", Zone: "eu-test1-a", Type: "g2-standard-8", Market: cloud.Spot}
}

func launch(machine berth.MachineID) cloud.Launch {
	return cloud.Launch{
		Token: cloud.Token(uid, "1", machine, 1), Cluster: uid, Pool: "burst", Machine: machine, N: 1, Offering: offering(),
		Bootstrap: cloud.Bootstrap{URL: "https://berth.example", JoinToken: "berth_SECRET"}, Settings: json.RawMessage(settings),
	}
}

func create(t *testing.T, p *gce.Provider, l cloud.Launch) cloud.Instance {
	t.Helper()
	i, err := p.Create(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// name returns the name of an instance in GCE.
func name(i cloud.Instance) string { return strings.Split(i.ID, "/")[1] }

// want checks kind and text of an error.
func want(t *testing.T, err error, kind cloud.Kind, text string) *cloud.Error {
	t.Helper()
	var e *cloud.Error
	if !errors.As(err, &e) || e.Kind != kind || !strings.Contains(err.Error(), text) {
		t.Fatalf("error %v, want one of kind %s with %q", err, kind, text)
	}
	return e
}

// wantFound checks the answer of Find for a launch.
func wantFound(t *testing.T, p *gce.Provider, l cloud.Launch, id string, state cloud.State, reason string) {
	t.Helper()
	i, err := p.Find(t.Context(), l)
	if err != nil || i.ID != id || i.State != state || i.Reason != reason || i.Token != l.Token {
		t.Errorf("found %+v, %v; want %s, %s with the reason %q", i, err, id, state, reason)
	}
}

func TestProviderConforms(t *testing.T) {
	t.Parallel()
	cloudtest.Run(t, func(t *testing.T) cloudtest.Subject {
		s := cloudtest.Subject{
			Offering: offering(), Regions: []string{"eu-test1", "eu-test2"}, Settings: json.RawMessage(settings), Forgets: true,
			Other: cloud.Offering{Region: "eu-test1", Zone: "eu-test1-a", Type: "n1-standard-8+2xnvidia-tesla-t4",
				Market: cloud.OnDemand},
			Unknown: cloud.Instance{ID: "eu-test1-a/burst-9-1-0123456789ab/7", Offering: offering()},
		}
		lost := &losing{}
		p, fake := openWith(t, gcefake.Options{Boot: time.Minute, End: time.Minute}, gce.Options{
			Credentials: lost,
			Offers: func() ([]cloud.Offer, error) {
				return []cloud.Offer{
					{Offering: s.Offering, CPUs: 8, MemoryMiB: 1 << 15}, {Offering: s.Other, CPUs: 8, MemoryMiB: 30 << 10},
				}, nil
			},
		})
		s.Provider, s.Created = p, func() int { return len(fake.Instances()) }
		s.Finish = func() { fake.Advance(time.Minute) }
		s.Inject = func(f cloudtest.Fault) {
			if f == cloudtest.Unsent {
				lost.next.Store(true)
				return
			}
			fake.Inject(faults[f])
		}
		return s
	})
}

// faults are the faults of the suite as GCE shows them.
var faults = map[cloudtest.Fault]gcefake.Fault{
	cloudtest.Before:   {Kind: gcefake.Refuse, Status: 503, Reason: "backendError"},
	cloudtest.After:    {Kind: gcefake.ErrorAfter, Status: 500, Reason: "internalError"},
	cloudtest.Throttle: {Kind: gcefake.Refuse, Status: 403, Reason: "rateLimitExceeded"},
	cloudtest.Capacity: {Kind: gcefake.Refuse, Status: 503, Reason: "ZONE_RESOURCE_POOL_EXHAUSTED"},
	cloudtest.Quota:    {Kind: gcefake.Refuse, Status: 403, Reason: "quotaExceeded"},
	cloudtest.Auth:     {Kind: gcefake.Refuse, Status: 403, Reason: "forbidden"},
	cloudtest.Hang:     {Kind: gcefake.Timeout},
}

func TestRequestIsSafeAndMarked(t *testing.T) {
	t.Parallel()
	p, fake := open(t, gcefake.Options{})
	l := launch("Burst_1.x")
	created := create(t, p, l)
	i := fake.Instances()[0]
	body, err := json.Marshal(i.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{
		`"machineType":"zones/eu-test1-a/machineTypes/g2-standard-8"`, `"autoDelete":true`, `"boot":true`,
		`"sourceImage":"projects/berth-images/global/images/family/berth-gpu"`, `"diskSizeGb":"200"`,
		`"diskType":"zones/eu-test1-a/diskTypes/pd-balanced"`, `"network":"global/networks/burst"`,
		`"subnetwork":"regions/eu-test1/subnetworks/burst"`, `"tags":{"items":["berth"]}`,
		`"provisioningModel":"SPOT"`, `"instanceTerminationAction":"DELETE"`, `"automaticRestart":false`,
		`"onHostMaintenance":"TERMINATE"`, `"maxRunDuration":{"seconds":"86400"}`,
		`"email":"berth@berth-test.iam.gserviceaccount.com"`, `"https://www.googleapis.com/auth/cloud-platform"`,
	} {
		if !strings.Contains(string(body), part) {
			t.Errorf("the request lacks %s: %s", part, body)
		}
	}
	for _, part := range []string{"accessConfigs", "guestAccelerators"} {
		if strings.Contains(string(body), part) {
			t.Errorf("the request has %s", part)
		}
	}
	// The request id is the token but for the six bits that a UUID fixes.
	id := strings.ReplaceAll(i.RequestID, "-", "")
	if len(id) != 32 || id[:12] != l.Token[:12] || id[12] != '8' || id[13:16] != l.Token[13:16] || id[17:] != l.Token[17:] {
		t.Errorf("request id %s, token %s", i.RequestID, l.Token)
	}
	if want := "burst-1-x-1-" + l.Token[:12]; i.Name != want || name(created) != want {
		t.Errorf("name %s, id %s, want %s", i.Name, created.ID, want)
	}
	for key, value := range map[string]string{
		"berth-cluster": uid, "berth-pool": "burst", "berth-machine": "Burst_1.x", "berth-launch": "1", "berth-token": l.Token,
		"berth-hash": l.Hash(), "berth-type": "g2-standard-8", "enable-oslogin": "TRUE",
	} {
		if i.Metadata[key] != value {
			t.Errorf("metadata %s is %q, want %q", key, i.Metadata[key], value)
		}
	}
	if i.Labels["berth-cluster"] != uid || i.Labels["team"] != "vision" || i.Labels["berth-machine"] == "" {
		t.Errorf("labels %v", i.Labels)
	}
	if text := i.Metadata["user-data"]; !strings.HasPrefix(text, "#cloud-config\n") || !strings.Contains(text, "berth_SECRET") ||
		!strings.Contains(text, "BERTH_NOTICES='gce'") {
		t.Errorf("user data %q", text)
	}
}

func TestMarketsAndAcceleratorsDecideTheScheduling(t *testing.T) {
	t.Parallel()
	p, fake := open(t, gcefake.Options{})
	plain := strings.Replace(settings, `"max_run_duration": "24h",`, `"external_ip": true,`, 1)
	for n, c := range []struct {
		kind   string
		market cloud.Market
		has    []string
		lacks  []string
	}{
		{"n2-standard-8", cloud.OnDemand, []string{`"provisioningModel":"STANDARD"`, `"onHostMaintenance":"MIGRATE"`, "ONE_TO_ONE_NAT"},
			[]string{"DELETE", "maxRunDuration", "guestAccelerators"}},
		{"n2-standard-8", cloud.Spot, []string{`"provisioningModel":"SPOT"`, `"onHostMaintenance":"TERMINATE"`, "DELETE"}, nil},
		{"a3-highgpu-8g", cloud.OnDemand, []string{`"onHostMaintenance":"TERMINATE"`}, []string{"guestAccelerators", "DELETE"}},
		{"n1-standard-8+2xnvidia-tesla-t4", cloud.OnDemand, []string{`"onHostMaintenance":"TERMINATE"`, `"acceleratorCount":2`,
			`"acceleratorType":"zones/eu-test1-a/acceleratorTypes/nvidia-tesla-t4"`, `machineTypes/n1-standard-8"`}, nil},
	} {
		l := launch(berth.MachineID("burst-" + string(rune('a'+n))))
		l.Offering.Type, l.Offering.Market, l.Settings = c.kind, c.market, json.RawMessage(plain)
		if i := create(t, p, l); i.Offering != l.Offering {
			t.Errorf("the offering is %s, want %s", i.Offering, l.Offering)
		}
		body, err := json.Marshal(fake.Instances()[n].Body)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range c.has {
			if !strings.Contains(string(body), part) {
				t.Errorf("%s, %s: the request lacks %s: %s", c.kind, c.market, part, body)
			}
		}
		for _, part := range c.lacks {
			if strings.Contains(string(body), part) {
				t.Errorf("%s, %s: the request has %s: %s", c.kind, c.market, part, body)
			}
		}
	}
}

// Reasons of calls have their kinds; the SDK repeats none of the calls.
func TestReasonsHaveKinds(t *testing.T) {
	t.Parallel()
	offer := "eu-test1/eu-test1-a/g2-standard-8/spot"
	for _, c := range []struct {
		status int
		reason string
		kind   cloud.Kind
		scope  string
	}{
		{503, "ZONE_RESOURCE_POOL_EXHAUSTED", cloud.Capacity, offer},
		{403, "quotaExceeded", cloud.Quota, "eu-test1"},
		{403, "rateLimitExceeded", cloud.Throttle, gcefake.Project},
		{403, "userRateLimitExceeded", cloud.Throttle, gcefake.Project},
		{429, "reasonOfNextYear", cloud.Throttle, gcefake.Project},
		{401, "required", cloud.Auth, gcefake.Project},
		{403, "forbidden", cloud.Auth, gcefake.Project},
		{403, "accessNotConfigured", cloud.Auth, gcefake.Project},
		{403, "reasonOfNextYear", cloud.Auth, gcefake.Project},
		{400, "invalid", cloud.Spec, offer},
		{404, "notFound", cloud.Spec, offer},
		{412, "conditionNotMet", cloud.Spec, offer},
		{408, "timeout", cloud.Unknown, ""},
		{500, "internalError", cloud.Unknown, ""},
		{503, "backendError", cloud.Unknown, ""},
		{502, "reasonOfNextYear", cloud.Unknown, ""},
	} {
		p, fake := open(t, gcefake.Options{})
		fake.Inject(gcefake.Fault{Kind: gcefake.Refuse, Status: c.status, Reason: c.reason})
		_, err := p.Create(t.Context(), launch("burst-1"))
		if e := want(t, err, c.kind, c.reason); e.Scope != c.scope {
			t.Errorf("%s has the scope %q, want %q", c.reason, e.Scope, c.scope)
		}
		if n := fake.Calls("insert"); n != 1 {
			t.Errorf("after %s the SDK sent the request %d times: a repeat is the caller's to order", c.reason, n)
		}
	}
	// Lists and reads are not repeated either.
	p, fake := open(t, gcefake.Options{})
	for range 2 {
		fake.Inject(gcefake.Fault{Kind: gcefake.Refuse, Status: 503, Reason: "backendError"})
	}
	_, err := p.Find(t.Context(), launch("burst-1"))
	want(t, err, cloud.Unknown, "backendError")
	_, err = p.List(t.Context(), uid, []string{"eu-test1"})
	want(t, err, cloud.Unknown, "backendError")
	if fake.Calls("get") != 1 || fake.Calls("list") != 1 {
		t.Errorf("%d reads and %d lists", fake.Calls("get"), fake.Calls("list"))
	}
}

// Without an answer of GCE nothing is known, and token and name find the one instance.
func TestLostAnswersEndInOneInstance(t *testing.T) {
	t.Parallel()
	for _, f := range []gcefake.Fault{
		{Kind: gcefake.Cut}, {Kind: gcefake.CutAfter}, {Kind: gcefake.Garbage}, {Kind: gcefake.ExecuteAndTimeout},
		{Kind: gcefake.Proxy, Status: 403}, {Kind: gcefake.Proxy, Status: 404}, {Kind: gcefake.Proxy, Status: 200},
	} {
		p, fake := open(t, gcefake.Options{})
		l := launch("burst-1")
		fake.Inject(f)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		if f.Kind == gcefake.ExecuteAndTimeout {
			go func() { // the caller gives up after the effect
				for ctx.Err() == nil && len(fake.Instances()) == 0 {
					time.Sleep(time.Millisecond)
				}
				cancel()
			}()
		}
		_, err := p.Create(ctx, l)
		cancel()
		want(t, err, cloud.Unknown, "")
		if n := fake.Calls("insert"); n != 1 {
			t.Errorf("%s: the SDK sent the request %d times", f.Kind, n)
		}
		create(t, p, l)
		if n := len(fake.Instances()); n != 1 {
			t.Errorf("%s: there are %d instances", f.Kind, n)
		}
	}
}

// The insert had its effect, so a refused read of its instance is no refusal of the launch.
func TestRefusedReadAfterTheInsertIsUnknown(t *testing.T) {
	t.Parallel()
	for status, reason := range map[int]string{403: "forbidden", 429: "rateLimitExceeded", 404: "notFound", 400: "invalid"} {
		p, fake := open(t, gcefake.Options{})
		l := launch("burst-1")
		fake.Inject(gcefake.Fault{Action: "get", Kind: gcefake.Refuse, Status: status, Reason: reason})
		_, err := p.Create(t.Context(), l)
		want(t, err, cloud.Unknown, reason)
		create(t, p, l)
		if n := len(fake.Instances()); n != 1 {
			t.Errorf("%s: there are %d instances", reason, n)
		}
	}
}

func TestMissingCredentialsAreOfKindAuth(t *testing.T) {
	t.Parallel()
	p, fake := openWith(t, gcefake.Options{}, gce.Options{NoCredentials: errors.New("the file is missing")})
	_, err := p.Create(t.Context(), launch("burst-1"))
	want(t, err, cloud.Auth, "the file is missing")
	want(t, p.Terminate(t.Context(), cloud.Instance{ID: "eu-test1-a/burst-1/7"}), cloud.Auth, "credentials")
	if n := fake.Calls("insert") + fake.Calls("delete"); n != 0 {
		t.Errorf("%d calls were sent", n)
	}
	p, err = gce.New(gce.Options{Project: gcefake.Project})
	if err != nil {
		t.Fatal(err)
	}
	_, err = p.Create(t.Context(), launch("burst-1"))
	want(t, err, cloud.Auth, "there are no credentials")
}

// Only a refusal of the credentials is of kind Auth. After a failed connection to the server of access
// tokens, or on a host without a service account, the caller repeats the call, of which GCE has received nothing.
func TestFailedFetchesOfTokensAreRepeated(t *testing.T) {
	t.Parallel()
	answer := func(status int) error {
		return fmt.Errorf("auth: %w", &auth.Error{Response: &http.Response{StatusCode: status}, Body: []byte("no token")})
	}
	for _, c := range []struct {
		err  error
		kind cloud.Kind
	}{
		{answer(400), cloud.Auth},
		{answer(401), cloud.Auth},
		{answer(403), cloud.Auth},
		{answer(404), cloud.Auth},
		{fmt.Errorf("credentials: cannot fetch token: %w",
			metadata.NotDefinedError("instance/service-accounts/default/token")), cloud.Throttle},
		{fmt.Errorf("credentials: cannot fetch token: %w", &metadata.Error{Code: 404}), cloud.Throttle},
		{fmt.Errorf("credentials: cannot fetch token: %w", &metadata.Error{Code: 403}), cloud.Auth},
		{fmt.Errorf("credentials: cannot fetch token: %w", &metadata.Error{Code: 503}), cloud.Throttle},
		{answer(429), cloud.Throttle},
		{answer(500), cloud.Throttle},
		{answer(502), cloud.Throttle},
		{answer(503), cloud.Throttle},
		{&auth.Error{Err: errors.New("no answer")}, cloud.Throttle},
		{&net.DNSError{Err: "no such host", Name: "oauth2.example", IsNotFound: true}, cloud.Throttle},
		{fmt.Errorf("auth: %w", &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}), cloud.Throttle},
		{&net.OpError{Op: "read", Err: syscall.ECONNRESET}, cloud.Throttle},
		{x509.UnknownAuthorityError{}, cloud.Throttle},
		{context.DeadlineExceeded, cloud.Throttle},
		{io.ErrUnexpectedEOF, cloud.Throttle},
	} {
		p, fake := openWith(t, gcefake.Options{}, gce.Options{Credentials: tokens{c.err}})
		_, err := p.Create(t.Context(), launch("burst-1"))
		if e := want(t, err, c.kind, "get credentials"); e.Scope != gcefake.Project || e.Unsent != (c.kind == cloud.Throttle) {
			t.Errorf("%v has the scope %q, unsent is %v", err, e.Scope, e.Unsent)
		}
		_, err = p.Find(t.Context(), launch("burst-1"))
		want(t, err, c.kind, "get credentials")
		if n := fake.Calls("insert") + fake.Calls("get"); n != 0 {
			t.Errorf("%d calls were sent", n)
		}
	}
}

func TestBadSettingsAreOfKindSpecAndNotSent(t *testing.T) {
	t.Parallel()
	p, fake := open(t, gcefake.Options{})
	for _, c := range []struct {
		settings string
		want     []string
	}{
		{``, []string{"they are empty"}},
		{`{"project": "x"}`, []string{`unknown field "project"`}},
		{`{"image": "debian-12", "network": "default", "subnetworks": {"eu-test1": "regions/eu-test2/subnetworks/a"},
			"network_tags": ["Berth"], "service_account": "berth", "scopes": ["compute"], "disk": {"gib": 0, "type": "PD"},
			"max_run_duration": "5s", "labels": {"Team": "x", "berth-pool": "y", "a": "Z"},
			"metadata": {"user-data": "", "berth-token": "", "a b": ""}, "agent": {"url": "http://x", "sha256": "y"}}`,
			[]string{
				"image", "network ", "subnetworks.eu-test1", "network_tags", "service_account", "scopes", "disk of 0 gib",
				"max_run_duration", "labels.Team", "labels.berth-pool", "labels.a", "metadata.user-data", "metadata.berth-token",
				"metadata.a b", "agent.url", "agent.sha256",
			}},
		{`{"image": "projects/p/global/images/i", "scopes": ["https://www.googleapis.com/auth/a"],
			"agent": {"url": "https://x", "sha256": "` + hash + `"}}`, []string{"scopes: they need a service_account"}},
		{strings.Replace(settings, `"TRUE"`, `"`+strings.Repeat("x", 64<<10)+`"`, 1),
			[]string{"metadata: keys and values have 65550 bytes; allowed are 65536"}},
		{strings.ReplaceAll(settings, "eu-test1", "eu-test3"), []string{"subnetworks has no entry for region eu-test1"}},
	} {
		l := launch("burst-1")
		l.Settings = json.RawMessage(c.settings)
		_, err := p.Create(t.Context(), l)
		for _, text := range c.want {
			want(t, err, cloud.Spec, text)
		}
	}
	for text, change := range map[string]func(*cloud.Launch){
		"has no zone":                  func(l *cloud.Launch) { l.Offering.Zone = "" },
		"is no zone of region":         func(l *cloud.Launch) { l.Offering.Zone = "eu-test2-a" },
		"allowed are a machine type":   func(l *cloud.Launch) { l.Offering.Type = "n1-standard-8+0xgpu" },
		"it must be 32 hex digits":     func(l *cloud.Launch) { l.Token = "token" },
		"GCE allows 262144":            func(l *cloud.Launch) { l.Bootstrap.CA = strings.Repeat("A", 300<<10) },
		"bootstrap.url: it is empty":   func(l *cloud.Launch) { l.Bootstrap.URL = "" },
		"zone \"../x\" is no zone of":  func(l *cloud.Launch) { l.Offering.Zone = "../x" },
		"zone \"eu-test1\" is no zone": func(l *cloud.Launch) { l.Offering.Zone = "eu-test1" },
		"service_account is missing": func(l *cloud.Launch) {
			l.Settings = json.RawMessage(`{"image": "projects/p/global/images/i", "agent": {"url": "https://x", "sha256": "` + hash + `"}}`)
			l.Bootstrap.Identity = &cloud.Identity{Source: wire.IdentityGCE, Audience: "berth/0a1b"}
		},
	} {
		l := launch("burst-1")
		change(&l)
		_, err := p.Create(t.Context(), l)
		want(t, err, cloud.Spec, text)
	}
	for _, id := range []string{
		"", "i-1", "eu-test1-a/burst-1", "eu-test1-a/burst-1/x", "eu-test1-a/../7", "eu-test1-a/burst-1/0",
	} {
		want(t, p.Terminate(t.Context(), cloud.Instance{ID: id, Offering: offering()}), cloud.Spec, "ZONE/NAME/NUMBER")
	}
	l := launch("burst-1")
	l.Offering.Zone = ""
	_, err := p.Find(t.Context(), l)
	want(t, err, cloud.Spec, "has no zone")
	if n := fake.Calls("insert") + fake.Calls("delete") + fake.Calls("get"); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
	for _, project := range []string{"", "Berth", "a/b", "x"} {
		if _, err := gce.New(gce.Options{Project: project}); err == nil {
			t.Errorf("project %q is allowed", project)
		}
	}
}
