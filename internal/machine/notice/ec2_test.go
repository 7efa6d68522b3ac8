package notice_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"berth/internal/machine/notice"
	"berth/wire"
)

// imds plays the metadata service of an EC2 instance, version 2, by its documents: a token is created by
// PUT with a lifetime, other calls need a valid one or get 401, and a category without content is 404.
type imds struct {
	t *testing.T

	mu       sync.Mutex
	tokens   map[string]time.Time // until when each is valid
	made     int                  // tokens
	granted  int                  // lifetime in seconds that the answer names, while the token lasts; 0: none is named
	gets     int
	action   string // content of spot/instance-action; "": 404
	advice   string
	override func(w http.ResponseWriter, r *http.Request) bool // true: it has answered
}

func newIMDS(t *testing.T) (*imds, *notice.EC2) {
	f := &imds{t: t, tokens: map[string]time.Time{}}
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	return f, notice.NewPatientEC2(server.URL)
}

func (f *imds) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.override != nil && f.override(w, r) {
		return
	}
	if r.URL.Path == "/latest/api/token" {
		ttl, err := strconv.Atoi(r.Header.Get("X-aws-ec2-metadata-token-ttl-seconds"))
		if r.Method != http.MethodPut || err != nil || ttl < 1 || ttl > 21600 || r.Header.Get("X-Forwarded-For") != "" {
			http.Error(w, "Bad Request", http.StatusBadRequest)
			return
		}
		f.made++
		token := fmt.Sprintf("AQAE%d==", f.made)
		if f.granted > 0 {
			w.Header().Set("X-aws-ec2-metadata-token-ttl-seconds", strconv.Itoa(f.granted))
		}
		f.tokens[token] = time.Now().Add(time.Duration(ttl) * time.Second)
		fmt.Fprint(w, token)
		return
	}
	f.gets++
	if until, ok := f.tokens[r.Header.Get("X-aws-ec2-metadata-token")]; !ok || !time.Now().Before(until) {
		http.Error(w, "Unauthorized", http.StatusUnauthorized)
		return
	}
	body := map[string]string{"/latest/meta-data/spot/instance-action": f.action,
		"/latest/meta-data/events/recommendations/rebalance": f.advice}[r.URL.Path]
	if r.Method != http.MethodGet || body == "" {
		http.Error(w, "Not Found", http.StatusNotFound)
		return
	}
	fmt.Fprint(w, body)
}

