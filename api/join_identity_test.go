package api_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/api"
	"berth/internal/control/cloud"
	"berth/internal/control/cloud/identity"
	"berth/internal/control/cloud/identity/identitytest"
	"berth/wire"
)

const (
	proofInstance = "i-0123456789abcdef0"
	proofAccount  = "123456789012"
)

// identitySite is a site whose providers aws and gcp demand identities.
type identitySite struct {
	*site
	aws, google *identitytest.Signer
	accounts    cloud.Accounts
}

func newIdentitySite(t *testing.T) *identitySite {
	t.Helper()
	s := &identitySite{aws: identitytest.New(t, 1024), google: identitytest.New(t, 2048)}
	set := identitytest.KeySet(s.google)
	keys := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(set) }))
	t.Cleanup(keys.Close)
	ec2, err := identity.NewEC2(proofAccount, s.aws.Certificate("aws.pem"))
	if err != nil {
		t.Fatal(err)
	}
	gce, err := identity.NewGCE("burst", keys.URL, identity.KeyOptions{Client: keys.Client()})
	if err != nil {
		t.Fatal(err)
	}
	s.accounts = cloud.Accounts{URL: "https://berth.test", Providers: map[string]cloud.Account{
		"aws": {Regions: []string{"eu-west-1"}, Identities: ec2},
		"gcp": {Regions: []string{"europe-west4"}, Identities: gce},
		"lab": {Regions: []string{"r"}},
	}}
	s.site = newSite(t, func(d *api.Deps) { d.Accounts = s.accounts })
	return s
}

// launched is a launch that was sent, with its bootstrap.
type launched struct {
	s    *identitySite
	ref  cloud.Ref
	boot cloud.Bootstrap
}

// launch requests and sends a launch; with an instance, the cloud has answered.
func (s *identitySite) launch(machine berth.MachineID, r cloud.Request, instance string) *launched {
	s.t.Helper()
	r.Pool = "burst"
	r.Type, r.Market = "big", cloud.Spot
	if _, err := s.db.Launches.Request(s.t.Context(), r, []berth.MachineID{machine}, "", "operator:test"); err != nil {
		s.t.Fatal(err)
	}
	l := &launched{s: s, ref: cloud.Ref{Machine: machine, N: 1}}
	same := func(t time.Time) time.Time { return t }
	_, _, err := s.db.Launches.Send(s.t.Context(), l.ref, cloud.DefaultLimits, same,
		func(r cloud.Record, secret string) (cloud.Sealed, error) {
			request, err := s.accounts.Request(r, secret)
			if err != nil {
				return cloud.Sealed{}, err
			}
			l.boot = request.Bootstrap
			sealed := cloud.Sealed{Hash: request.Hash(), KeyID: "k", Request: []byte("sealed")}
			if request.Bootstrap.Identity != nil {
				sealed.Identity = request.Bootstrap.Identity.Source
			}
			return sealed, nil
		})
	if err != nil {
		s.t.Fatal(err)
	}
	if instance != "" {
		l.sees(instance)
	}
	return l
}

func (l *launched) sees(instance string) {
	l.s.t.Helper()
	_, err := l.s.db.Launches.Change(l.s.t.Context(), l.ref, func(r cloud.Record, now time.Time) (cloud.Record, error) {
		return r.See(cloud.Instance{ID: instance, State: cloud.Running}, now)
	})
	if err != nil {
		l.s.t.Fatal(err)
	}
}

// joins calls the join of a machine with an identity, or without one.
func (l *launched) joins(id *wire.Identity) answer {
	l.s.t.Helper()
	body, err := json.Marshal(wire.JoinRequest{Machine: l.ref.Machine, Token: l.boot.JoinToken, Identity: id})
	if err != nil {
		l.s.t.Fatal(err)
	}
	return l.s.call("", "POST", "/agent/v1/join", string(body), "Authorization", "Bearer "+l.boot.JoinToken)
}

