package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"berth"
	"berth/api"
	"berth/api/client"
	"berth/wire"
)

// brokenAnswer reads an answer that may break off. cut reports that it did.
func (s *site) brokenAnswer(name, path, accept string) (body string, cut bool) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, s.url+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+s.tokens[name])
	req.Header.Set("Accept", accept)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return string(text), err != nil
}

// faultyLogs fails at the end of each log, as a store that fails in the middle.
type faultyLogs struct {
	api.LogReader
	err error
}

func (f *faultyLogs) OpenLog(ctx context.Context, log berth.LogRef, offset int64) (io.ReadCloser, error) {
	in, err := f.LogReader.OpenLog(ctx, log, offset)
	if err != nil {
		return nil, err
	}
	return struct {
		io.Reader
		io.Closer
	}{io.MultiReader(in, errReader{f.err}), in}, nil
}

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }

// A log that cannot be read on breaks off after the lines before, and names the cause to clients that take it. Other
// clients get no record that they would take for a line.
func TestALogThatCannotBeReadOnNamesTheCause(t *testing.T) {
	t.Parallel()
	const where = "the log of attempt 1, member 0 cannot be read from byte 74 on: "
	for name, c := range map[string]struct {
		err    error // nil: the object of the second piece is missing
		code   string
		detail string
		status int
	}{
		"a missing piece": {nil, "log_damaged", where + "the stored piece at byte 74 is missing", 500},
		"a store that fails": {errors.New("dial 10.0.0.7: refused"), "internal",
			where + "the server failed; its log says why", 500},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			faulty := faultyLogs{err: c.err}
			s := newSite(t, func(d *api.Deps) {
				if c.err != nil {
					faulty.LogReader, d.Logs = d.Logs, &faulty
				}
			})
			s.machine("m1", 8, 8192, 0)
			job := s.submit("alice", nil)
			s.run(job.ID, "m1")
			at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
			s.write(job, 1, at, "one two three", "four five six")
			if c.err == nil {
				s.write(job, 1, at, "seven")
				if err := s.blobs.Delete(t.Context(), berth.LogChunkKey(job.Tenant, job.ID, 1, 0, 74)); err != nil {
					t.Fatal(err)
				}
			}
			path := "/v1/jobs/" + string(job.ID) + "/logs"
			check := func(path, accept string, named bool) {
				t.Helper()
				body, cut := s.brokenAnswer("alice", path, accept)
				if !cut || !strings.Contains(body, "four five six") {
					t.Errorf("%s %s: cut %v, lines %q", path, accept, cut, body)
				}
				_, record, found := strings.Cut(body, `"error":`)
				if strings.Contains(accept, "event-stream") {
					_, record, found = strings.Cut(body, "event: error\ndata: ")
				}
				if found != named || strings.Contains(body, "10.0.0.7") {
					t.Errorf("%s %s: cause named %v, want %v: %q", path, accept, found, named, body)
				}
				var p api.Problem
				if err := json.NewDecoder(strings.NewReader(record)).Decode(&p); named &&
					(err != nil || p.Code != c.code || p.Detail != c.detail || p.Status != c.status) {
					t.Errorf("%s %s: %v, %+v", path, accept, err, p)
				}
			}
			all := func() {
				check(path, "text/plain", false)
				check(path, "application/x-ndjson", false)
				check(path, "application/x-ndjson;positions=true;errors=true", true)
				check(path+"?follow=true", "text/event-stream", false)
				check(path+"?follow=true", "text/event-stream;errors=true", true)
				check(path+"?follow=true&grep=f", "text/event-stream;errors=true", true)
			}
			all() // of a running job
			s.end(job.ID, berth.Succeeded)
			all()
		})
	}
}

