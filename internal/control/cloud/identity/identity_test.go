package identity_test

import (
	"encoding/base64"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"berth/internal/control/cloud"
	"berth/internal/control/cloud/identity"
	"berth/internal/control/cloud/identity/identitytest"
	"berth/wire"
)

const (
	account  = "123456789012"
	instance = "i-0123456789abcdef0"
	region   = "eu-west-1"
	zone     = "eu-west-1a"
)

// ofEC2 is the demand of a launch on EC2.
var ofEC2 = cloud.Demand{Source: wire.IdentityEC2, Launch: cloud.Record{Machine: "vm-1", N: 1, Instance: instance,
	Offering: cloud.Offering{Region: region, Zone: zone}}}

// verified verifies an identity and compares it with the launch, as a join does.
func verified(t *testing.T, v cloud.Identities, id wire.Identity, d cloud.Demand, now time.Time) error {
	t.Helper()
	claims, err := v.Verify(t.Context(), id, d, now)
	if err != nil {
		return err
	}
	return d.Launch.Identify(claims)
}

// refuses checks the fault and the text of a refusal.
func refuses(t *testing.T, err error, fault cloud.IdentityFault, text string) {
	t.Helper()
	refusal, ok := errors.AsType[*cloud.IdentityError](err)
	if !ok || refusal.Fault != fault || !strings.Contains(refusal.Text, text) {
		t.Errorf("%v, want %s with %q", err, fault, text)
	}
}

// AWS signs with keys of 1024 bits.
func TestDocumentsOfEC2AreComparedWithTheLaunch(t *testing.T) {
	t.Parallel()
	aws := identitytest.New(t, 1024)
	v, err := identity.NewEC2(account, aws.Certificate("aws.pem"))
	if err != nil {
		t.Fatal(err)
	}
	document := func() map[string]any { return identitytest.Document(account, instance, region, zone) }
	now := time.Now()
	if err := verified(t, v, aws.EC2(document()), ofEC2, now); err != nil {
		t.Fatal(err)
	}
	for key, c := range map[string]struct{ value, text string }{
		"instanceId":       {"i-0fedcba9876543210", "names instance \"i-0fedcba9876543210\""},
		"region":           {"eu-west-2", "names region \"eu-west-2\""},
		"availabilityZone": {"eu-west-1b", "names zone \"eu-west-1b\""},
		"accountId":        {"210987654321", "names account \"210987654321\""},
	} {
		d := document()
		d[key] = c.value
		refuses(t, verified(t, v, aws.EC2(d), ofEC2, now), cloud.IdentityMismatch, c.text)
	}
	early := ofEC2
	early.Launch.Instance = ""
	refuses(t, verified(t, v, aws.EC2(document()), early, now), cloud.IdentityPending, "not confirmed the instance")
	anyZone := ofEC2
	anyZone.Launch.Zone = ""
	if err := verified(t, v, aws.EC2(document()), anyZone, now); err != nil {
		t.Errorf("a launch for which the cloud chose the zone: %v", err)
	}
}

func TestDocumentsOfEC2NeedASignature(t *testing.T) {
	t.Parallel()
	aws, thief := identitytest.New(t, 1024), identitytest.New(t, 1024)
	v, err := identity.NewEC2(account, aws.Certificate("aws.pem"))
	if err != nil {
		t.Fatal(err)
	}
	good := aws.EC2(identitytest.Document(account, instance, region, zone))
	forged := thief.EC2(identitytest.Document(account, instance, region, zone))
	altered := aws.EC2(identitytest.Document(account, "i-1", region, zone))
	altered.Document = strings.Replace(altered.Document, "i-1", instance, 1)
	spaced := good
	spaced.Document += "\n"
	now := time.Now()
	for name, id := range map[string]wire.Identity{"of another key": forged, "of another text": altered, "of a longer text": spaced} {
		t.Log(name)
		refuses(t, verified(t, v, id, ofEC2, now), cloud.IdentityUnsigned, "no configured certificate has signed it")
	}
	refuses(t, verified(t, v, good, ofEC2, now.Add(20*365*24*time.Hour)), cloud.IdentityNoKeys, "valid now")
	empty := good
	empty.Signature = ""
	refuses(t, verified(t, v, empty, ofEC2, now), cloud.IdentityMalformed, "no signature")
	empty.Signature = "?"
	refuses(t, verified(t, v, empty, ofEC2, now), cloud.IdentityMalformed, "no signature in base64")
	refuses(t, verified(t, v, wire.Identity{Source: wire.IdentityEC2}, ofEC2, now), cloud.IdentityMalformed, "no document")
	refuses(t, verified(t, v, aws.EC2(map[string]any{"accountId": account}), ofEC2, now), cloud.IdentityMalformed, "no instanceId")
}

