package web

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

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

// A browser that connects again gets each line once, also where lines share a moment.
func TestATailGoesOnAfterTheLastEvent(t *testing.T) {
	t.Parallel()
	at := func(s int) time.Time { return time.Date(2026, 3, 1, 12, 0, s, 0, time.UTC) }
	log := []time.Time{at(1), at(2), at(2), at(2), at(3)}
	for cut := range log {
		l := tailed{}
		for _, x := range log[:cut+1] {
			l = l.next(x)
		}
		r := httptest.NewRequest(http.MethodGet, "/jobs/01a/tail?after=1&since="+at(1).Format(time.RFC3339Nano), nil)
		r.Header.Set("Last-Event-ID", l.String())
		from, n := lastLine(&visit{r: r}), 0
		lacks := from.news()
		for _, x := range log {
			if !x.Before(from.at) && lacks(x) {
				n++
			}
		}
		if from.number != cut+1 || n != len(log)-cut-1 {
			t.Errorf("after %d lines: position %v, %d more", cut+1, from, n)
		}
	}
	r := httptest.NewRequest(http.MethodGet, "/jobs/01a/tail?after=7&since="+at(2).Format(time.RFC3339Nano), nil)
	if l := lastLine(&visit{r: r}); l.number != 7 || l.news()(at(2)) || !l.news()(at(3)) {
		t.Errorf("of the page: %v", l)
	}
}

// Only the end of the log itself ends the stream for good.
func TestAStopIsNotTheEndOfALog(t *testing.T) {
	t.Parallel()
	closing := make(chan struct{})
	close(closing)
	s := &Site{Options: Options{Closing: closing}}
	if err := s.passLines(t.Context(), nil, nil, make(chan error), tailed{}); !errors.Is(err, errTailCut) {
		t.Errorf("at a stop: %v", err)
	}
	broken := make(chan error, 1)
	broken <- io.ErrUnexpectedEOF
	s = &Site{}
	if err := s.passLines(t.Context(), nil, nil, broken, tailed{}); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("after a broken reading: %v", err)
	}
	ended := make(chan error, 1)
	ended <- nil
	if err := s.passLines(t.Context(), nil, nil, ended, tailed{}); !errors.Is(err, errTailEnded) {
		t.Errorf("at the end: %v", err)
	}
}

// A board lives as long as its streams: else each address of a page would hold memory for good.
func TestABoardEndsWithItsLastStream(t *testing.T) {
	t.Parallel()
	b := newBoards(nil)
	one, two := boardKey{path: "/jobs"}, boardKey{path: "/jobs?x=1"}
	for _, key := range []boardKey{one, one, two} {
		if err := b.enter("token", key); err != nil {
			t.Fatal(err)
		}
	}
	first := b.of(one)
	b.leave("token", one)
	if b.of(one) != first || len(b.all) != 2 {
		t.Errorf("%d boards while two streams are open", len(b.all))
	}
	b.leave("token", one)
	b.leave("token", two)
	if len(b.all) != 0 || len(b.streams) != 0 || b.open != 0 {
		t.Errorf("%d boards, %d tokens and %d streams are left", len(b.all), len(b.streams), b.open)
	}
	for i := range streamsOfToken + 1 {
		if err := b.enter("token", noBoard); (err != nil) != (i == streamsOfToken) {
			t.Errorf("stream %d: %v", i, err)
		}
	}
}
