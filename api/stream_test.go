package api_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/api/client"
	"berth/db"
	"berth/spec"
	"berth/wire"
)

// sse is a raw stream; lines come as the server writes them.
type sse struct {
	lines  chan string // closed at the end
	cancel context.CancelFunc
	status int
}

func (s *site) stream(name, path string, header ...string) *sse {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	req, err := http.NewRequestWithContext(ctx, "GET", s.url+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+s.tokens[name])
	req.Header.Set("Accept", "text/event-stream")
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	e := &sse{lines: make(chan string, 1000), cancel: cancel, status: res.StatusCode}
	s.t.Cleanup(cancel)
	go func() {
		defer close(e.lines)
		defer res.Body.Close()
		in := bufio.NewScanner(res.Body)
		for in.Scan() {
			e.lines <- in.Text()
		}
	}()
	return e
}

// ids reads ids until n have come, the event end, or the end of the stream.
func (e *sse) ids(t *testing.T, n int) (ids []string, ended bool) {
	t.Helper()
	late := time.After(waitLimit)
	for len(ids) < n {
		select {
		case line, ok := <-e.lines:
			if !ok {
				return ids, false
			}
			if id, is := strings.CutPrefix(line, "id: "); is {
				ids = append(ids, id)
			}
			if line == "event: end" {
				return ids, true
			}
		case <-late:
			t.Fatalf("after %v nothing more comes", ids)
		}
	}
	return ids, false
}

func TestEventsResumeWithoutGapOrRepeat(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.machine("m1", 8, 8192, 0)
	job := s.submit("alice", nil)
	path := "/v1/jobs/" + string(job.ID) + "/events"
	first := s.stream("alice", path)
	got, _ := first.ids(t, 1)
	s.run(job.ID, "m1")
	more, _ := first.ids(t, 2)
	got = append(got, more...)
	first.cancel()
	second := s.stream("alice", path, "Last-Event-ID", got[len(got)-1])
	s.end(job.ID, berth.Succeeded)
	rest, ended := second.ids(t, 100)
	got = append(got, rest...)
	if diff := cmp.Diff([]string{"1", "2", "3", "4", "5"}, got); diff != "" || !ended {
		t.Errorf("ids (-want +got), ended %v:\n%s", ended, diff)
	}
	// The end is sent to clients that connect after it, and to clients that have
	// received everything.
	third := s.stream("alice", path, "Last-Event-ID", "5")
	if rest, ended := third.ids(t, 100); len(rest) > 0 || !ended {
		t.Errorf("after the last event: %v, ended %v", rest, ended)
	}
	if bad := s.call("alice", "GET", path, "", "Accept", "text/event-stream", "Last-Event-ID", "x"); bad.status != http.StatusBadRequest {
		t.Errorf("Last-Event-ID x: %d %s", bad.status, bad.body)
	}
}

func TestTheClientFollowsThroughBrokenConnections(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.machine("m1", 8, 8192, 0)
	job := s.submit("alice", nil)
	web := breaking(t, s.url)
	c := client.New(web.url, s.tokens["alice"])
	var seqs []int64
	err := c.FollowEvents(t.Context(), job.ID, 0, func(e wire.Event) error {
		seqs = append(seqs, e.Seq)
		switch e.Seq {
		case 1:
			web.cut()
			s.run(job.ID, "m1")
		case 4:
			web.cut()
			s.end(job.ID, berth.Succeeded)
		}
		return nil
	})
	if diff := cmp.Diff([]int64{1, 2, 3, 4, 5}, seqs); diff != "" || err != nil {
		t.Errorf("seqs (-want +got), err %v:\n%s", err, diff)
	}
	if ended, err := c.Wait(t.Context(), job.ID); err != nil || ended.Status != berth.Succeeded {
		t.Errorf("wait: %+v, %v", ended, err)
	}
	own := errors.New("enough")
	if err := c.FollowEvents(t.Context(), job.ID, 2, func(wire.Event) error { return own }); !errors.Is(err, own) {
		t.Errorf("the caller's error comes back as %v", err)
	}
	web.close()
	if err := c.FollowEvents(t.Context(), job.ID, 0, func(wire.Event) error { return nil }); !client.Unreachable(err) {
		t.Errorf("a server that is not there: %v", err)
	}
	if err := s.as("bob").FollowEvents(t.Context(), job.ID, 0, func(wire.Event) error { return nil }); berth.CodeOf(err) != berth.CodeNotFound {
		t.Errorf("another tenant: %v", err)
	}
}