// edit changes the fake.
func (f *imds) edit(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// soon is a time like one of a notice, two minutes ahead.
func soon() time.Time { return time.Now().Add(2 * time.Minute).UTC().Truncate(time.Second) }

func actionAt(what string, at time.Time) string {
	return fmt.Sprintf(`{"action": %q, "time": %q}`, what, at.Format(time.RFC3339))
}

func TestANoticeAppearsAndIsWithdrawn(t *testing.T) {
	t.Parallel()
	f, source := newIMDS(t)
	look := func() notice.State {
		t.Helper()
		s, err := source.Look(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	if s := look(); s.End != nil || !s.Rebalance.IsZero() {
		t.Errorf("without a notice it shows %+v", s)
	}
	at := soon()
	for _, what := range []string{"terminate", "stop", "hibernate"} {
		f.edit(func() { f.action = actionAt(what, at) })
		s := look()
		if s.End == nil || *s.End != (wire.CloudNotice{Kind: wire.NoticeSpot, Deadline: at}) {
			t.Errorf("%s shows %+v", what, s.End)
		}
	}
	f.edit(func() { f.action = "" })
	if s := look(); s.End != nil {
		t.Errorf("a withdrawn notice is %+v", s.End)
	}
	f.edit(func() { f.action = actionAt("terminate", time.Now().Add(-time.Hour)) })
	if s := look(); s.End != nil {
		t.Errorf("a notice of an hour ago is %+v", s.End)
	}
	if f.made != 1 {
		t.Errorf("%d tokens for one session", f.made)
	}
}

func TestAdviceIsNoNoticeOfTheEnd(t *testing.T) {
	t.Parallel()
	f, source := newIMDS(t)
	at := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	f.advice = `{"noticeTime": "2026-11-26T12:00:00Z"}`
	for range 7 { // the service is asked for advice in some looks; it stands in between
		s, err := source.Look(t.Context())
		if err != nil || s.End != nil || !s.Rebalance.Equal(at) {
			t.Fatalf("%+v, %v", s, err)
		}
	}
	f.edit(func() { f.advice, f.action = "garbage", actionAt("terminate", soon()) })
	for range 7 {
		if s, err := source.Look(t.Context()); err != nil || s.End == nil {
			t.Fatalf("bad advice hides the notice: %+v, %v", s, err)
		}
	}
}

// A token is renewed before its end, and after the service has forgotten it.
func TestTokensAreRenewed(t *testing.T) {
	t.Parallel()
	f, source := newIMDS(t)
	f.granted = 1 // second: renewed after 900 ms, without a refusal
	f.action = actionAt("terminate", soon())
	made := func() (n int) {
		f.edit(func() { n = f.made })
		return n
	}
	for end := time.Now().Add(time.Minute); made() < 2; time.Sleep(time.Millisecond) {
		if s, err := source.Look(t.Context()); err != nil || s.End == nil || time.Now().After(end) {
			t.Fatalf("%+v, %v, after %d tokens", s, err, made())
		}
	}
	f.edit(func() { clear(f.tokens) })
	before := made()
	if s, err := source.Look(t.Context()); err != nil || s.End == nil {
		t.Fatalf("after a 401: %+v, %v", s, err)
	}
	if made() == before {
		t.Errorf("still %d tokens", before)
	}
	// A service that refuses each token is no endless loop.
	f.edit(func() {
		f.override = func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodGet {
				http.Error(w, "Unauthorized", http.StatusUnauthorized)
			}
			return r.Method == http.MethodGet
		}
	})
	if _, err := source.Look(t.Context()); err == nil || errors.Is(err, notice.ErrMalformed) {
		t.Errorf("without a valid token: %v", err)
	}
}

func TestAMalformedAnswerIsNoNotice(t *testing.T) {
	t.Parallel()
	at := soon().Format(time.RFC3339)
	for _, body := range []string{
		"null", "[]", `"terminate"`, "<html>", `{"action": "terminate"}`, `{"time": "` + at + `"}`, `{"action": "reboot", "time": "` + at + `"}`,
		`{"action": "terminate", "time": "soon"}`, `{"action": "terminate", "time": 7}`, `{"action": "terminate", "time": "` + at + `"`,
		`{"action": "terminate", "time": "` + at + `"}` + strings.Repeat(" ", 5000),
	} {
		f, source := newIMDS(t)
		f.action = body
		if s, err := source.Look(t.Context()); s.End != nil || !errors.Is(err, notice.ErrMalformed) {
			t.Errorf("%.60s shows %+v, %v", body, s.End, err)
		}
		if s, err := file(t, body).Look(t.Context()); s.End != nil || !errors.Is(err, notice.ErrMalformed) {
			t.Errorf("file %.60s shows %+v, %v", body, s.End, err)
		}
	}
	for _, token := range []string{"", "a\nb", "a b", strings.Repeat("x", 1025), strings.Repeat("x", 5000)} {
		f, source := newIMDS(t)
		f.override = func(w http.ResponseWriter, _ *http.Request) bool { fmt.Fprint(w, token); return true }
		if _, err := source.Look(t.Context()); !errors.Is(err, notice.ErrMalformed) {
			t.Errorf("token %.20q: %v", token, err)
		}
	}
}

// A service that fails, hangs or redirects is an error within seconds, and says nothing about a notice.
func TestABadServiceIsAnError(t *testing.T) {
	t.Parallel()
	over := make(chan struct{})
	t.Cleanup(func() { close(over) })
	for name, answer := range map[string]func(w http.ResponseWriter, r *http.Request) bool{
		"500": func(w http.ResponseWriter, _ *http.Request) bool {
			http.Error(w, "", http.StatusInternalServerError)
			return true
		},
		"403": func(w http.ResponseWriter, _ *http.Request) bool {
			http.Error(w, "", http.StatusForbidden)
			return true
		},
		"no tokens": func(w http.ResponseWriter, r *http.Request) bool {
			http.NotFound(w, r)
			return true
		},
		"redirect": func(w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, "http://192.0.2.1/", http.StatusTemporaryRedirect)
			return true
		},
		"silence": func(_ http.ResponseWriter, r *http.Request) bool {
			select {
			case <-r.Context().Done():
			case <-over:
			}
			return true
		},
		"slow body": func(w http.ResponseWriter, r *http.Request) bool {
			w.WriteHeader(http.StatusOK)
			w.(http.Flusher).Flush()
			select {
			case <-r.Context().Done():
			case <-over:
			}
			return true
		},
	} {
		f, source := newIMDS(t)
		f.override = answer
		if name == "silence" || name == "slow body" {
			source.UsualLimit()
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		s, err := source.Look(ctx)
		if err == nil || s.End != nil || ctx.Err() != nil {
			t.Errorf("%s: %+v, %v, %v", name, s, err, ctx.Err())
		}
		cancel()
	}
}
