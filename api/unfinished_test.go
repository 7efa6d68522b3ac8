package api_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"berth"
	"berth/api"
	"berth/api/client"
	"berth/db"
	"berth/db/dbtest"
	"berth/internal/control/blob"
	"berth/wire"
)

// shows plays the agent: the unfinished line of its member changes.
func (a *agent) shows(text string) {
	a.t.Helper()
	got := a.post("unfinished", wire.UnfinishedReport{AgentBoot: a.boot, Epoch: a.epoch,
		Lines: []wire.UnfinishedLine{{Alloc: a.run.Alloc, At: time.Now(), Stderr: true, Text: text}}}, nil)
	if got.status != http.StatusNoContent {
		a.t.Errorf("unfinished line: %d %s", got.status, got.body)
	}
}

// leased waits until the member of an agent is followed.
func (a *agent) leased() {
	a.t.Helper()
	a.eventually("the member is followed", func() bool {
		var r wire.SyncResponse
		a.post("sync", wire.SyncRequest{AgentBoot: a.boot, Epoch: a.epoch}, &r)
		return len(r.Followed) == 1 && r.Followed[0] == a.run.Alloc
	})
}

// next returns the data of the next event of a name that has a text in its data.
func (e *sse) next(t *testing.T, name, text string) string {
	t.Helper()
	late := time.After(waitLimit)
	found := false
	for {
		select {
		case line, ok := <-e.lines:
			if !ok {
				t.Fatalf("the stream ended before an event %s with %q", name, text)
			}
			if data, is := strings.CutPrefix(line, "data: "); is && found && strings.Contains(data, text) {
				return data
			}
			if found && strings.HasPrefix(line, "id: ") {
				t.Errorf("event %s has an id", name)
			}
			found = line == "event: "+name
		case <-late:
			t.Fatalf("no event %s with %q comes", name, text)
		}
	}
}

func TestUnfinishedLinesAreEventsForClientsThatAsk(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	a := s.joinMachine("m1")
	job := s.submit("alice", nil)
	path := "/v1/jobs/" + string(job.ID) + "/logs?follow=true"
	early := s.stream("alice", path+"&unfinished=true") // before the job holds a machine
	a.take(job.ID)
	s.db.Hub().Publish("job", string(job.ID))
	a.leased()
	plain, matching := s.stream("alice", path), s.stream("alice", path+"&unfinished=true&grep=9")
	named := s.stream("alice", path+"&unfinished=true&attempt=1")
	a.shows("\r10%")
	for name, e := range map[string]*sse{"a follower from before the start": early, "a follower of the attempt": named} {
		if data := e.next(t, "unfinished", "10%"); !strings.Contains(data, `"text":"\r10%","attempt":1,"member":0}`) ||
			!strings.Contains(data, `"stream":"stderr"`) {
			t.Errorf("%s gets %s", name, data)
		}
	}
	a.shows("\r19%")
	if data := matching.next(t, "unfinished", "%"); !strings.Contains(data, "19%") {
		t.Errorf("a follower with grep gets %s", data)
	}
	a.shows("")
	early.next(t, "unfinished", `"text":""`)
	s.exec(`UPDATE jobs SET state = 'running', version = version + 1, actor = 'agent:m' WHERE id = $1`, job.ID)
	s.write(job, 1, time.Now().UTC(), "done")
	s.end(job.ID, berth.Succeeded)
	text := ""
	for line := range plain.lines {
		text += line + "\n"
	}
	if strings.Contains(text, "unfinished") || !strings.Contains(text, `"text":"done"`) {
		t.Errorf("a client that did not ask gets\n%s", text)
	}
}

