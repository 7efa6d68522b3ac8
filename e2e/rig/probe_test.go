package rig

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"berth/internal/check"
)

// probed starts a probe of a server and stops it at the end of the test.
func probed(t *testing.T, plan ProbePlan) *Probe {
	t.Helper()
	p, err := startProbe(plan)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// awaitCalls waits until so many calls of a probe have been answered, and returns all calls so far.
func awaitCalls(t *testing.T, p *Probe, n int) []Probed {
	t.Helper()
	var list []Probed
	if err := Await(t.Context(), Patience, func(context.Context) error {
		answered := 0
		list = p.Between(time.Time{}, time.Now().Add(time.Hour))
		for _, c := range list {
			if !c.Open {
				answered++
			}
		}
		if answered < n {
			return fmt.Errorf("%d calls of %d", answered, n)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return list
}

func TestProbeMakesTheCallsOfItsRoundInTurn(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	keys, fresh := map[string]int{}, 0
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		switch r.URL.Path {
		case "/v1/jobs":
			keys[r.Header.Get("Idempotency-Key")]++
			w.WriteHeader(http.StatusCreated)
			fmt.Fprintf(w, `{"id":"job-%d"}`, len(keys))
		case "/refused":
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		mu.Lock()
		defer mu.Unlock()
		if state == http.StateNew {
			fresh++
		}
	}
	server.Start()
	defer server.Close()
	ledger := filepath.Join(t.TempDir(), "probe.jsonl")
	p := probed(t, ProbePlan{URL: server.URL, Token: "token", Rate: 200, Ledger: ledger, Tenant: "small", Round: []ProbeCall{
		{Kind: "submit", Method: http.MethodPost, Path: "/v1/jobs", Body: []byte("{}"), Keyed: true},
		{Kind: "refused", Method: http.MethodGet, Path: "/refused"},
		{Kind: "show", Method: http.MethodGet, Path: "/v1/jobs/x", NewConn: true},
	}})
	kinds := []string{"submit", "refused", "show"}
	submits := 0
	for i, c := range awaitCalls(t, p, 30) {
		if want := kinds[i%3]; c.Kind != want {
			t.Fatalf("call %d is %q, want %q", i, c.Kind, want)
		}
		if failed := c.Fault != ""; !c.Open && failed != (c.Kind == "refused") {
			t.Errorf("call %d (%s): status %d, fault %q", i, c.Kind, c.Status, c.Fault)
		}
		if c.Kind == "submit" && !c.Open {
			submits++
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if len(keys) < submits || keys[""] > 0 {
		t.Errorf("%d submits were answered under %d keys", submits, len(keys))
	}
	if fresh < 8 {
		t.Errorf("%d connections were opened for ten calls that open their own", fresh)
	}
	if n := accepted(t, ledger); n < submits {
		t.Errorf("the ledger has %d jobs of %d", n, submits)
	}
}

// accepted counts the lines of a ledger.
func accepted(t *testing.T, path string) (n int) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for in := bufio.NewScanner(f); in.Scan(); n++ {
		var a check.Accepted
		if err := json.Unmarshal(in.Bytes(), &a); err != nil || a.Tenant != "small" || a.Key == "" || a.Job == "" {
			t.Errorf("line %q of the ledger: %+v, %v", in.Text(), a, err)
		}
	}
	return n
}

func TestLatencyCountsFromWhenACallWasDue(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer server.Close()
	answer := sync.OnceFunc(func() { close(release) })
	defer answer()
	p := probed(t, ProbePlan{URL: server.URL, Rate: 100, Round: []ProbeCall{{Kind: "show", Method: http.MethodGet, Path: "/"}}})
	if err := Await(t.Context(), Patience, func(context.Context) error {
		if n := len(p.Between(time.Time{}, time.Now())); n < 5 {
			return fmt.Errorf("%d calls were due", n)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	for _, c := range p.Between(time.Time{}, now) {
		if !c.Open || c.Took < now.Sub(c.Due) {
			t.Errorf("a call without an answer that was due %s ago: open %v, took %s", now.Sub(c.Due), c.Open, c.Took)
		}
	}
	answer()
	if err := p.Await(t.Context(), now); err != nil {
		t.Fatal(err)
	}
	for _, c := range p.Between(time.Time{}, now) {
		if c.Open || c.Fault != "" || c.Took < now.Sub(c.Due) {
			t.Errorf("a call that was answered %s after it was due: open %v, took %s, %s", now.Sub(c.Due), c.Open, c.Took, c.Fault)
		}
	}
}

// A call that is sent late counts its delay: the caller was busy, and the user waited.
func TestADelayBeforeTheSendCounts(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer server.Close()
	var out written
	r := probeRun{plan: ProbePlan{URL: server.URL, Round: []ProbeCall{{Kind: "show", Method: http.MethodGet, Path: "/"}}},
		out: json.NewEncoder(&out)}
	r.caller = r.newCaller()
	defer r.caller.Close()
	const late = time.Minute
	r.call(0, time.Now().Add(-late))
	var e probeEvent
	if err := json.Unmarshal(out.text, &e); err != nil || e.Took < late {
		t.Errorf("a call that was sent a minute late took %s, %v", e.Took, err)
	}
}

// written keeps all bytes that it is given.
type written struct{ text []byte }

func (l *written) Write(b []byte) (int, error) {
	l.text = append(l.text, b...)
	return len(b), nil
}

func TestCanaryReportsItsLag(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer server.Close()
	began := time.Now()
	p := probed(t, ProbePlan{URL: server.URL, Rate: 10, Round: []ProbeCall{{Kind: "show", Method: http.MethodGet, Path: "/"}}})
	if err := Await(t.Context(), Patience, func(context.Context) error {
		if len(p.Lag(began, time.Now())) == 0 {
			return fmt.Errorf("no lag was reported")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for _, d := range p.Lag(began, time.Now()) {
		if d < 0 {
			t.Errorf("a nap ended %s early", -d)
		}
	}
	if n := len(p.Lag(began.Add(-time.Hour), began)); n > 0 {
		t.Errorf("%d naps before the probe began", n)
	}
}

func TestAProbeThatEndsIsAnError(t *testing.T) {
	t.Parallel()
	p, err := startProbe(ProbePlan{URL: "http://127.0.0.1:1", Rate: 0})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Await(t.Context(), time.Now()); err == nil {
		t.Error("the wait for a probe that has ended succeeds")
	}
	if err := p.Stop(); err == nil {
		t.Error("a probe without a rate ends without an error")
	}
}

func TestLinesArriveWholeHoweverTheyAreCut(t *testing.T) {
	t.Parallel()
	var got []string
	l := lines{f: func(line []byte) { got = append(got, string(line)) }}
	for _, piece := range []string{"a", "b\nc\n", "", "\nd", "e\nf"} {
		if n, err := l.Write([]byte(piece)); n != len(piece) || err != nil {
			t.Errorf("wrote %d of %d bytes, %v", n, len(piece), err)
		}
	}
	if want := []string{"ab", "c", "", "de"}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
