package fetch_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"berth/internal/machine/fetch"
	"berth/internal/machine/fetch/gstest"
	"berth/spec"
)

// The claims share one server.
func TestObjectsOfGoogle(t *testing.T) {
	t.Parallel()
	server := gstest.Start(t)
	keeps(t, place{server, server.Account.Login, few(t)},
		claim{"a list of many pages is read to its end", func(t *testing.T, p place) {
			for _, name := range strings.Split("abcdefg", "") {
				server.Put("pages/"+name, name)
			}
			asked := atomic.Int64{}
			in := through(t, server.Input("pages/", "/d", "GS"), func(r *http.Request, w http.ResponseWriter, next http.Handler) {
				if q := r.URL.Query(); q.Has("prefix") {
					asked.Add(1)
					q.Set("maxResults", "2")
					r.URL.RawQuery = q.Encode()
				}
				next.ServeHTTP(w, r)
			})
			if _, files, err := findAndRead(t, p.s, in, p.login, 1); err != nil || len(files) != 7 || asked.Load() != 4 {
				t.Errorf("%d requests list %q, %v", asked.Load(), files, err)
			}
		}},
		claim{"what is stored packed comes as it is stored", func(t *testing.T, p place) {
			var packed bytes.Buffer
			w := gzip.NewWriter(&packed)
			_, _ = io.WriteString(w, strings.Repeat("content ", 100))
			_ = w.Close()
			server.PutGzip("packed/a.gz", packed.String())
			if _, files, err := findAndRead(t, p.s, server.Input("packed/", "/d", "GS"), p.login, 1); err != nil || files["a.gz"] != packed.String() {
				t.Errorf("%d bytes of %d come, %v", len(files["a.gz"]), packed.Len(), err)
			}
		}},
		claim{"content that its checksum does not fit is asked for anew", func(t *testing.T, p place) {
			server.Put("sum/a", "right")
			asked := atomic.Int64{}
			in := through(t, server.Input("sum/", "/d", "GS"), func(r *http.Request, w http.ResponseWriter, next http.Handler) {
				if wantsContent(r) && asked.Add(1) < 3 {
					_, _ = io.WriteString(w, "wrong")
					return
				}
				next.ServeHTTP(w, r)
			})
			if _, files, err := findAndRead(t, p.s, in, p.login, 3); err != nil || files["a"] != "right" {
				t.Errorf("it is %q, %v", files, err)
			}
			asked.Store(0)
			_, _, err := findAndRead(t, p.s, in, p.login, 2)
			passing(t, "wrong twice", err, "what came is not what its checksum says")
		}},
		claim{"who may not read is refused, and what may pass is not", tellsGoogleRefusals})
}

func tellsGoogleRefusals(t *testing.T, p place) {
	server, _ := p.store.(*gstest.Server)
	server.Put("refuse/a", "a")
	in := server.Input("refuse/", "/d", "GS")
	other := in
	other.From = "gs://no-such-bucket/x/"
	wrong, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	refusals(t, p.s, map[string]refusal{
		"nobody's login":    {server.Input("refuse/", "/d", ""), "", "gs://bucket/refuse/: 401 Unauthorized (required)"},
		"another's key":     {in, server.Account.Written(t, wrong), "a token for secret GS: 400 Bad Request (invalid_grant)"},
		"no key at all":     {in, "canary", "secret GS is not the JSON key of a service account"},
		"a user's login":    {in, `{"type": "authorized_user", "client_id": "canary", "refresh_token": "canary"}`, "secret GS is not the JSON key of a service account"},
		"another's program": {in, `{"type": "external_account", "credential_source": {"executable": {"command": "canary"}}}`, "secret GS is not the JSON key"},
		"a key that is none": {in, `{"type": "service_account", "client_email": "a@b", "private_key": "canary", "token_uri": "http://127.0.0.1:1/"}`,
			"secret GS: private_key is not valid"},
		"tokens of nobody": {in, `{"type": "service_account", "client_email": "a@b", "private_key": "canary", "token_uri": "file:///canary"}`,
			"secret GS: token_uri is not a valid URL"},
		"tokens in the open": {in, `{"type": "service_account", "client_email": "a@b", "private_key": "canary", "token_uri": "http://canary.example.com/"}`,
			"secret GS: token_uri uses plain http"},
		"no such bucket": {other, p.login, "404 Not Found (notFound)"},
	})
	limited := through(t, in, func(_ *http.Request, w http.ResponseWriter, _ http.Handler) {
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, `{"error": {"errors": [{"reason": "rateLimitExceeded"}]}}`)
	})
	_, _, err = findAndRead(t, p.s, limited, p.login, 1)
	passing(t, "too many requests", err, "403 (rateLimitExceeded)")
	aged := through(t, in, func(_ *http.Request, w http.ResponseWriter, _ http.Handler) {
		_, _ = io.WriteString(w, `{"items": [{"name": "refuse/a", "size": "1"}]}`)
	})
	_, _, err = findAndRead(t, p.s, aged, p.login, 1)
	refused(t, "no versions", err, "gs://bucket/refuse/a: the server returned no generation")
	odd := through(t, in, func(_ *http.Request, w http.ResponseWriter, _ http.Handler) {
		_, _ = io.WriteString(w, `{"items": [{"size": "canary"}]}`)
	})
	_, _, err = findAndRead(t, p.s, odd, p.login, 1)
	passing(t, "an answer that is none", err, "gs://bucket/refuse/: the answer cannot be read")
}