func TestFollowerAndAgentMayBeAtDifferentReplicas(t *testing.T) {
	t.Parallel()
	url := dbtest.URL(t)
	s, there := newSiteAt(t, url, nil), dbtest.Open(t, url, db.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	var hubs sync.WaitGroup
	t.Cleanup(func() { cancel(); hubs.Wait() })
	hubs.Go(func() { _ = s.db.Hub().Run(ctx) })
	hubs.Go(func() { _ = there.Hub().Run(ctx) })
	server, err := api.New(api.Deps{DB: there, Control: there.Jobs, Logs: &blob.LogReader{Store: s.blobs, DB: there},
		Logger: discarded(), Version: "test", Rate: 1e6, Burst: 1e6})
	if err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(server.Handler())
	t.Cleanup(func() { server.Close(); web.CloseClientConnections(); web.Close() })
	other := *s
	other.url = web.URL

	a := s.joinMachine("m1")
	job := s.submit("alice", nil)
	a.take(job.ID)
	follower := other.stream("alice", "/v1/jobs/"+string(job.ID)+"/logs?follow=true&unfinished=true")
	a.leased()
	for _, text := range []string{"10%", "20%"} {
		a.shows(text)
		follower.next(t, "unfinished", text)
	}
}

// A machine that is lost sends no empty line: the server clears the last one.
func TestUnfinishedLineEndsWithItsAllocation(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	a := s.joinMachine("m1")
	job := s.submit("alice", nil)
	a.take(job.ID)
	s.exec(`UPDATE jobs SET state = 'running', version = version + 1, actor = 'agent:m' WHERE id = $1`, job.ID)
	path := "/v1/jobs/" + string(job.ID) + "/logs?follow=true&unfinished=true"
	follower := s.stream("alice", path)
	a.leased()
	a.shows("50%")
	follower.next(t, "unfinished", "50%")
	s.end(job.ID, berth.Retrying)
	if data := follower.next(t, "unfinished", ""); !strings.Contains(data, `"text":"","attempt":1`) {
		t.Errorf("after the end of its allocation the line is %s", data)
	}
	// A connection that replaces another one knows what the client may still show.
	if data := s.stream("alice", path).next(t, "unfinished", ""); !strings.Contains(data, `"text":"","attempt":1`) {
		t.Errorf("the first line of a further connection is %s", data)
	}
}

// The line of a machine that no longer calls is cleared long before the machine is lost. The next call of the machine
// brings the line back.
func TestUnfinishedLineIsClearedWhileItsMachineIsSilent(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	a := s.joinMachine("m1")
	job := s.submit("alice", nil)
	a.take(job.ID)
	s.exec(`UPDATE jobs SET state = 'running', version = version + 1, actor = 'agent:m' WHERE id = $1`, job.ID)
	follower := s.stream("alice", "/v1/jobs/"+string(job.ID)+"/logs?follow=true&unfinished=true")
	a.leased()
	a.shows("50%")
	follower.next(t, "unfinished", "50%")
	s.exec(`UPDATE machine_leases SET seen_at = now() - interval '1 minute' WHERE machine_id = 'm1'`)
	follower.next(t, "unfinished", `"text":""`)
	s.exec(`UPDATE machine_leases SET seen_at = now() WHERE machine_id = 'm1'`)
	follower.next(t, "unfinished", "50%")
}

// The line of one attempt is not shown in the log of another one.
func TestUnfinishedLineBelongsToItsAttempt(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	a := s.joinMachine("m1")
	job := s.submit("alice", nil)
	a.take(job.ID)
	s.exec(`UPDATE jobs SET state = 'running', version = version + 1, actor = 'agent:m' WHERE id = $1`, job.ID)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var got []string
	err := make(chan error, 1)
	go func() {
		q := client.LogsQuery{Follow: true, Unfinished: func(l wire.LogLine) error {
			if l.Text != "" {
				got = append(got, l.Text)
			}
			if l.Text == "first" {
				s.end(job.ID, berth.Retrying)
				s.run(job.ID, "m1")
				s.write(job, 2, time.Now().UTC(), "second")
			}
			return nil
		}}
		err <- s.as("alice").Logs(ctx, job.ID, q, func(l wire.LogLine) error {
			if l.Text == "second" {
				s.end(job.ID, berth.Succeeded)
			}
			return nil
		})
	}()
	a.leased()
	a.shows("first")
	if err := <-err; err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, []string{"first"}) {
		t.Errorf("lines %q, want the first attempt's once", got)
	}
}

func TestUnfinishedLinesAreForFollowersAlone(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	job := s.submit("alice", nil)
	path := "/v1/jobs/" + string(job.ID) + "/logs?unfinished=true"
	if got := s.call("alice", "GET", path, ""); got.status != http.StatusBadRequest ||
		!strings.Contains(got.body, `"unfinished"`) {
		t.Errorf("a stored log with unfinished lines: %d %s", got.status, got.body)
	}
	if got := s.call("bob", "GET", path+"&follow=true", ""); got.status != http.StatusNotFound {
		t.Errorf("another tenant: %d %s", got.status, got.body)
	}
}

// A server of a previous version refuses the parameter; the log is followed without it.
func TestClientFollowsOlderServersWithoutUnfinishedLines(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.machine("m1", 8, 8192, 0)
	job := s.submit("alice", nil)
	s.run(job.ID, "m1")
	s.write(job, 1, time.Now().UTC(), "line")
	s.end(job.ID, berth.Succeeded)
	refused := 0
	older := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("unfinished") {
			refused++
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusBadRequest)
			_, _ = w.Write([]byte(`{"code":"invalid","detail":"x","errors":[{"field":"unfinished","detail":"is not a parameter"}]}`))
			return
		}
		s.server.Handler().ServeHTTP(w, r)
	}))
	defer older.Close()
	var got []string
	q := client.LogsQuery{Follow: true, Unfinished: func(wire.LogLine) error { return errors.New("an unfinished line") }}
	err := client.New(older.URL, s.tokens["alice"]).Logs(t.Context(), job.ID, q, func(l wire.LogLine) error {
		got = append(got, l.Text)
		return nil
	})
	if err != nil || refused != 1 || len(got) != 1 || got[0] != "line" {
		t.Errorf("%d refusals, lines %q, %v", refused, got, err)
	}
}