func TestARevokedTokenEndsItsStreams(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	made, err := s.db.Tokens.Create(t.Context(), spec.NewToken{Name: "eve", Tenant: "a", Role: spec.RoleUser},
		"operator:test")
	if err != nil {
		t.Fatal(err)
	}
	s.tokens["eve"] = made.Secret
	job := s.submit("alice", nil)
	e := s.stream("eve", "/v1/jobs/"+string(job.ID)+"/events")
	e.ids(t, 1)
	// By another replica: this one learns of it from the database.
	if err := s.db.Tokens.Revoke(t.Context(), made.ID, "operator:test"); err != nil {
		t.Fatal(err)
	}
	late := time.After(waitLimit) // it takes three seconds on a machine that is not busy
	for open := true; open; {
		select {
		case _, open = <-e.lines:
		case <-late:
			t.Fatal("the stream stays open")
		}
	}
	if a := s.call("eve", "GET", "/v1/jobs", ""); a.status != http.StatusUnauthorized {
		t.Errorf("the revoked token still opens: %d", a.status)
	}
}

func TestStreamsEndWhenTheServerCloses(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	job := s.submit("alice", nil)
	e := s.stream("alice", "/v1/jobs/"+string(job.ID)+"/events")
	e.ids(t, 1)
	s.server.Close()
	if ids, ended := e.ids(t, 100); len(ids) > 0 || ended {
		t.Errorf("closing the server sent %v, end %v; the client must come back elsewhere", ids, ended)
	}
}

func TestLogsAreReadInEveryWay(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.machine("m1", 8, 8192, 0)
	job := s.submit("alice", nil)
	if a := s.call("alice", "GET", "/v1/jobs/"+string(job.ID)+"/logs", ""); a.status != http.StatusOK || a.body != "" {
		t.Errorf("before the first attempt: %d %q", a.status, a.body)
	}
	s.run(job.ID, "m1")
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	s.write(job, 1, at, "one", "error two", "<script>three</script>")
	s.write(job, 1, at.Add(time.Hour), "four", "", "six")
	rows := map[string]string{
		"":                                   "one\nerror two\n<script>three</script>\nfour\n\nsix\n",
		"?tail=2":                            "\nsix\n",
		"?tail=4":                            "<script>three</script>\nfour\n\nsix\n",
		"?tail=100":                          "one\nerror two\n<script>three</script>\nfour\n\nsix\n",
		"?since=2026-01-02T03:04:06Z":        "error two\n<script>three</script>\nfour\n\nsix\n",
		"?since=2026-01-02T04:04:06Z":        "\nsix\n",
		"?since=1h":                          "",
		"?since=2026-01-02T03:04:06Z&tail=1": "six\n",
		"?grep=o":                            "one\nerror two\nfour\n",
		"?grep=o&tail=2":                     "error two\nfour\n",
		"?grep=%5EERROR":                     "",
		"?grep=(?i)%5EERROR&tail=9":          "error two\n",
		"?grep=o&since=2026-01-02T03:04:06Z&tail=1": "four\n",
		"?attempt=1&member=0":                       "one\nerror two\n<script>three</script>\nfour\n\nsix\n",
	}
	for query, want := range rows {
		a := s.call("alice", "GET", "/v1/jobs/"+string(job.ID)+"/logs"+query, "")
		if a.body != want || a.header.Get("Content-Type") != "text/plain; charset=utf-8" || a.header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("logs%s: got %q (%s), want %q", query, a.body, a.header.Get("Content-Type"), want)
		}
	}
	for query, want := range map[string]string{"?attempt=2": "its latest is 1", "?member=1": "it has 1, counted from 0"} {
		if a := s.call("alice", "GET", "/v1/jobs/"+string(job.ID)+"/logs"+query, ""); a.status != http.StatusNotFound || !strings.Contains(a.body, want) {
			t.Errorf("logs%s: %d %s", query, a.status, a.body)
		}
	}
	for _, query := range []string{"?grep=(", "?grep=" + strings.Repeat("x", 1001)} {
		a := s.call("alice", "GET", "/v1/jobs/"+string(job.ID)+"/logs"+query, "")
		if a.status != http.StatusBadRequest && a.status != http.StatusUnprocessableEntity ||
			!strings.Contains(a.body, "grep") {
			t.Errorf("logs%.20s: %d %s", query, a.status, a.body)
		}
	}
	var lines []wire.LogLine
	err := s.as("alice").Logs(t.Context(), job.ID, client.LogsQuery{Tail: 5}, func(l wire.LogLine) error {
		lines = append(lines, l)
		return nil
	})
	if err != nil || len(lines) != 5 || lines[0].Stream != "stderr" || !lines[0].At.Equal(at.Add(time.Second)) || lines[0].Attempt != 1 {
		t.Errorf("lines %+v, %v", lines, err)
	}
}

