package web_test

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"berth"
	"berth/spec"
)

// Every page and action as nobody, as a viewer and as a caller of another tenant: the table of routes
// is the list, so that a new page cannot be left out.
func TestEveryPageIsRefusedToNobodyAndToAnotherTenant(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	job := s.submit("alice", func(j *spec.Job) { j.Name = "private-to-a" })
	s.machine("m1", 2)
	s.run(job.ID, "m1")
	viewer, bob := s.signedIn("viewer"), s.signedIn("bob")
	open := map[string]bool{"GET /assets/{name}": true, "GET /login": true, "POST /login": true, "POST /logout": true,
		"POST /preferences": true}
	for _, pattern := range s.pages.Routes() {
		method, path, _ := strings.Cut(pattern, " ")
		id := string(job.ID)
		if strings.HasPrefix(path, "/machines") {
			id = "m1"
		}
		path = strings.NewReplacer("{$}", "", "{id}", id, "{name}", "style.css", "{index}", "0").Replace(path)
		form := url.Values{"do": {"cancel"}, "id": {string(job.ID)}, "confirmed": {"1"}}
		if strings.HasPrefix(path, "/schedules") {
			form.Set("do", "pause")
		}
		if path == "/me" { // viewers may sign out everywhere, see TestSigningOutEverywhere
			form.Set("do", "revoke")
		}
		visit := func(b *browser) answer {
			if method == http.MethodGet {
				return b.get(path + "?" + url.Values{"do": {"cancel"}, "id": {string(job.ID)}, "of": {"/jobs"}}.Encode())
			}
			return b.post(path, form)
		}
		if open[pattern] {
			continue
		}
		if path == "/live" || strings.HasSuffix(path, "/tail") {
			continue // they last: see TestAStreamNeedsASessionAndAPage
		}
		if a := visit(s.anonymous()); a.status != http.StatusUnauthorized || strings.Contains(a.body, "private-to-a") {
			t.Errorf("%s as nobody: %d", pattern, a.status)
		}
		switch a := visit(viewer); {
		case method == http.MethodGet && a.status != http.StatusOK && !refusedToViewers[pattern]:
			t.Errorf("%s as a viewer: %d %s", pattern, a.status, a.body)
		case method == http.MethodPost && a.status != http.StatusForbidden && !strings.Contains(a.body, "only reads"):
			t.Errorf("%s as a viewer: %d %s", pattern, a.status, a.body)
		}
		a := visit(bob)
		if strings.Contains(a.body, "private-to-a") {
			t.Errorf("%s shows another tenant's job", pattern)
		}
		if strings.HasPrefix(path, "/jobs/") && a.status != http.StatusNotFound {
			t.Errorf("%s as another tenant: %d", pattern, a.status)
		}
	}
	if j, err := s.as("alice").Job(t.Context(), job.ID); err != nil || j.Status != berth.Running {
		t.Errorf("the job of tenant a is %s, %v", j.Status, err)
	}
}

// refusedToViewers are pages that need the right to act.
var refusedToViewers = map[string]bool{"GET /submit": true, "GET /act": true,
	"GET /schedules/{name}": true, // 404: there is none of this name
	"GET /pipelines/{id}":   true, "GET /jobs/{id}/elements/{index}": true, "GET /jobs/{id}/log": true, "GET /jobs/{id}/metrics": true}

// inline finds styles, scripts and handlers inside a page, which its policy forbids.
var inline = regexp.MustCompile(`(?i)<style|\sstyle=|\son[a-z]+=|<script(?:>|\s[^>]*>[^<])|(?:href|src|action)="\s*javascript:`)

// hostile are names that break out of HTML, of its direction, or of its layout.
var hostile = []string{`"><script>alert(1)</script>`, "\u202eabc\u202c", strings.Repeat("W", 10_000), `'+alert(1)+'`,
	"javascript:alert(1)", "{{.}}", "<!--"}