// refused checks a refused join: its text, its metric and its record, and that nothing else has changed.
func (l *launched) refused(id *wire.Identity, status int, fault cloud.IdentityFault, text string) {
	l.s.t.Helper()
	metric := `berth_join_identities_refused_total{fault="` + string(fault) + `"}`
	before := l.s.metric(metric)
	got := l.joins(id)
	if got.status != status || !strings.Contains(got.problem.Detail, text) {
		l.s.t.Errorf("%s: %d %s, want %d and %q", fault, got.status, got.body, status, text)
	}
	if after := l.s.metric(metric); after != before+1 {
		l.s.t.Errorf("%s was %v and is %v", metric, before, after)
	}
	list, err := l.s.as("admin").Launches(l.s.t.Context(), l.ref.Machine, false)
	if err != nil || len(list.Items) != 1 || !strings.Contains(list.Items[0].Reason, text) || list.Items[0].JoinedAt != nil {
		l.s.t.Errorf("%s: launch %+v, %v", fault, list, err)
	}
	if _, err := l.s.db.Machines.Get(l.s.t.Context(), "", l.ref.Machine); berth.CodeOf(err) != berth.CodeNotFound {
		l.s.t.Errorf("%s: the machine has a row: %v", fault, err)
	}
}

// metric returns the value of a series.
func (s *site) metric(series string) float64 {
	s.t.Helper()
	for line := range strings.Lines(s.call("", "GET", "/metrics", "").body) {
		if text, ok := strings.CutPrefix(line, series+" "); ok {
			value, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
			if err != nil {
				s.t.Fatal(err)
			}
			return value
		}
	}
	s.t.Fatalf("no series %s", series)
	return 0
}

var (
	onEC2 = cloud.Request{Provider: "aws", Offering: cloud.Offering{Region: "eu-west-1", Zone: "eu-west-1a"}}
	onGCE = cloud.Request{Provider: "gcp", Offering: cloud.Offering{Region: "europe-west4", Zone: "europe-west4-b"}}
)

// document is the identity of an instance on EC2.
func (s *identitySite) document(instance, region, zone string) *wire.Identity {
	id := s.aws.EC2(identitytest.Document(proofAccount, instance, region, zone))
	return &id
}

func TestAMachineOfEC2ProvesItsIdentity(t *testing.T) {
	t.Parallel()
	s := newIdentitySite(t)
	l := s.launch("vm-1", onEC2, proofInstance)
	if id := l.boot.Identity; id == nil || *id != (cloud.Identity{Source: wire.IdentityEC2}) {
		t.Fatalf("bootstrap %+v", id)
	}
	good := s.document(proofInstance, "eu-west-1", "eu-west-1a")
	l.refused(nil, http.StatusForbidden, cloud.IdentityMissing, "has no identity of the machine")
	l.refused(s.document("i-2", "eu-west-1", "eu-west-1a"), http.StatusForbidden, cloud.IdentityMismatch, "instance \"i-2\"")
	l.refused(s.document(proofInstance, "eu-west-2", "eu-west-1a"), http.StatusForbidden, cloud.IdentityMismatch, "region \"eu-west-2\"")
	altered := *good
	altered.Document = strings.Replace(altered.Document, "t2.micro", "t2.nano", 1)
	l.refused(&altered, http.StatusForbidden, cloud.IdentityUnsigned, "no configured certificate has signed it")
	thief := identitytest.New(t, 1024).EC2(identitytest.Document(proofAccount, proofInstance, "eu-west-1", "eu-west-1a"))
	l.refused(&thief, http.StatusForbidden, cloud.IdentityUnsigned, "no configured certificate has signed it")
	long := *good
	long.Signature += strings.Repeat("\n", wire.MaxIdentity)
	l.refused(&long, http.StatusForbidden, cloud.IdentityMalformed, "allowed are 16384")
	l.refused(&wire.Identity{Source: wire.IdentityGCE, Token: "a.b.c"}, http.StatusForbidden, cloud.IdentityMalformed, "the launch demands ec2")

	if got := l.joins(good); got.status != http.StatusCreated {
		t.Fatalf("join: %d %s", got.status, got.body)
	}
	if got := l.joins(good); got.status != http.StatusUnauthorized {
		t.Errorf("a second join: %d %s", got.status, got.body)
	}
	if _, _, err := s.db.Launches.Current(t.Context(), "vm-1"); err != nil { // notes the join
		t.Fatal(err)
	}
	list, err := s.as("admin").Launches(t.Context(), "vm-1", false)
	if err != nil || strings.Contains(list.Items[0].Reason, "join refused") || list.Items[0].JoinedAt == nil {
		t.Errorf("launch %+v, %v", list, err)
	}
	// The document of one instance proves nothing for another launch.
	s.launch("vm-2", onEC2, "i-2").refused(good, http.StatusForbidden, cloud.IdentityMismatch, "has instance i-2")
}

