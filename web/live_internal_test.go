package web

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"berth"
	"berth/api/client"
	"berth/wire"
)

// Live readings leave out the tabs that are not marked as live, so that each tab with rows must be marked.
func TestTabsWithRowsAreLive(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile("templates/job.html")
	if err != nil {
		t.Fatal(err)
	}
	parts := regexp.MustCompile(`(?m)^\{\{define "([a-z]+)"\}\}`).Split(string(b), -1)
	names := regexp.MustCompile(`(?m)^\{\{define "([a-z]+)"\}\}`).FindAllStringSubmatch(string(b), -1)
	live := map[string]bool{}
	for i, n := range names {
		live[n[1]] = strings.Contains(parts[i+1], "data-live=")
	}
	if !live["events"] || live["log"] {
		t.Fatalf("the parts of the page are not found: %v", live)
	}
	for _, tb := range jobTabs {
		if tb.live != live[tb.key] {
			t.Errorf("tab %s: live is %v, but its template has rows: %v", tb.key, tb.live, live[tb.key])
		}
	}
}

func TestALiveReadingReadsNoLog(t *testing.T) {
	t.Parallel()
	var paths []string
	j := wire.Job{ID: "01a", Name: "x", Status: berth.Running, Attempts: []berth.Attempt{{Number: 1}}}
	calls := roundTrip(func(r *http.Request) (*http.Response, error) {
		paths = append(paths, r.URL.Path)
		w := httptest.NewRecorder()
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == "/v1/jobs/01a" {
			_ = json.NewEncoder(w).Encode(j)
		} else if strings.HasSuffix(r.URL.Path, "/events") {
			_, _ = w.WriteString(`{"items":[]}`)
		}
		return w.Result(), nil
	})
	for _, reading := range []bool{false, true} {
		paths = nil
		r := httptest.NewRequest(http.MethodGet, "/jobs/01a?tab=log&grep=x", nil)
		r.SetPathValue("id", "01a")
		v := &visit{r: r, page: page{Reader: &reader{}}, api: client.Over(calls, ""), reading: reading}
		if _, err := jobPage(t.Context(), v); err != nil {
			t.Fatal(err)
		}
		if got := slices.Contains(paths, "/v1/jobs/01a/logs"); got == reading {
			t.Errorf("live reading %v: calls %v", reading, paths)
		}
	}
}

// roundTrip is a transport from a function.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestARecorderHasABound(t *testing.T) {
	t.Parallel()
	r := &recorder{header: http.Header{}, status: http.StatusOK}
	piece := make([]byte, recordedMost/2)
	for range 2 {
		if _, err := r.Write(piece); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := r.Write([]byte("x")); err == nil || n != 0 || r.status != http.StatusRequestEntityTooLarge || r.body.Cap() != 0 {
		t.Errorf("beyond the bound: %d, %v, status %d, %d bytes kept", n, err, r.status, r.body.Cap())
	}
}
