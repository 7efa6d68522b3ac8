package web_test

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"berth"
	"berth/api"
	"berth/api/client"
	"berth/db"
	"berth/db/dbtest"
	"berth/internal/control/blob"
	"berth/spec"
	"berth/web"
	"berth/wire"
)

// site is a server with a dashboard on a database of its own, and tokens for it.
type site struct {
	t      *testing.T
	db     *db.DB
	pages  *web.Site
	url    string
	tokens map[string]wire.Token // admin, alice and viewer of tenant a, bob of tenant b
}

func newSite(t *testing.T) *site {
	t.Helper()
	d := dbtest.DB(t, db.Options{})
	store, err := blob.Open(t.Context(), "file://"+t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	s := &site{t: t, db: d, tokens: map[string]wire.Token{}}
	for name, n := range map[string]spec.NewToken{
		"admin":  {Tenant: "default", Role: spec.RoleAdmin},
		"alice":  {Tenant: "a", Role: spec.RoleUser},
		"viewer": {Tenant: "a", Role: spec.RoleViewer},
		"bob":    {Tenant: "b", Role: spec.RoleUser},
	} {
		n.Name = name
		if s.tokens[name], err = d.Tokens.Create(t.Context(), n, "operator:test"); err != nil {
			t.Fatal(err)
		}
	}
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
	server, err := api.New(api.Deps{
		DB: d, Control: d.Jobs, Logs: &blob.LogReader{Store: store, DB: d}, Agent: api.AgentDeps{Blobs: store},
		Logger: log, Version: "test", Rate: 1e6, Burst: 1e6,
	})
	if err != nil {
		t.Fatal(err)
	}
	if s.pages, err = web.New(web.Options{API: server, Sessions: d.WebSessions, Logger: log, Version: "test",
		Closing: server.Closing()}); err != nil {
		t.Fatal(err)
	}
	server.ServePages(s.pages)
	listening := httptest.NewServer(server.Handler())
	t.Cleanup(func() { server.Close(); listening.CloseClientConnections(); listening.Close(); server.Wait() })
	s.url = listening.URL
	return s
}

// as returns a client of the API.
func (s *site) as(name string) *client.Client { return client.New(s.url, s.tokens[name].Secret) }

// browser is a browser without script: it keeps cookies and follows no redirects.
type browser struct {
	s    *site
	http http.Client
}

// answer is an answer to a browser.
type answer struct {
	status int
	header http.Header
	body   string
}

// anonymous returns a browser that is not signed in.
func (s *site) anonymous() *browser {
	jar, err := cookiejar.New(nil)
	if err != nil {
		s.t.Fatal(err)
	}
	return &browser{s, http.Client{Jar: jar,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

// signedIn returns a browser that is signed in with a token.
func (s *site) signedIn(name string) *browser {
	s.t.Helper()
	b := s.anonymous()
	if name == "" {
		return b
	}
	a := b.post("/login", url.Values{"token": {s.tokens[name].Secret}, "next": {"/jobs"}})
	if a.status != http.StatusSeeOther || a.header.Get("Location") != "/jobs" {
		s.t.Fatalf("sign-in of %s: %d %s", name, a.status, a.body)
	}
	return b
}

func (b *browser) get(path string) answer {
	b.s.t.Helper()
	return b.do(http.MethodGet, path, "")
}

func (b *browser) post(path string, form url.Values, header ...string) answer {
	b.s.t.Helper()
	return b.do(http.MethodPost, path, form.Encode(), append([]string{"Content-Type",
		"application/x-www-form-urlencoded", "Origin", b.s.url}, header...)...)
}

func (b *browser) do(method, path, body string, header ...string) answer {
	b.s.t.Helper()
	req, err := http.NewRequestWithContext(b.s.t.Context(), method, b.s.url+path, strings.NewReader(body))
	if err != nil {
		b.s.t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
		if header[i] == "Host" {
			req.Host = header[i+1]
		}
	}
	res, err := b.http.Do(req)
	if err != nil {
		b.s.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		b.s.t.Fatal(err)
	}
	return answer{res.StatusCode, res.Header, string(text)}
}

// submit submits a small job as somebody.
func (s *site) submit(name string, edit func(*spec.Job)) wire.Job {
	s.t.Helper()
	jobSpec := spec.Job{Name: "digits", Image: "busybox"}
	if edit != nil {
		edit(&jobSpec)
	}
	job, _, err := s.as(name).Submit(s.t.Context(), jobSpec, "")
	if err != nil {
		s.t.Fatal(err)
	}
	return job
}

func (s *site) exec(sql string, args ...any) {
	s.t.Helper()
	if _, err := s.db.Pool().Exec(s.t.Context(), sql, args...); err != nil {
		s.t.Fatalf("%v\n%s", err, sql)
	}
}

// machine adds a ready machine.
func (s *site) machine(id string, gpus int) {
	s.t.Helper()
	s.exec(`INSERT INTO machines (id, state, cpu_m, mem_mb, disk_mb, gpu_milli) VALUES ($1, 'ready', 64000, 262144, 100000, $2)`,
		id, gpus*1000)
	for i := range gpus {
		s.exec(`INSERT INTO gpu_devices (machine_id, idx, uuid, model, mem_mb) VALUES ($1, $2, $3, 'A100', 40960)`, id, i,
			fmt.Sprintf("%s-%d", id, i))
	}
	s.exec(`INSERT INTO machine_leases (machine_id, epoch, until) VALUES ($1, 1, now() + interval '1 hour')`, id)
}

// run plays leader and agent: the job runs on the machine.
func (s *site) run(id berth.JobID, machine string) {
	s.t.Helper()
	s.exec(`UPDATE jobs SET state = 'queued', version = version + 1, actor = 'workflow' WHERE id = $1 AND state = 'submitted'`, id)
	s.exec(`UPDATE jobs SET state = 'scheduled', version = version + 1, attempt = attempt + 1, actor = 'leader' WHERE id = $1`, id)
	s.exec(`INSERT INTO attempts (job, attempt, leader_epoch) SELECT id, attempt, 1 FROM jobs WHERE id = $1`, id)
	s.exec(`INSERT INTO allocations (job, attempt, rank, machine_id, machine_epoch, cpu_m, mem_mb, disk_mb, gpu_milli, state)
		SELECT id, attempt, 0, $2, 1, 1000, 1024, 0, 0, 'active' FROM jobs WHERE id = $1`, id, machine)
	s.exec(`UPDATE jobs SET state = 'running', version = version + 1, actor = 'agent:m' WHERE id = $1`, id)
}

// end plays Settle: the attempt is over and the job is next.
func (s *site) end(id berth.JobID, next berth.State) {
	s.t.Helper()
	s.exec(`UPDATE allocations SET state = 'released', sealed_at = now(), forgotten_at = now() WHERE job = $1`, id)
	s.exec(`UPDATE jobs SET state = $2, version = version + 1, actor = 'workflow' WHERE id = $1`, id, next)
}