// The answer of the cloud may be lost, and the machine faster than the search for it.
func TestAJoinWaitsUntilTheInstanceIsKnown(t *testing.T) {
	t.Parallel()
	s := newIdentitySite(t)
	l := s.launch("vm-1", onEC2, "")
	good := s.document(proofInstance, "eu-west-1", "eu-west-1a")
	l.refused(good, http.StatusServiceUnavailable, cloud.IdentityPending, "has not confirmed the instance")
	l.sees(proofInstance)
	if got := l.joins(good); got.status != http.StatusCreated {
		t.Errorf("join: %d %s", got.status, got.body)
	}
}

func TestAMachineOfGCEProvesItsIdentity(t *testing.T) {
	t.Parallel()
	s := newIdentitySite(t)
	const name, number = "vm-1-1-0a1b", "152986662232938449"
	l := s.launch("vm-1", onGCE, "europe-west4-b/"+name+"/"+number)
	if id := l.boot.Identity; id == nil || id.Source != wire.IdentityGCE || id.Audience == "" {
		t.Fatalf("bootstrap %+v", id)
	}
	token := func(audience, number string, issued time.Time) *wire.Identity {
		id := s.google.GCE(identitytest.Claims("burst", "europe-west4-b", name, number, audience, issued))
		return &id
	}
	now := time.Now()
	other := s.launch("vm-2", onGCE, "europe-west4-b/vm-2/1")
	l.refused(nil, http.StatusForbidden, cloud.IdentityMissing, "has no identity of the machine")
	l.refused(token(other.boot.Identity.Audience, number, now), http.StatusForbidden, cloud.IdentityAudience, "not that of this launch")
	l.refused(token("https://vault.test", number, now), http.StatusForbidden, cloud.IdentityAudience, "not that of this launch")
	l.refused(token(l.boot.Identity.Audience, "1", now), http.StatusForbidden, cloud.IdentityMismatch, "names instance")
	l.refused(token(l.boot.Identity.Audience, number, now.Add(-2*time.Hour)), http.StatusServiceUnavailable, cloud.IdentityExpired, "it expired")
	none := s.google.Token(map[string]any{"alg": "none"}, identitytest.Claims("burst", "europe-west4-b", name, number, l.boot.Identity.Audience, now))
	l.refused(&none, http.StatusForbidden, cloud.IdentityUnsigned, "algorithm is \"none\"")
	if got := l.joins(token(l.boot.Identity.Audience, number, now)); got.status != http.StatusCreated {
		t.Errorf("join: %d %s", got.status, got.body)
	}
}

// A server of the version before ignores the demand, and its statement must fail. So does a server without
// the settings of the provider.
func TestADemandedIdentityIsNeverSkipped(t *testing.T) {
	t.Parallel()
	s := newIdentitySite(t)
	l := s.launch("vm-1", onEC2, proofInstance)
	_, err := s.db.Pool().Exec(t.Context(), `UPDATE join_tokens SET used_by = 'vm-1', used_at = now()`)
	if err == nil || !strings.Contains(err.Error(), "join_tokens_proven") {
		t.Errorf("a join without the check: %v", err)
	}
	for _, proven := range []string{"", "i-2"} {
		if _, err := s.db.JoinTokens.JoinWithKey(t.Context(), l.boot.JoinToken, "vm-1", nil, proven); !berth.IsSlug(err, wire.SlugIdentityRefused) {
			t.Errorf("a join that proves %q: %v", proven, err)
		}
	}
	plain := s.accounts.Providers["lab"]
	s.accounts.Providers["aws"] = plain // as in a server with another file; the map is shared
	l.refused(s.document(proofInstance, "eu-west-1", "eu-west-1a"), http.StatusServiceUnavailable, cloud.IdentityNoKeys, "no identity settings")
}

func TestOtherProvidersDemandNoIdentity(t *testing.T) {
	t.Parallel()
	s := newIdentitySite(t)
	l := s.launch("vm-1", cloud.Request{Provider: "lab", Offering: cloud.Offering{Region: "r"}}, "")
	if l.boot.Identity != nil {
		t.Errorf("bootstrap %+v", l.boot.Identity)
	}
	if got := l.joins(nil); got.status != http.StatusCreated {
		t.Errorf("join: %d %s", got.status, got.body)
	}
}
