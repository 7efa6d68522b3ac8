package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"berth"
	"berth/api/client"
	"berth/db"
	"berth/internal/lib/framed"
	"berth/spec"
	"berth/wire"
)

// sessionsOf lists the sessions of a job as somebody.
func (s *site) sessionsOf(name string, job berth.JobID, q client.SessionsQuery) wire.Page[wire.SessionRecord] {
	s.t.Helper()
	list, err := s.as(name).Sessions().List(s.t.Context(), job, q)
	if err != nil {
		s.t.Fatalf("%s: %v", name, err)
	}
	return list
}

func TestTheSessionsOfAJobAreListed(t *testing.T) {
	t.Parallel()
	p := newPairing(t, nil)
	if list := p.sessionsOf("alice", p.job, client.SessionsQuery{}); len(list.Items) != 0 {
		t.Errorf("before the first session: %+v", list)
	}
	id, user, machine := p.pair(p.url, p.url)
	open := p.sessionsOf("alice", p.job, client.SessionsQuery{Open: true}).Items
	if len(open) != 1 || open[0].ID != id || open[0].State != wire.SessionOpen || open[0].Actor != "user:alice" ||
		open[0].Kind != spec.SessionExec || open[0].Command != "sh" || open[0].Machine != "m1" ||
		open[0].EndedAt != nil {
		t.Errorf("while it is open: %+v", open)
	}
	send(t, machine, framed.Status, `{"exit":3,"cause":"exited"}`)
	receive(t, user, framed.Status, `{"exit":3,"cause":"exited"}`)
	_ = user.Close(websocket.StatusNormalClosure, "")
	p.ended(id)
	waits := p.session("alice", p.job)
	// All who may read the job see the same; one who may not sees no job.
	var first string
	for _, name := range []string{"alice", "viewer", "admin"} {
		a := p.call(name, "GET", "/v1/jobs/"+string(p.job)+"/sessions", "")
		var list wire.Page[wire.SessionRecord]
		err := json.Unmarshal([]byte(a.body), &list)
		if err != nil || a.status != http.StatusOK || len(list.Items) != 2 {
			t.Fatalf("%s: %d %s", name, a.status, a.body)
		}
		newest, ended := list.Items[0], list.Items[1]
		if newest.ID != waits || newest.State != wire.SessionWaiting || newest.StartedAt != nil {
			t.Errorf("%s: the newest is %+v", name, newest)
		}
		if ended.ID != id || ended.State != wire.SessionEnded || ended.Exit == nil || *ended.Exit != 3 ||
			ended.Cause != wire.CauseExited || ended.StartedAt.Before(*ended.RequestedAt) ||
			ended.EndedAt.Before(*ended.StartedAt) {
			t.Errorf("%s: the ended one is %+v", name, ended)
		}
		if first == "" {
			first = a.body
		}
		if a.body != first {
			t.Errorf("%s sees %s, alice %s", name, a.body, first)
		}
	}
	for _, path := range []string{"/sessions", "/sessions?open=true", "/sessions?limit=1"} {
		if a := p.call("bob", "GET", "/v1/jobs/"+string(p.job)+path, ""); a.status != http.StatusNotFound {
			t.Errorf("%s as another tenant: %d %s", path, a.status, a.body)
		}
		if a := p.call("", "GET", "/v1/jobs/"+string(p.job)+path, ""); a.status != http.StatusUnauthorized {
			t.Errorf("%s without a token: %d %s", path, a.status, a.body)
		}
	}
	// Neither the token of the user nor the nonce of the agent is part of the list.
	var token, nonce string
	if err := p.db.Pool().QueryRow(t.Context(), `SELECT token, nonce FROM job_sessions WHERE id = $1`, waits).
		Scan(&token, &nonce); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(first, token) || strings.Contains(first, nonce) || token == "" || nonce == "" {
		t.Errorf("the list shows the token or the nonce: %s", first)
	}
}

func TestTheSessionsOfAJobHavePages(t *testing.T) {
	t.Parallel()
	p := newPairing(t, nil)
	var want []string
	for range 5 {
		want = append([]string{p.session("alice", p.job)}, want...)
	}
	var got []string
	q := client.SessionsQuery{Limit: 2}
	for page := 1; ; page++ {
		list := p.sessionsOf("alice", p.job, q)
		for _, s := range list.Items {
			got = append(got, s.ID)
		}
		if q.Cursor = list.NextCursor; q.Cursor == "" || page == 5 {
			break
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("pages have %v, want %v", got, want)
	}
	for _, query := range []string{"cursor=x", "limit=0", "limit=1001", "open=perhaps", "cursor=%00"} {
		a := p.call("alice", "GET", "/v1/jobs/"+string(p.job)+"/sessions?"+query, "")
		if a.status != http.StatusBadRequest && a.status != http.StatusUnprocessableEntity {
			t.Errorf("%s: %d %s", query, a.status, a.body)
		}
	}
	if a := p.call("alice", "GET", "/v1/jobs/none/sessions", ""); a.status != http.StatusNotFound {
		t.Errorf("a job that does not exist: %d %s", a.status, a.body)
	}
}

// The record outlives the job's own rows, for the same readers.
func TestTheSessionsOfAnArchivedJobAreListed(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.machine("m1", 8, 8192, 0)
	job := s.submit("alice", nil)
	id := s.session("alice", job.ID)
	s.exec(`DELETE FROM job_sessions`)
	s.end(job.ID, berth.Succeeded)
	term, _, err := s.db.Leader.OpenLease(db.LeaseLeader, "test").Acquire(t.Context(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := s.db.Jobs.ArchiveTerminal(t.Context(), term, 0, 10); n != 1 || err != nil {
		t.Fatalf("archived %d jobs, %v", n, err)
	}
	for _, name := range []string{"alice", "viewer", "admin"} {
		if list := s.sessionsOf(name, job.ID, client.SessionsQuery{}).Items; len(list) != 1 || list[0].ID != id {
			t.Errorf("%s: %+v", name, list)
		}
	}
	if a := s.call("bob", "GET", "/v1/jobs/"+string(job.ID)+"/sessions", ""); a.status != http.StatusNotFound {
		t.Errorf("another tenant: %d %s", a.status, a.body)
	}
}
