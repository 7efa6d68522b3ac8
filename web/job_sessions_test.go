package web_test

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/spec"
)

// enter records a session in a job that has ended with exit code 3. Actor, reason and command are text.
func (s *site) enter(job berth.JobID, text string) {
	s.t.Helper()
	s.exec(`
		INSERT INTO acts (event, session, tenant, actor, token, kind, job, attempt, member, machine_id, command, reason,
			exit, cause)
		SELECT e, i.id, 'a', 'user:' || $2, 't', 'exec', $1, 1, 0, 'm1', $2, $2, CASE e WHEN 'ended' THEN 3 END,
			CASE e WHEN 'ended' THEN 'exited' ELSE '' END
		FROM (SELECT gen_random_uuid() AS id) i, unnest(ARRAY['asked', 'began', 'ended']) e`, job, text)
}

// opened adds a session of a running job that is open.
func (s *site) opened(job berth.JobID) (id string) {
	s.t.Helper()
	id = string(berth.NewJobID(time.Now()))
	s.exec(`
		INSERT INTO job_sessions (id, tenant, job, attempt, rank, alloc, machine_id, epoch, token, actor, kind, request,
			nonce, state, expires_at)
		VALUES ($2, 'a', $1, 1, 0, 1, 'm1', 1, 't', 'user:alice', 'forward', '{}', 'n', 'open',
			now() + interval '1 hour')`, job, id)
	s.exec(`
		INSERT INTO acts (event, session, tenant, actor, token, kind, job, attempt, member, machine_id)
		SELECT e, $2, 'a', 'user:alice', 't', 'forward', $1, 1, 0, 'm1'
		FROM unnest(ARRAY['asked', 'began']) e`, job, id)
	return id
}

// sessionRow is the row of a session on a page.
var sessionRow = regexp.MustCompile(`(?s)<tr data-live="session-([^"]+)">.*?</tr>`)

func TestThePageOfAJobShowsItsSessions(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.machine("m1", 1)
	j := s.submit("alice", nil)
	page := "/jobs/" + string(j.ID) + "?tab=sessions"
	alice, viewer, bob := s.signedIn("alice"), s.signedIn("viewer"), s.signedIn("bob")
	if a := alice.get(page); a.status != http.StatusOK ||
		!strings.Contains(a.body, "Only a running job can be entered.") || strings.Contains(a.body, "berth exec") {
		t.Errorf("before the start: %d %s", a.status, a.body)
	}
	s.run(j.ID, "m1")
	const enter = "--tty -- bash"
	const none = "No user has opened a session in this job."
	if a := alice.get(page); !strings.Contains(a.body, none) || !strings.Contains(a.body, enter) {
		t.Errorf("while it runs: %s", a.body)
	}
	if a := viewer.get(page); !strings.Contains(a.body, none) || strings.Contains(a.body, enter) {
		t.Errorf("a viewer, who cannot enter, sees %s", a.body)
	}
	s.enter(j.ID, "nvidia-smi")
	open := s.opened(j.ID)
	for name, b := range map[string]*browser{"alice": alice, "viewer": viewer, "admin": s.signedIn("admin")} {
		a := b.get(page)
		rows := sessionRow.FindAllStringSubmatch(a.body, -1)
		if a.status != http.StatusOK || len(rows) != 2 || !strings.Contains(a.body, "berth sessions ") {
			t.Fatalf("%s: %d, %d rows: %s", name, a.status, len(rows), a.body)
		}
		for _, r := range rows {
			wants := []string{"ended", "user:nvidia-smi", "exec", "exit code 3", "<code>nvidia-smi</code>",
				`href="/machines/m1"`}
			if r[1] == open {
				wants = []string{"open", "user:alice", "forward"}
			}
			for _, want := range wants {
				if !strings.Contains(r[0], want) {
					t.Errorf("%s: the row lacks %q: %s", name, want, r[0])
				}
			}
		}
	}
	rows := sessionRow.FindAllStringSubmatch(alice.get(page+"&sessions=open").body, -1)
	if len(rows) != 1 || rows[0][1] != open {
		t.Errorf("open ones: %q", rows)
	}
	s.exec(`DELETE FROM job_sessions`)
	if a := alice.get(page + "&sessions=open"); !strings.Contains(a.body, "No session is open.") ||
		!strings.Contains(a.body, ">All<") {
		t.Errorf("without an open one: %s", a.body)
	}
	if a := bob.get(page); a.status != http.StatusNotFound || strings.Contains(a.body, "nvidia-smi") {
		t.Errorf("another tenant: %d %s", a.status, a.body)
	}
	array := s.submit("alice", func(j *spec.Job) { j.Array = &spec.Array{Size: 2} })
	if a := alice.get("/jobs/" + string(array.ID) + "?tab=sessions"); strings.Contains(a.body, ">Sessions<") {
		t.Errorf("an array, which no user can enter, has the tab: %s", a.body)
	}
}

func TestTheTabOfSessionsHasPages(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	j := s.submit("alice", nil)
	for i := range 120 {
		s.enter(j.ID, fmt.Sprintf("step-%d", i))
	}
	alice, seen := s.signedIn("alice"), map[string]bool{}
	next := regexp.MustCompile(`rel="next" href="([^"]+)"`)
	path := "/jobs/" + string(j.ID) + "?tab=sessions"
	for page, want := range []int{50, 50, 20} {
		a := alice.get(path)
		rows := sessionRow.FindAllStringSubmatch(a.body, -1)
		if a.status != http.StatusOK || len(rows) != want || len(a.body) > 80<<10 {
			t.Fatalf("page %d: %d, %d rows, %d bytes", page+1, a.status, len(rows), len(a.body))
		}
		for _, r := range rows {
			seen[r[1]] = true
		}
		if first := strings.Contains(a.body, "First page"); first != (page > 0) {
			t.Errorf("page %d leads to the first one: %v", page+1, first)
		}
		m := next.FindStringSubmatch(a.body)
		if (m != nil) != (page < 2) {
			t.Fatalf("page %d has a next one: %q", page+1, m)
		}
		if m != nil {
			path = strings.ReplaceAll(m[1], "&amp;", "&")
		}
	}
	if len(seen) != 120 {
		t.Errorf("%d of 120 sessions are on the pages", len(seen))
	}
	if a := alice.get("/jobs/" + string(j.ID) + "?tab=sessions&cursor=x"); a.status < 400 || a.status >= 500 {
		t.Errorf("a cursor that is none: %d", a.status)
	}
}