// A stored log is read from the position after each of its lines, for each choice of lines.
func TestAStoredLogIsReadFromAPosition(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.machine("m1", 8, 8192, 0)
	job := s.submit("alice", nil)
	s.run(job.ID, "m1")
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	s.write(job, 1, at, "one", "two", "three")
	s.write(job, 1, at.Add(time.Hour), "four", "", "six")
	path := "/v1/jobs/" + string(job.ID) + "/logs"
	read := func(query, accept, from string) (lines []wire.LogLine, kind string) {
		t.Helper()
		header := []string{"Accept", accept}
		if from != "" {
			header = append(header, "Last-Event-ID", from)
		}
		a := s.call("alice", "GET", path+query, "", header...)
		for text := range strings.Lines(a.body) {
			var l wire.LogLine
			if err := json.Unmarshal([]byte(text), &l); err != nil {
				t.Fatalf("%s: %d %s", query, a.status, a.body)
			}
			lines = append(lines, l)
		}
		return lines, a.header.Get("Content-Type")
	}
	const positions = "application/x-ndjson;positions=true"
	for query, n := range map[string]int{"": 6, "?attempt=1": 6, "?tail=2": 2, "?grep=o": 3, "?grep=o&tail=2": 2,
		"?since=2026-01-02T04:04:05Z": 3} {
		whole, kind := read(query, positions, "")
		if len(whole) != n || kind != "application/x-ndjson; positions=true" {
			t.Errorf("%s: %d lines as %s, want %d", query, len(whole), kind, n)
		}
		for i, l := range whole {
			if rest, _ := read(query, positions, l.Position); l.Position == "" || !slices.Equal(rest, whole[i+1:]) {
				t.Errorf("%s after %q: %v, want %v", query, l.Position, rest, whole[i+1:])
			}
		}
	}
	plain, kind := read("", "application/x-ndjson", "")
	positioned := func(l wire.LogLine) bool { return l.Position != "" }
	if kind != "application/x-ndjson" || slices.ContainsFunc(plain, positioned) {
		t.Errorf("without the parameter: %s, %v", kind, plain)
	}
	a := s.call("alice", "GET", path, "", "Accept", positions, "Last-Event-ID", "9-0")
	if a.status != http.StatusBadRequest {
		t.Errorf("a position of an attempt that does not exist: %d %s", a.status, a.body)
	}
}

// offsets records where logs are opened.
type offsets struct {
	api.LogReader
	mu   sync.Mutex
	list []int64
}

func (o *offsets) OpenLog(ctx context.Context, log berth.LogRef, offset int64) (io.ReadCloser, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.list = append(o.list, offset)
	return o.LogReader.OpenLog(ctx, log, offset)
}

// A client whose connection breaks in a large stored log continues after its last line: the server does not read and
// send the lines before again.
func TestABrokenDownloadOfALogIsContinued(t *testing.T) {
	t.Parallel()
	var opened offsets
	s := newSite(t, func(d *api.Deps) { opened.LogReader, d.Logs = d.Logs, &opened })
	s.machine("m1", 8, 8192, 0)
	job := s.submit("alice", nil)
	s.run(job.ID, "m1")
	last := s.fill(job, 64) // 16 MiB, more than the buffers of the connections hold
	web := breaking(t, s.url)
	lines, text := 0, ""
	c := client.New(web.url, s.tokens["alice"])
	err := c.Logs(t.Context(), job.ID, client.LogsQuery{}, func(l wire.LogLine) error {
		if l.Text == text || l.Position != "" {
			t.Errorf("line %d is %.20s again, or has position %q", lines, l.Text, l.Position)
		}
		if lines, text = lines+1, l.Text; lines == 300 {
			web.cut()
		}
		return nil
	})
	if err != nil || lines != 64*64 || text != last {
		t.Errorf("%d lines, %v", lines, err)
	}
	opened.mu.Lock()
	defer opened.mu.Unlock()
	// After the lines that were printed before the cut, and further ones from the buffers of the connection.
	if n := len(opened.list); n != 2 || opened.list[0] != 0 || opened.list[1] < 299*4000 {
		t.Errorf("the log was opened at %d", opened.list)
	}
}