// The region of the launch chooses the certificate: the document cannot.
func TestACertificateOfARegionCountsThere(t *testing.T) {
	t.Parallel()
	west, east := identitytest.New(t, 1024), identitytest.New(t, 1024)
	folder := t.TempDir()
	for name, s := range map[string]*identitytest.Signer{"eu-west-1.pem": west, "us-east-1.pem": east} {
		text, err := os.ReadFile(s.Certificate(name))
		if err == nil {
			err = os.WriteFile(filepath.Join(folder, name), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	v, err := identity.NewEC2(account, folder)
	if err != nil {
		t.Fatal(err)
	}
	document, now := identitytest.Document(account, instance, region, zone), time.Now()
	if err := verified(t, v, west.EC2(document), ofEC2, now); err != nil {
		t.Error(err)
	}
	refuses(t, verified(t, v, east.EC2(document), ofEC2, now), cloud.IdentityUnsigned, "in region eu-west-1")
	elsewhere := ofEC2
	elsewhere.Launch.Region = "ap-south-1"
	refuses(t, verified(t, v, west.EC2(document), elsewhere, now), cloud.IdentityNoKeys, "no configured certificate is valid")
	if lacking := v.Lacks([]string{"eu-west-1", "ap-south-1", "us-east-1"}); !slices.Equal(lacking, []string{"ap-south-1"}) {
		t.Errorf("regions without a certificate: %v", lacking)
	}
}

func TestFaultsOfCertificatesAreNamed(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	text := filepath.Join(folder, "text")
	if err := os.WriteFile(text, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ account, path, want string }{
		{"12", text, "12 digits"}, {account, "/none", "/none"}, {account, folder, "no file such as eu-west-1.pem"},
		{account, text, "no certificate in PEM"},
	} {
		if _, err := identity.NewEC2(c.account, c.path); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// google is a server of keys, with the signer of the tokens.
type google struct {
	*identitytest.Signer
	v       *identity.GCE
	set     atomic.Pointer[[]byte] // nil: the server answers 500
	fetches atomic.Int64
}

const audience = "berth/0123"

// ofGCE is the demand of a launch on GCE.
var ofGCE = cloud.Demand{Source: wire.IdentityGCE, Audience: audience, Launch: cloud.Record{Machine: "vm-1", N: 1,
	Instance: "europe-west4-b/vm-1-1-0a1b/152986662232938449", Offering: cloud.Offering{Region: "europe-west4", Zone: "europe-west4-b"}}}

func newGoogle(t *testing.T) *google {
	t.Helper()
	g := &google{Signer: identitytest.New(t, 2048)}
	set := identitytest.KeySet(g.Signer)
	g.set.Store(&set)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		g.fetches.Add(1)
		if set := g.set.Load(); set != nil {
			_, _ = w.Write(*set)
			return
		}
		http.Error(w, "Internal Server Error", http.StatusInternalServerError)
	}))
	t.Cleanup(server.Close)
	var err error
	if g.v, err = identity.NewGCE("berth-burst", server.URL, identity.KeyOptions{Client: server.Client(), Limit: time.Minute}); err != nil {
		t.Fatal(err)
	}
	return g
}

// claims are the claims of the launch's instance.
func claims(now time.Time) map[string]any {
	return identitytest.Claims("berth-burst", "europe-west4-b", "vm-1-1-0a1b", "152986662232938449", audience, now)
}

// engine returns the claims about the instance, for a change.
func engine(c map[string]any) map[string]any {
	return c["google"].(map[string]any)["compute_engine"].(map[string]any)
}

func TestTokensOfGCEAreComparedWithTheLaunch(t *testing.T) {
	t.Parallel()
	g, now := newGoogle(t), time.Now()
	if err := verified(t, g.v, g.GCE(claims(now)), ofGCE, now); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(c map[string]any)
		fault  cloud.IdentityFault
		text   string
	}{
		"another instance": {func(c map[string]any) { engine(c)["instance_id"] = "1" }, cloud.IdentityMismatch, "names instance"},
		"another name":     {func(c map[string]any) { engine(c)["instance_name"] = "vm-2" }, cloud.IdentityMismatch, "names instance"},
		"another zone":     {func(c map[string]any) { engine(c)["zone"] = "us-east1-b" }, cloud.IdentityMismatch, "us-east1-b"},
		"another project":  {func(c map[string]any) { engine(c)["project_id"] = "other" }, cloud.IdentityMismatch, "names project \"other\""},
		"another issuer":   {func(c map[string]any) { c["iss"] = "https://evil.test" }, cloud.IdentityMismatch, "issuer"},
		"another audience": {func(c map[string]any) { c["aud"] = "https://vault.test" }, cloud.IdentityAudience, "not that of this launch"},
		"two audiences":    {func(c map[string]any) { c["aud"] = []string{audience, "x"} }, cloud.IdentityMalformed, "documented JSON"},
		"without instance": {func(c map[string]any) { delete(c, "google") }, cloud.IdentityMalformed, "format full"},
		"expired":          {func(c map[string]any) { c["iat"], c["exp"] = now.Unix()-7200, now.Unix()-3600 }, cloud.IdentityExpired, "it expired at"},
		"of the future":    {func(c map[string]any) { c["iat"], c["exp"] = now.Unix()+300, now.Unix()+3900 }, cloud.IdentityExpired, "in the future"},
		"without an end":   {func(c map[string]any) { delete(c, "exp") }, cloud.IdentityExpired, "it expired at"},
		"with a late end":  {func(c map[string]any) { c["exp"] = 1e300 }, cloud.IdentityExpired, "it is valid for"},
	} {
		t.Log(name)
		changed := claims(now)
		c.change(changed)
		refuses(t, verified(t, g.v, g.GCE(changed), ofGCE, now), c.fault, c.text)
	}
	if n := g.fetches.Load(); n != 1 {
		t.Errorf("the keys were fetched %d times", n)
	}
}

func TestTokensOfGCENeedASignature(t *testing.T) {
	t.Parallel()
	g, thief, now := newGoogle(t), identitytest.New(t, 2048), time.Now()
	thief.ID = g.ID // the key id is no secret
	good := g.GCE(claims(now)).Token
	part := strings.Split(good, ".")
	other := claims(now)
	engine(other)["instance_id"] = "1"
	altered := strings.Split(g.GCE(other).Token, ".")
	header := func(alg string) map[string]any { return map[string]any{"alg": alg, "kid": g.ID, "typ": "JWT"} }
	none := g.Token(header("none"), claims(now)).Token
	for name, c := range map[string]struct {
		token string
		fault cloud.IdentityFault
		text  string
	}{
		"of another key":      {thief.GCE(claims(now)).Token, cloud.IdentityUnsigned, "has not signed it"},
		"of another payload":  {part[0] + "." + altered[1] + "." + part[2], cloud.IdentityUnsigned, "has not signed it"},
		"none":                {none[:strings.LastIndex(none, ".")+1], cloud.IdentityUnsigned, "algorithm is \"none\""},
		"none with signature": {none, cloud.IdentityUnsigned, "algorithm is \"none\""},
		"HS256":               {g.Token(header("HS256"), claims(now)).Token, cloud.IdentityUnsigned, "algorithm is \"HS256\""},
		"rs256":               {g.Token(header("rs256"), claims(now)).Token, cloud.IdentityUnsigned, "algorithm is \"rs256\""},
		"critical": {g.Token(map[string]any{"alg": "RS256", "kid": g.ID, "crit": []string{"b64"}}, claims(now)).Token,
			cloud.IdentityMalformed, "crit"},
		"two parts": {part[0] + "." + part[1], cloud.IdentityMalformed, "three parts"},
		"padded":    {part[0] + "." + part[1] + "." + part[2] + "=", cloud.IdentityMalformed, "base64url"},
		"no header": {base64.RawURLEncoding.EncodeToString([]byte("x")) + "." + part[1] + "." + part[2], cloud.IdentityMalformed, "header is not JSON"},
		"empty":     {"", cloud.IdentityMalformed, "three parts"},
	} {
		t.Log(name)
		refuses(t, verified(t, g.v, wire.Identity{Source: wire.IdentityGCE, Token: c.token}, ofGCE, now), c.fault, c.text)
	}
}

func TestAnOutageOfTheServerOfKeysKeepsKnownKeys(t *testing.T) {
	t.Parallel()
	g, now := newGoogle(t), time.Now()
	set := g.set.Swap(nil)
	refuses(t, verified(t, g.v, g.GCE(claims(now)), ofGCE, now), cloud.IdentityNoKeys, "try again")
	g.set.Store(set)
	refuses(t, verified(t, g.v, g.GCE(claims(now)), ofGCE, now.Add(time.Second)), cloud.IdentityNoKeys, "try again")
	if n := g.fetches.Load(); n != 1 {
		t.Errorf("the keys were fetched %d times in a second", n)
	}
	now = now.Add(time.Minute)
	if err := verified(t, g.v, g.GCE(claims(now)), ofGCE, now); err != nil {
		t.Error(err)
	}
	g.set.Store(nil)
	now = now.Add(24 * time.Hour)
	if err := verified(t, g.v, g.GCE(claims(now)), ofGCE, now); err != nil {
		t.Errorf("in the outage: %v", err)
	}
	// A key that is no longer published, and one that is new.
	next := identitytest.New(t, 2048)
	rotated := identitytest.KeySet(next)
	g.set.Store(&rotated)
	now = now.Add(time.Minute)
	if err := verified(t, g.v, next.GCE(claims(now)), ofGCE, now); err != nil {
		t.Errorf("a new key: %v", err)
	}
	refuses(t, verified(t, g.v, g.GCE(claims(now)), ofGCE, now.Add(time.Second)), cloud.IdentityNoKeys, "do not include")
	refuses(t, verified(t, g.v, g.GCE(claims(now)), ofGCE, now.Add(time.Minute)), cloud.IdentityNoKeys, "do not include")
}

func TestBadSetsOfKeysAreRefused(t *testing.T) {
	t.Parallel()
	g, now := newGoogle(t), time.Now()
	short := identitytest.KeySet(identitytest.New(t, 1024))
	for name, set := range map[string][]byte{
		"no JSON": []byte("<html>"), "no key": []byte(`{"keys":[]}`), "short key": short,
		"long set":      []byte(`{"keys":[]}` + strings.Repeat(" ", 64<<10)),
		"even exponent": []byte(`{"keys":[{"kty":"RSA","kid":"a","n":"AQAB","e":"Ag"}]}`),
		"elliptic":      []byte(`{"keys":[{"kty":"EC","kid":"a"}]}`),
	} {
		g.set.Store(&set)
		now = now.Add(time.Minute)
		t.Log(name)
		refuses(t, verified(t, g.v, g.GCE(claims(now)), ofGCE, now), cloud.IdentityNoKeys, "cannot fetch")
	}
	for _, url := range []string{"http://keys.test", "keys", ""} {
		if _, err := identity.NewGCE("p", url, identity.KeyOptions{}); err == nil {
			t.Errorf("keys %q are accepted", url)
		}
	}
	if _, err := identity.NewGCE("", "https://keys.test", identity.KeyOptions{}); err == nil {
		t.Error("an empty project is accepted")
	}
}

// A token of one launch proves nothing for another one.
func TestAnAudienceIsBoundToLaunchClusterAndSecret(t *testing.T) {
	t.Parallel()
	first := cloud.Audience("cluster", "vm-1", 1, "secret")
	seen := map[string]bool{first: true}
	for _, other := range []string{cloud.Audience("other", "vm-1", 1, "secret"), cloud.Audience("cluster", "vm-2", 1, "secret"),
		cloud.Audience("cluster", "vm-1", 2, "secret"), cloud.Audience("cluster", "vm-1", 1, "other")} {
		if seen[other] {
			t.Errorf("audience %s twice", other)
		}
		seen[other] = true
	}
	if cloud.Audience("cluster", "vm-1", 1, "secret") != first || strings.Contains(first, "secret") {
		t.Errorf("audience %s", first)
	}
}

// Hostile input ends in a refusal, never in a panic or in claims: nothing that the fuzzer makes is signed.
func FuzzIdentity(f *testing.F) {
	signer := identitytest.New(f, 2048)
	set := identitytest.KeySet(signer)
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(set) }))
	f.Cleanup(server.Close)
	gce, err := identity.NewGCE("berth-burst", server.URL, identity.KeyOptions{Client: server.Client(), Limit: time.Minute})
	if err != nil {
		f.Fatal(err)
	}
	ec2, err := identity.NewEC2(account, signer.Certificate("aws.pem"))
	if err != nil {
		f.Fatal(err)
	}
	now := time.Now()
	document := signer.EC2(identitytest.Document(account, instance, region, zone))
	token := signer.GCE(claims(now)).Token
	for _, seed := range [][3]string{{document.Document, document.Signature, token}, {"{}", "AAAA", "e30.e30."}, {"", "", ".."},
		{strings.Repeat("[", 4<<10), "====", strings.Repeat("A", wire.MaxIdentity)}} {
		f.Add(seed[0], seed[1], seed[2])
	}
	f.Fuzz(func(t *testing.T, text, signature, hostile string) {
		for _, c := range []struct {
			v    cloud.Identities
			id   wire.Identity
			d    cloud.Demand
			good bool
		}{
			{ec2, wire.Identity{Document: text, Signature: signature}, ofEC2, text == document.Document},
			{gce, wire.Identity{Token: hostile}, ofGCE, hostile == token},
		} {
			_, err := c.v.Verify(t.Context(), c.id, c.d, now)
			if _, ok := errors.AsType[*cloud.IdentityError](err); !ok && !c.good {
				t.Errorf("%+v: %v", c.id, err)
			}
		}
	})
}
