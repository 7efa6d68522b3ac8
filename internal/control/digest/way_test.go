package digest

import (
	"crypto/x509"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"berth/internal/lib/publicnet"
)

// inner starts a server with TLS in an allowed network, and returns its host and the number of its calls.
func inner(t *testing.T, roots *x509.CertPool) (host string, calls *atomic.Int32) {
	t.Helper()
	calls = &atomic.Int32{}
	server := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { calls.Add(1) }))
	t.Cleanup(server.Close)
	roots.AddCert(server.Certificate())
	return strings.TrimPrefix(server.URL, "https://"), calls
}

// get makes one call on a way.
func get(t *testing.T, w *way, url string) error {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := w.RoundTrip(r)
	if err == nil {
		err = answer.Body.Close()
	}
	return err
}

// The token service or redirect of a registry leads into an allowed network only if the registry is in one.
func TestARegistryOutsideLeadsToNoAllowedNetwork(t *testing.T) {
	t.Parallel()
	roots := x509.NewCertPool()
	registry, _ := inner(t, roots)
	service, calls := inner(t, roots)
	r := &Registries{Network: publicnet.Policy{}.Allow(netip.MustParsePrefix("127.0.0.0/8")), Timeout: time.Minute,
		Plaintext: []string{"plain.example:5000"}}

	outside := r.way("registry.example", roots)
	defer outside.close()
	err := get(t, outside, "https://"+service+"/admin")
	if _, refused := errors.AsType[*publicnet.RefusedError](err); !refused || calls.Load() != 0 || !outside.refused.Load() {
		t.Errorf("a registry outside leads to %d calls, error %v", calls.Load(), err)
	}
	if err := get(t, outside, "http://plain.example:5000/admin"); err == nil || !strings.Contains(err.Error(), "without TLS") {
		t.Errorf("a registry outside leads to a registry without TLS: %v", err)
	}

	inside := r.way(registry, roots)
	defer inside.close()
	if err := errors.Join(get(t, inside, "https://"+registry+"/v2/"), get(t, inside, "https://"+service+"/token")); err != nil ||
		calls.Load() != 1 {
		t.Errorf("a registry inside leads to %d calls, error %v", calls.Load(), err)
	}
}

// A registry that limits one login answers others.
func TestALimitOfOneLoginClosesNoRegistry(t *testing.T) {
	t.Parallel()
	var h hosts
	now := time.Now()
	limited := &answerError{limited: true, after: time.Minute}
	red, blue := callers("docker.io", "red", "login"), callers("docker.io", "blue", "login")
	if _, ok := h.enter(now, "docker.io", red); !ok {
		t.Fatal("the first question finds the registry closed")
	}
	h.leave("docker.io", "red", limited, limited.ill, now)
	h.leave(red, "", limited, limited.limited, now)
	for range 2 * maxAbreast { // a refused question gives its places back
		if wait, ok := h.enter(now, "docker.io", red); ok || wait < time.Minute {
			t.Fatalf("the limited login waits %s", wait)
		}
	}
	if wait, ok := h.enter(now, "docker.io", blue); !ok {
		t.Errorf("another login waits %s", wait)
	}
}

// A tenant can choose questions that fail, such as for a name of which a proxy answers 500. They close the registry for
// this tenant only.
func TestFailuresOfOneTenantCloseNoRegistryForOthers(t *testing.T) {
	t.Parallel()
	var h hosts
	now := time.Now()
	failure := &answerError{ill: true}
	asks := func(tenant string) bool {
		host, mine, limit := names("docker.io", tenant, "login")
		if _, ok := h.enter(now, host, mine, limit); !ok {
			return false
		}
		h.leave(host, tenant, failure, true, now)
		h.leave(mine, "", failure, true, now)
		h.leave(limit, "", failure, false, now)
		return true
	}
	for range ailing {
		if !asks("red") {
			t.Fatal("closed too early")
		}
	}
	if asks("red") {
		t.Error("the registry is open for the tenant whose questions fail")
	}
	if !asks("blue") {
		t.Error("the registry is closed for another tenant")
	}
	if asks("green") {
		t.Error("the registry is open, although the questions of two tenants have failed")
	}
}

// A success ends no pause that the registry has asked for meanwhile.
func TestASuccessKeepsARequestedPause(t *testing.T) {
	t.Parallel()
	var h hosts
	now := time.Now()
	name := callers("docker.io", "red", "login")
	for range 2 {
		if _, ok := h.enter(now, name); !ok {
			t.Fatal("closed at first")
		}
	}
	h.leave(name, "", &answerError{limited: true, after: time.Minute}, true, now)
	h.leave(name, "", nil, false, now)
	if wait, ok := h.enter(now, name); ok || wait < time.Minute {
		t.Errorf("open %t, wait %s", ok, wait)
	}
}

// The rules of images and the library that calls registries must read a name in the same way.
func TestImagesAreAskedAtTheJudgedRegistryOnly(t *testing.T) {
	t.Parallel()
	for image, want := range map[string]string{
		"busybox": "index.docker.io", "acme/tool:1": "index.docker.io", "docker.io/acme/tool": "index.docker.io",
		"index.docker.io/acme/tool": "index.docker.io", "ghcr.io/acme/tool:1": "ghcr.io",
		"localhost:5000/tool:1": "localhost:5000", "localhost/tool:1": "", "localhost/library/tool": "", "Host/tool": "",
	} {
		got, err := hostOf(image)
		answer, ok := errors.AsType[*answerError](err)
		if got != want || (err == nil) == (want == "") || err != nil && (!ok || !answer.final) {
			t.Errorf("%s is asked at %q, %v; want %q", image, got, err, want)
		}
	}
}