func TestMatchingLinesAreFollowed(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.machine("m1", 8, 8192, 0)
	job := s.submit("alice", nil)
	s.run(job.ID, "m1")
	now := time.Now().UTC()
	s.write(job, 1, now, "loss 1", "x", "loss 2", "loss 3", "y")
	var got []string
	q := client.LogsQuery{Follow: true, Tail: 2, Grep: "^loss"}
	err := s.as("alice").Logs(t.Context(), job.ID, q, func(l wire.LogLine) error {
		got = append(got, l.Text)
		switch l.Text {
		case "loss 3":
			s.write(job, 1, now, "z", "loss 4")
		case "loss 4":
			s.end(job.ID, berth.Retrying)
			s.run(job.ID, "m1")
			s.write(job, 2, now, "w", "loss 5")
			s.end(job.ID, berth.Succeeded)
		}
		return nil
	})
	if want := []string{"loss 2", "loss 3", "loss 4", "loss 5"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

func TestLogsAreFollowedIntoTheNextAttempt(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.machine("m1", 8, 8192, 0)
	job := s.submit("alice", nil)
	s.run(job.ID, "m1")
	web := breaking(t, s.url)
	now := time.Now().UTC()
	s.write(job, 1, now, "zero", "one")
	var got []string
	err := client.New(web.url, s.tokens["alice"]).Logs(t.Context(), job.ID, client.LogsQuery{Follow: true, Tail: 1}, func(l wire.LogLine) error {
		got = append(got, fmt.Sprintf("%d %s", l.Attempt, l.Text))
		switch l.Text {
		case "one":
			s.write(job, 1, now, "two", "three")
		case "two":
			web.cut() // in the middle of a piece
		case "three":
			s.end(job.ID, berth.Retrying)
			s.run(job.ID, "m1")
			s.write(job, 2, now, "four")
		case "four":
			s.write(job, 2, now, "five")
			s.end(job.ID, berth.Succeeded)
		}
		return nil
	})
	if diff := cmp.Diff([]string{"1 one", "1 two", "1 three", "2 four", "2 five"}, got); diff != "" || err != nil {
		t.Errorf("lines (-want +got), err %v:\n%s", err, diff)
	}
	got = nil
	err = s.as("alice").Logs(t.Context(), job.ID, client.LogsQuery{Follow: true, Attempt: 1}, func(l wire.LogLine) error {
		got = append(got, l.Text)
		return nil
	})
	if diff := cmp.Diff([]string{"zero", "one", "two", "three"}, got); diff != "" || err != nil {
		t.Errorf("of attempt 1 (-want +got), err %v:\n%s", err, diff)
	}
	// They outlive the job's row.
	term, _, err := s.db.Leader.OpenLease(db.LeaseLeader, "test").Acquire(t.Context(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := s.db.Jobs.ArchiveTerminal(t.Context(), term, 0, 10); n != 1 || err != nil {
		t.Fatalf("archived %d, %v", n, err)
	}
	if a := s.call("alice", "GET", "/v1/jobs/"+string(job.ID)+"/logs?attempt=1", ""); a.body != "zero\none\ntwo\nthree\n" {
		t.Errorf("the archived job's log: %d %q", a.status, a.body)
	}
	if bad := s.call("alice", "GET", "/v1/jobs/"+string(job.ID)+"/logs?follow=true", "", "Last-Event-ID", "9-0"); bad.status != http.StatusBadRequest {
		t.Errorf("Last-Event-ID of an attempt that is not there: %d %s", bad.status, bad.body)
	}
}