func TestHostileTextsStayText(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.machine("m1", 1)
	var jobs []berth.JobID
	for _, text := range hostile {
		j := s.submit("alice", nil)
		jobs = append(jobs, j.ID)
		s.run(j.ID, "m1")
		s.enter(j.ID, text)
		s.end(j.ID, berth.Failed)
		// Past the validation: rows of other programs and older versions are shown, too.
		s.exec(`ALTER TABLE jobs DISABLE TRIGGER USER`)
		s.exec(`UPDATE jobs SET name = $2, submitted_by = 'user:' || $2, reason = jsonb_build_object('code', 'unknown', 'message', $2::text, 'hint', $2::text) WHERE id = $1`,
			j.ID, text)
		s.exec(`ALTER TABLE jobs ENABLE TRIGGER USER`)
		s.exec(`UPDATE machines SET reason = $1`, text)
	}
	alice := s.signedIn("alice")
	paths := []string{"/", "/jobs", "/jobs?cols=owner,tenant,labels,reason", "/queue", "/machines", "/machines/m1",
		"/tenants", "/schedules", "/usage", "/usage?by=pool", "/submit", "/me"}
	for _, id := range jobs {
		for _, tab := range []string{"log", "events", "explain", "metrics", "checkpoints", "outputs", "sessions",
			"spec"} {
			paths = append(paths, "/jobs/"+string(id)+"?tab="+tab)
		}
	}
	for _, text := range hostile {
		paths = append(paths, "/jobs?q="+url.QueryEscape(text), "/jobs?cursor="+url.QueryEscape(text), "/jobs?cols="+url.QueryEscape(text),
			"/login?next="+url.QueryEscape(text), "/jobs/"+url.PathEscape(text), "/machines/"+url.PathEscape(text),
			"/queue?tenant="+url.QueryEscape(text), "/machines?pool="+url.QueryEscape(text),
			"/me?revoke="+url.QueryEscape(text), "/usage?period="+url.QueryEscape(text), "/usage?date="+url.QueryEscape(text), "/usage?by="+url.QueryEscape(text), "/schedules/"+url.PathEscape(text),
			"/act?do="+url.QueryEscape(text)+"&id="+url.QueryEscape(text),
			"/act?do=cancel&id="+string(jobs[0])+"&back="+url.QueryEscape(text),
			"/jobs/"+string(jobs[0])+"?tab=sessions&cursor="+url.QueryEscape(text),
			"/jobs/"+string(jobs[0])+"?grep="+url.QueryEscape(text)+"&attempt="+url.QueryEscape(text))
	}
	for _, p := range paths {
		if len(p) > 9000 {
			continue
		}
		a := alice.get(p)
		if a.status >= 500 {
			t.Errorf("%.80s: %d %.300s", p, a.status, a.body)
		}
		if m := inline.FindString(a.body); m != "" {
			t.Errorf("%.80s has an inline part: %q", p, m)
		}
		if strings.Contains(a.body, "<script>alert") || strings.Contains(a.body, `href="javascript`) {
			t.Errorf("%.80s runs a text of a user", p)
		}
		if len(a.body) > 80<<10 || !utf8.ValidString(a.body) {
			t.Errorf("%.80s has %d bytes", p, len(a.body))
		}
		if got := a.header.Get("Content-Security-Policy"); !strings.Contains(got, "default-src 'none'") || strings.Contains(got, "unsafe") {
			t.Errorf("%.80s has the policy %q", p, got)
		}
	}
}

func TestAnEmptyListSaysWhy(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for name, want := range map[string]string{"alice": "Tenant a has no jobs yet.", "admin": "There are no jobs yet."} {
		if a := s.signedIn(name).get("/jobs"); a.status != http.StatusOK || !strings.Contains(a.body, want) ||
			!strings.Contains(a.body, "berth submit") {
			t.Errorf("%s: %d, without %q:\n%s", name, a.status, want, a.body)
		}
	}
	if a := s.signedIn("bob").get("/jobs?q=status:failed"); !strings.Contains(a.body, "No job of tenant b matches") {
		t.Errorf("a search without a match:\n%s", a.body)
	}
	for _, path := range []string{"/", "/queue", "/machines", "/schedules", "/tenants", "/usage", "/jobs", "/submit", "/me"} {
		if a := s.signedIn("bob").get(path); a.status != http.StatusOK {
			t.Errorf("%s of an empty cluster: %d %s", path, a.status, a.body)
		}
	}
}

func TestAFaultOfASearchKeepsThePage(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a := s.signedIn("alice").get("/jobs?q=" + url.QueryEscape("colour:red"))
	if a.status != http.StatusUnprocessableEntity || !strings.Contains(a.body, `value="colour:red"`) ||
		!strings.Contains(a.body, "is not known; allowed are") {
		t.Errorf("%d %s", a.status, a.body)
	}
}

func TestThePageOfJobsIsSmallInALargeStore(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	template := s.submit("alice", func(j *spec.Job) { j.Labels = map[string]string{"project": "vision", "team": "perception"} })
	s.exec(`ALTER TABLE jobs DISABLE TRIGGER USER`)
	s.exec(`INSERT INTO jobs SELECT (jsonb_populate_record(j, jsonb_build_object('id', gen_random_uuid(), 'name', 'train-' || n, 'submitted_at', now() - n * interval '1 second'))).*
		FROM jobs j, generate_series(1, 10000) n WHERE j.id = $1`, template.ID)
	s.exec(`ALTER TABLE jobs ENABLE TRIGGER USER`)
	alice := s.signedIn("alice")
	first := alice.get("/jobs")
	if n := strings.Count(first.body, `data-live="job-`); first.status != http.StatusOK || n != 50 || len(first.body) > 80<<10 {
		t.Errorf("%d: %d rows in %d bytes", first.status, n, len(first.body))
	}
	if nodes := strings.Count(first.body, "<"); nodes > 3000 { // half of them are end tags
		t.Errorf("%d tags", nodes)
	}
	next := regexp.MustCompile(`rel="next" href="([^"]+)"`).FindStringSubmatch(first.body)
	if next == nil {
		t.Fatal("there is no next page")
	}
	second := alice.get(strings.ReplaceAll(next[1], "&amp;", "&"))
	row := regexp.MustCompile(`data-live="(job-[^"]+)"`)
	for _, m := range row.FindAllString(second.body, -1) {
		if strings.Contains(first.body, m) {
			t.Errorf("%s is on both pages", m)
		}
	}
	if !strings.Contains(second.body, "First page") {
		t.Error("the second page does not lead back to the first")
	}
}
