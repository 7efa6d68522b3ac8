package web_test

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
)

// stream is an open stream of events.
type stream struct {
	t  *testing.T
	in *bufio.Scanner
}

// open opens a stream as a browser.
func (b *browser) open(path string) *stream {
	b.s.t.Helper()
	ctx, cancel := context.WithTimeout(b.s.t.Context(), 5*time.Minute)
	b.s.t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.s.url+path, nil)
	if err != nil {
		b.s.t.Fatal(err)
	}
	res, err := b.http.Do(req)
	if err != nil {
		b.s.t.Fatal(err)
	}
	b.s.t.Cleanup(func() { res.Body.Close() })
	if res.StatusCode != http.StatusOK {
		b.s.t.Fatalf("%s: %d", path, res.StatusCode)
	}
	in := bufio.NewScanner(res.Body)
	in.Buffer(nil, 4<<20)
	return &stream{b.s.t, in}
}

// next returns the next event with data, or "" at the end of the stream.
func (s *stream) next() (name string, rows map[string]string) {
	s.t.Helper()
	for s.in.Scan() {
		line := s.in.Text()
		if after, ok := strings.CutPrefix(line, "event: "); ok {
			name = after
		}
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok {
			continue
		}
		if name == "rows" {
			if err := json.Unmarshal([]byte(data), &rows); err != nil {
				s.t.Fatal(err)
			}
		}
		return name, rows
	}
	return "", nil
}

func TestTheStreamPatchesRowsOfTheReadersTenant(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	j := s.submit("alice", nil)
	row := "job-" + string(j.ID)
	alice := s.signedIn("alice").open("/live?of=" + url.QueryEscape("/jobs?q=owner:me"))
	if name, rows := alice.next(); name != "rows" || !strings.Contains(rows[row], "submitted") {
		t.Fatalf("first event: %s %v", name, rows)
	}
	bob := s.signedIn("bob").open("/live?of=/jobs/" + string(j.ID))
	if _, err := s.as("alice").Cancel(t.Context(), j.ID); err != nil {
		t.Fatal(err)
	}
	if name, rows := alice.next(); name != "rows" || !strings.Contains(rows[row], "canceled") || !strings.HasPrefix(rows[row], "<tr ") {
		t.Errorf("after the change: %s %v", name, rows)
	}
	if err := s.as("admin").RevokeToken(t.Context(), s.tokens["bob"].ID); err != nil {
		t.Fatal(err)
	}
	for {
		name, rows := bob.next()
		if len(rows) > 0 {
			t.Errorf("another tenant got %v", rows)
		}
		if name == "bye" || name == "" {
			break
		}
	}
}

func TestAStreamNeedsASessionAndAPage(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	j := s.submit("alice", nil)
	for _, path := range []string{"/live?of=/jobs", "/jobs/" + string(j.ID) + "/tail"} {
		if a := s.anonymous().get(path); a.status != http.StatusUnauthorized {
			t.Errorf("%s as nobody: %d", path, a.status)
		}
	}
	if a := s.signedIn("bob").get("/jobs/" + string(j.ID) + "/tail"); a.status != http.StatusNotFound {
		t.Errorf("the log of another tenant: %d", a.status)
	}
	if a := s.signedIn("alice").get("/live?of=" + url.QueryEscape("/live?of=/jobs")); a.status != http.StatusUnprocessableEntity {
		t.Errorf("a stream of a stream: %d", a.status)
	}
}

// A live reading keeps its page in memory, so that only pages with rows may be read: a log has no end.
func TestAStreamReadsPagesWithRowsAlone(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	job := "/jobs/" + string(s.submit("alice", nil).ID)
	alice := s.signedIn("alice")
	for _, of := range []string{job + "/log", job + "/tail", job + "/metrics", job + "/%6cog", job + "/lo%67?attempt=1",
		job + "//log", job + "/x/../log", "/%6cive", "/live?of=/jobs", "/submit", "/act?do=cancel", "/login", "/logout",
		"/assets/script.js", "/pipelines/x", job + "/elements/0", "/schedules/x", "/v1/jobs", "/nothing"} {
		a := alice.get("/live?of=" + url.QueryEscape(of))
		if a.status != http.StatusUnprocessableEntity || !strings.Contains(a.body, "is not a page with rows") {
			t.Errorf("%s: %d %.200s", of, a.status, a.body)
		}
	}
	for _, of := range []string{"/", "/jobs", job, "/tenants", "/%6aobs"} {
		if name, _ := alice.open("/live?of=" + url.QueryEscape(of)).next(); name != "rows" {
			t.Errorf("%s: %q", of, name)
		}
	}
}

// A page that is left open does not keep its session from ending.
func TestAStreamIsNoUseOfItsSession(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.submit("alice", nil)
	alice := s.signedIn("alice")
	s.exec(`UPDATE web_sessions SET used_at = now() - interval '11 hours'`)
	fresh := func() (yes bool) {
		if err := s.db.Pool().QueryRow(t.Context(), `SELECT used_at > now() - interval '1 hour' FROM web_sessions`).Scan(&yes); err != nil {
			t.Fatal(err)
		}
		return yes
	}
	if name, _ := alice.open("/live?of=/jobs").next(); name != "rows" || fresh() {
		t.Errorf("%q; the stream is a use: %v", name, fresh())
	}
	if alice.get("/jobs"); !fresh() { // at once: the look-up of the stream is still remembered
		t.Error("a page is no use")
	}
}