// One token serves all of an input, for as long as it is good.
func TestTokensOfAServiceAccount(t *testing.T) {
	t.Parallel()
	account := gstest.NewAccount(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case !account.Admits(r):
			w.WriteHeader(http.StatusUnauthorized)
		case wantsContent(r):
			_, _ = io.WriteString(w, "x")
		default:
			_, _ = io.WriteString(w, `{"items": [{"name": "p/a", "size": "1", "generation": "7"}, {"name": "p/b", "size": "1", "generation": "8"}]}`)
		}
	}))
	t.Cleanup(server.Close)
	s := few(t)
	in := spec.Input{From: "gs://bucket/p/", To: "/d", Endpoint: server.URL, Secret: "GS"}
	if _, files, err := findAndRead(t, s, in, account.Login, 1); err != nil || len(files) != 2 || account.Given.Load() != 1 {
		t.Errorf("%d tokens read %q, %v", account.Given.Load(), files, err)
	}
	found, err := s.Find(t.Context(), in, account.Login)
	if err != nil {
		t.Fatal(err)
	}
	account.Withdraw()
	_, err = read(t, found, 1)
	refused(t, "a token that was withdrawn", err, "401 Unauthorized")

	answer := func(status int, header, value string) func(w http.ResponseWriter) bool {
		return func(w http.ResponseWriter) bool {
			w.Header().Set(header, value)
			w.WriteHeader(status)
			_, _ = io.WriteString(w, `{"error": "canary of a very long code that a server could hide something in: `+strings.Repeat("secret", 20)+`"}`)
			return true
		}
	}
	for says, spoil := range map[string]func(w http.ResponseWriter) bool{
		"a token for secret GS: 503 Service Unavailable": answer(http.StatusServiceUnavailable, "X", "y"),
		"the clock of this machine shows another time":   answer(http.StatusBadRequest, "Date", time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat)),
		"a token for secret GS: the answer cannot be read": func(w http.ResponseWriter) bool {
			_, _ = io.WriteString(w, "canary")
			return true
		},
		"a token for secret GS: EOF": func(http.ResponseWriter) bool { panic(http.ErrAbortHandler) },
	} {
		account.Spoil(spoil)
		_, err := s.Find(t.Context(), in, account.Login)
		passing(t, says, err, says)
	}
	account.Spoil(answer(http.StatusFound, "Location", "http://127.0.0.1:1/canary"))
	_, err = s.Find(t.Context(), in, account.Login)
	refused(t, "a redirect", err, "a token for secret GS: 302 Found")
	account.Spoil(nil)

	within := fetch.Open(fetch.Options{})
	t.Cleanup(within.Close)
	in.Endpoint = ""
	_, err = within.Find(t.Context(), in, account.Login)
	refused(t, "tokens from within", err, "is not an address that may be dialed from here")
}

// Of many that need a token one asks for it. Who waits for that one stops when its
// job does, however long the answer takes.
func TestNobodyWaitsForATokenLongerThanItsJob(t *testing.T) {
	t.Parallel()
	account := gstest.NewAccount(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !wantsContent(r) {
			_, _ = io.WriteString(w, `{"items": [{"name": "p/a", "size": "1", "generation": "7"}]}`)
		}
	}))
	t.Cleanup(server.Close)
	var asked atomic.Int64
	slow, release := make(chan struct{}), make(chan struct{})
	account.Spoil(func(w http.ResponseWriter) bool {
		if asked.Add(1) == 2 {
			close(slow)
			<-release
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"access_token": "old", "expires_in": 1}`)
		return true
	})
	found, err := few(t).Find(t.Context(), spec.Input{From: "gs://bucket/p/", To: "/d", Endpoint: server.URL, Secret: "GS"}, account.Login)
	if err != nil {
		t.Fatal(err)
	}
	one, other := emptyDir(t), emptyDir(t)
	var first sync.WaitGroup
	defer first.Wait()
	defer close(release)
	first.Go(func() { _, _ = found.Fetch(t.Context(), one, times(1)) })
	<-slow
	stopped, stop := context.WithCancel(t.Context())
	second := make(chan error, 1)
	go func() {
		_, err := found.Fetch(stopped, other, func(_ context.Context, try func() error) error {
			stop()
			return try()
		})
		second <- err
	}()
	select {
	case err := <-second:
		if err == nil || asked.Load() != 2 {
			t.Errorf("%d asked for a token, %v", asked.Load(), err)
		}
	case <-time.After(5 * time.Minute):
		t.Error("it waits for what another job asks for")
	}
}

// A job that is stopped has no record of inputs that it did not reach.
func TestAFetchThatIsStoppedIsNoFetch(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, `{"items": [{"name": "p/a", "size": "1", "generation": "7"}]}`)
	}))
	t.Cleanup(server.Close)
	found, err := few(t).Find(t.Context(), spec.Input{From: "gs://bucket/p/", To: "/d", Endpoint: server.URL}, "")
	if err != nil {
		t.Fatal(err)
	}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	if sum, err := found.Fetch(stopped, emptyDir(t), times(1)); err == nil {
		t.Errorf("it has fetched %+v", sum)
	}
}

// emptyDir is one to fetch into.
func emptyDir(t *testing.T) *os.Root {
	t.Helper()
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	return root
}
