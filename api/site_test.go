package api_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"berth"
	"berth/api"
	"berth/api/client"
	"berth/db"
	"berth/db/dbtest"
	"berth/internal/control/blob"
	"berth/spec"
	"berth/wire"
)

// site is a server on a database of its own, and tokens for it.
type site struct {
	t      *testing.T
	db     *db.DB
	server *api.Server
	blobs  *blob.Store
	url    string
	tokens map[string]string // by name: admin, alice and viewer of tenant a, bob of tenant b
	log    *syncBuffer

	sessions map[string]db.Session // of machines, by name
	patience time.Duration         // with a call; 0: no limit

	beside func() *pgxpool.Pool // for looks at locks, while calls hold the turns of the database's own pool
}

func newSite(t *testing.T, edit func(*api.Deps)) *site {
	t.Helper()
	return newSiteOn(t, dbtest.DB(t, db.Options{}), edit)
}

func newSiteAt(t *testing.T, database string, edit func(*api.Deps)) *site {
	t.Helper()
	return newSiteOn(t, dbtest.Open(t, database, db.Options{}), edit)
}

func newSiteOn(t *testing.T, d *db.DB, edit func(*api.Deps)) *site {
	t.Helper()
	store, err := blob.Open(t.Context(), "file://"+t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	s := &site{t: t, db: d, blobs: store, tokens: map[string]string{}, sessions: map[string]db.Session{}, log: &syncBuffer{}}
	s.beside = sync.OnceValue(func() *pgxpool.Pool { return dbtest.Beside(t, d) })
	for name, n := range map[string]spec.NewToken{
		"admin":  {Tenant: "default", Role: spec.RoleAdmin},
		"alice":  {Tenant: "a", Role: spec.RoleUser},
		"viewer": {Tenant: "a", Role: spec.RoleViewer},
		"bob":    {Tenant: "b", Role: spec.RoleUser},
	} {
		n.Name = name
		made, err := d.Tokens.Create(t.Context(), n, "operator:test")
		if err != nil {
			t.Fatal(err)
		}
		s.tokens[name] = made.Secret
	}
	deps := api.Deps{
		DB: d, Control: d.Jobs, Logs: &blob.LogReader{Store: store, DB: d}, Agent: api.AgentDeps{Blobs: store},
		Logger: slog.New(slog.NewTextHandler(s.log, nil)), Version: "test",
		Rate: 1e6, Burst: 1e6, Vault: keys(t, "1"),
	}
	if edit != nil {
		edit(&deps)
	}
	if s.server, err = api.New(deps); err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(s.server.Handler())
	t.Cleanup(func() { s.server.Close(); web.CloseClientConnections(); web.Close() })
	s.url = web.URL
	return s
}

func (s *site) as(name string) *client.Client { return client.New(s.url, s.tokens[name]) }

// answer is a raw answer, for tests of calls that clients never send.
type answer struct {
	status  int
	header  http.Header
	body    string
	problem api.Problem
}

func (s *site) call(name, method, path, body string, header ...string) answer {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), method, s.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if token := s.tokens[name]; token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if at, ok := s.sessions[name]; ok {
		req.Header.Set(wire.HeaderAgentBoot, at.AgentBoot)
		req.Header.Set(wire.HeaderEpoch, strconv.FormatInt(at.Epoch, 10))
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return s.answered(req)
}

// answered makes a call and reads its answer.
func (s *site) answered(req *http.Request) answer {
	s.t.Helper()
	method, path := req.Method, req.URL.Path
	res, err := (&http.Client{Timeout: s.patience}).Do(req)
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatalf("%s %s: %v", method, path, err)
	}
	a := answer{status: res.StatusCode, header: res.Header, body: string(text)}
	if a.status >= 400 {
		if err := json.Unmarshal(text, &a.problem); err != nil || a.problem.Code == "" || a.problem.Detail == "" ||
			a.problem.Status != a.status || res.Header.Get("Content-Type") != "application/problem+json" {
			s.t.Errorf("%s %s: %d is no problem+json: %s (%s)", method, path, a.status, text, res.Header.Get("Content-Type"))
		}
	}
	return a
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
func (s *site) machine(id string, cpus, memoryMiB, gpus int) {
	s.t.Helper()
	s.exec(`INSERT INTO machines (id, state, cpu_m, mem_mb, disk_mb, gpu_milli) VALUES ($1, 'ready', $2, $3, 100000, $4)`, id, cpus*1000, memoryMiB, gpus*1000)
	for i := range gpus {
		s.exec(`INSERT INTO gpu_devices (machine_id, idx, uuid, model, mem_mb) VALUES ($1, $2, $3, 'A100', 40960)`, id, i, fmt.Sprintf("%s-%d", id, i))
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
	s.db.Hub().Publish(db.TopicJob, string(id))
}

// end plays Settle: the attempt is over and the job is next.
func (s *site) end(id berth.JobID, next berth.State) {
	s.t.Helper()
	s.exec(`UPDATE allocations SET state = 'released', sealed_at = now(), forgotten_at = now() WHERE job = $1`, id)
	s.exec(`UPDATE jobs SET state = $2, version = version + 1, actor = 'workflow' WHERE id = $1`, id, next)
	s.db.Hub().Publish(db.TopicJob, string(id))
}

// write appends lines to the log of a job's first member, as its machine would.
func (s *site) write(job wire.Job, attempt int, at time.Time, lines ...string) {
	s.t.Helper()
	var text []byte
	for i, l := range lines {
		text = wire.AppendLogLine(text, at.Add(time.Duration(i)*time.Second), strings.HasPrefix(l, "error"), l)
	}
	var end int64
	if err := s.db.Pool().QueryRow(s.t.Context(), `SELECT coalesce(max(off + bytes), 0) FROM log_chunks WHERE job = $1 AND attempt = $2`, job.ID, attempt).Scan(&end); err != nil {
		s.t.Fatal(err)
	}
	key := berth.LogChunkKey(job.Tenant, job.ID, attempt, 0, end)
	if _, err := s.blobs.Put(s.t.Context(), key, bytes.NewReader(text), int64(len(text))); err != nil {
		s.t.Fatal(err)
	}
	s.exec(`INSERT INTO log_chunks (job, attempt, rank, off, bytes, lines, first_at, last_at) VALUES ($1, $2, 0, $3, $4, $5, $6, $7)`,
		job.ID, attempt, end, len(text), len(lines), at, at.Add(time.Duration(len(lines)-1)*time.Second))
	s.db.Hub().Publish(db.TopicJob, string(job.ID))
}

// syncBuffer is a log that handlers write while the test reads.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}
