package fetch_test

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"berth/internal/lib/archive"
	"berth/internal/machine/fetch"
	"berth/spec"
)

// web is a server that a test's handler plays.
func web(t *testing.T, h http.HandlerFunc) (*httptest.Server, *fetch.Sources) {
	t.Helper()
	server := httptest.NewTLSServer(h)
	t.Cleanup(server.Close)
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	s := fetch.Open(fetch.Options{Policy: near, Roots: roots, Limits: archive.Limits{Bytes: 100, Files: 4}})
	t.Cleanup(s.Close)
	return server, s
}

func sumOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

func TestAFileIsWhatItsHashSays(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	server, s := web(t, func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		_, _ = w.Write([]byte("content"))
	})
	in := spec.Input{From: server.URL + "/f", To: "/data/f", SHA256: sumOf("content")}
	found, files, err := findAndRead(t, s, in, "", 1)
	if err != nil || files[fetch.FileName] != "content" || len(files) != 1 {
		t.Fatalf("it is %q, %v", files, err)
	}
	if found.Address.Hex() != in.SHA256 || asked.Load() != 1 {
		t.Errorf("its address is %s, and it was asked for %d times", found.Address, asked.Load())
	}
	in.SHA256 = sumOf("other")
	_, _, err = findAndRead(t, s, in, "", 3)
	refused(t, "another hash", err, "has sha256 "+sumOf("content"))
	if asked.Load() != 2 {
		t.Error("the wrong content was asked for again")
	}
}

func TestAFileIsTheVersionThatWasFound(t *testing.T) {
	t.Parallel()
	var version atomic.Pointer[string]
	set := func(v string) { version.Store(&v) }
	server, s := web(t, func(w http.ResponseWriter, r *http.Request) {
		v := *version.Load()
		w.Header().Set("ETag", v)
		if m := r.Header.Get("If-Match"); m != "" && m != v {
			w.WriteHeader(http.StatusPreconditionFailed)
			return
		}
		_, _ = w.Write([]byte("is " + v))
	})
	in := spec.Input{From: server.URL + "/f?token=canary", To: "/f"}
	set(`"1"`)
	one, files, err := findAndRead(t, s, in, "", 1)
	if err != nil || files[fetch.FileName] != `is "1"` {
		t.Fatalf("it is %q, %v", files, err)
	}
	same, err := s.Find(t.Context(), in, "")
	if err != nil || same.Address != one.Address || same.Kind != one.Kind || same.Once {
		t.Errorf("found again it is %+v, %v; it was %+v", same, err, one)
	}
	set(`"2"`)
	if _, err := read(t, same, 3); !errors.As(err, new(fetch.Changed)) || strings.Contains(err.Error(), "canary") {
		t.Errorf("read when it has changed: %v", err)
	}
	two, err := s.Find(t.Context(), in, "")
	if err != nil || two.Address == one.Address {
		t.Errorf("another version has the address %v, %v", two, err)
	}
	set(`W/"3"`) // says that it is about the same, which is not enough
	weak, err := s.Find(t.Context(), in, "")
	if err != nil || !weak.Once {
		t.Errorf("%+v, %v", weak, err)
	}
}

func TestErrorsOfAWebServerSayWhoseTheyAre(t *testing.T) {
	t.Parallel()
	server, s := web(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/long":
			_, _ = w.Write(make([]byte, 101))
		case "/longer":
			w.(http.Flusher).Flush() //nolint:forcetypeassert // of a test
			_, _ = w.Write(make([]byte, 101))
		case "/short":
			w.Header().Set("Content-Length", "50")
			_, _ = w.Write(make([]byte, 20))
		case "/broken":
			w.(http.Flusher).Flush() //nolint:forcetypeassert // of a test
			_, _ = w.Write(make([]byte, 20))
			w.(http.Flusher).Flush() //nolint:forcetypeassert // of a test
			panic(http.ErrAbortHandler)
		case "/plain":
			http.Redirect(w, r, "http://127.0.0.1:1/canary", http.StatusFound)
		case "/circle":
			http.Redirect(w, r, "/circle", http.StatusFound)
		default:
			status := map[string]int{"/404": 404, "/403": 403, "/401": 401, "/410": 410, "/500": 500, "/503": 503, "/429": 429, "/408": 408}[r.URL.Path]
			http.Error(w, "canary", status)
		}
	})
	get := func(path string) error {
		_, _, err := findAndRead(t, s, spec.Input{From: server.URL + path + "?canary", To: "/f"}, "", 2)
		if err != nil && strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: it repeats what it should not: %v", path, err)
		}
		return err
	}
	for path, says := range map[string]string{
		"/404": "404 Not Found", "/403": "403 Forbidden", "/401": "401 Unauthorized", "/410": "410 Gone",
		"/long": "has 101 bytes, more than the limit of 100 bytes", "/longer": "is larger than the limit of 100 bytes", "/plain": "redirects to http://127.0.0.1:1, which is not encrypted",
	} {
		refused(t, path, get(path), says)
	}
	for path, says := range map[string]string{
		"/500": "500 Internal Server Error", "/503": "503 Service Unavailable", "/429": "429", "/408": "408",
		"/short": "unexpected EOF", "/broken": "", "/circle": "more than 10 redirects",
	} {
		passing(t, path, get(path), says)
	}
	server.Close()
	passing(t, "nobody there", get("/404"), "refused")
}

func TestALoginIsAToken(t *testing.T) {
	t.Parallel()
	var got atomic.Value
	server, s := web(t, func(_ http.ResponseWriter, r *http.Request) { got.Store(r.Header.Get("Authorization")) })
	for login, want := range map[spec.Sensitive]string{"abc\n": "Bearer abc", "Basic xyz": "Basic xyz", "": ""} {
		if _, err := s.Find(t.Context(), spec.Input{From: server.URL + "/", To: "/f", Secret: "TOKEN"}, login); err != nil || got.Load() != want {
			t.Errorf("it is sent %q, want %q, %v", got.Load(), want, err)
		}
	}
}

func TestAddressesWithinAreRefused(t *testing.T) {
	t.Parallel()
	reached := atomic.Bool{}
	server, _ := web(t, func(http.ResponseWriter, *http.Request) { reached.Store(true) })
	s := fetch.Open(fetch.Options{})
	t.Cleanup(s.Close)
	for _, in := range []spec.Input{
		{From: server.URL + "/f", To: "/f"},
		{From: "https://169.254.169.254/latest/meta-data", To: "/f"},
		{From: "s3://bucket/x/", To: "/f", Endpoint: strings.Replace(server.URL, "https", "http", 1)},
		{From: "s3://bucket/x", To: "/f", Endpoint: "http://[::ffff:127.0.0.1]:1"},
		{From: "gs://bucket/x/", To: "/f", Endpoint: strings.Replace(server.URL, "https", "http", 1)},
		{From: "azblob://account/container/x", To: "/f", Endpoint: strings.Replace(server.URL, "https", "http", 1)},
	} {
		_, _, err := findAndRead(t, s, in, "", 2)
		refused(t, in.From, err, "is not an address that may be dialed from here")
	}
	if reached.Load() {
		t.Error("the server was reached")
	}
}
