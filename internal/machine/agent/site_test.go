package agent_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"berth"
	"berth/activities/node"
	"berth/activities/node/fakeruntime"
	"berth/api"
	"berth/db"
	"berth/db/dbtest"
	"berth/failure"
	"berth/internal/control/admission"
	"berth/internal/control/blob"
	"berth/internal/control/cloud"
	"berth/internal/lib/poll"
	"berth/internal/lib/publicnet/dnstest"
	"berth/internal/lib/sealer"
	"berth/internal/machine/agent"
	"berth/spec"
	"berth/wire"
)

// site is a control plane, as real as a test can have it: the database, the API
// over HTTP, a store of blobs. The test plays the leader and the workflows.
type site struct {
	users   string // of containers without a choice of their own; see api.Deps
	t       *testing.T
	db      *db.DB
	term    db.Term
	blobs   *blob.Store
	blobDir string
	url     string
	api     atomic.Pointer[http.Handler] // behind the gate; see serves
	gate    *gate
	image   string // that jobs run
	keys    *sealer.Keys
	names   *dnstest.Server // of the control plane

	accounts cloud.Accounts // providers of machines, for the next start of the API
	parts    api.PartSizes
	direct   bool // signed addresses of blobs, for the next start of the API
	chunks   bool // checkpoints by chunks, for the next start of the API
}

// gate stands before the API and can be closed, or made to refuse.
type gate struct {
	next   http.Handler
	closed atomic.Bool
	refuse atomic.Pointer[func(*http.Request) int] // a status other than 0 is the answer

	// watch sees the body of each call before the API does. The function that it returns, if
	// any, runs after the API has carried out the call and before the answer leaves.
	watch atomic.Pointer[func(body []byte) (after func())]

	around atomic.Pointer[func(next http.Handler, w http.ResponseWriter, r *http.Request)] // in place of the API
}

func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if g.closed.Load() {
		panic(http.ErrAbortHandler)
	}
	if f := g.refuse.Load(); f != nil {
		if status := (*f)(r); status != 0 {
			http.Error(w, "{}", status)
			return
		}
	}
	after := func() {}
	if f := g.watch.Load(); f != nil {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		if f := (*f)(body); f != nil {
			after = f
		}
	}
	if f := g.around.Load(); f != nil {
		(*f)(g.next, w, r)
	} else {
		g.next.ServeHTTP(w, r)
	}
	after()
}

func newSite(t *testing.T) *site {
	t.Helper()
	return newSiteWith(t, dbtest.DB(t, db.Options{}))
}

// newSiteOn is newSite on a database of the test's own.
func newSiteOn(t *testing.T, url string) *site {
	t.Helper()
	return newSiteWith(t, dbtest.Open(t, url, db.Options{}))
}

// newSiteWith is newSiteOn with the control plane's database open.
func newSiteWith(t *testing.T, d *db.DB) *site {
	t.Helper()
	s := &site{t: t, image: "testprog", blobDir: filepath.Join(t.TempDir(), "blobs"), keys: newKeys(t),
		names: &dnstest.Server{}}
	s.db = d
	var err error
	if s.blobs, err = blob.Open(t.Context(), "file://"+s.blobDir); err != nil {
		t.Fatal(err)
	}
	s.serves()
	s.gate = &gate{next: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*s.api.Load()).ServeHTTP(w, r) })}
	h := httptest.NewUnstartedServer(s.gate)
	h.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	h.Start()
	t.Cleanup(h.Close)
	s.url = h.URL
	term, ok, err := s.db.Leader.OpenLease(db.LeaseLeader, "test").Acquire(t.Context(), time.Hour)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	s.term = term
	return s
}

// serves starts the API, so to speak. Another one that runs is replaced, with all that it remembers.
func (s *site) serves() {
	s.t.Helper()
	server, err := api.New(api.Deps{
		DB: s.db, Control: s.db.Jobs, Logger: slog.New(slog.DiscardHandler),
		Agent: api.AgentDeps{Blobs: s.blobs, Direct: s.direct, Chunks: s.chunks, Resolver: s.names.Resolver(), ProofLimit: patience,
			Parts: s.parts},
		Logs: &blob.LogReader{Store: s.blobs, DB: s.db}, Vault: s.keys,
		Volumes: admission.Volumes{"datasets": {"default"}}, Accounts: s.accounts, Users: s.users,
	})
	if err != nil {
		s.t.Fatal(err)
	}
	handler := server.Handler()
	s.api.Store(&handler)
}

// machine is one agent over a fake engine that outlives it.
type machine struct {
	s       *site
	id      berth.MachineID
	cfg     agent.Config
	runtime *fakeruntime.Fake
	cancel  context.CancelFunc
	stop    func() error
	logs    *lockedBuffer
}

type lockedBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

func (b *lockedBuffer) text() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.String()
}

type declared []berth.GPU

func (d declared) Devices(context.Context) ([]berth.GPU, error) { return slices.Clone(d), nil }
func (declared) Declared() bool                                 { return true }
func (declared) Close() error                                   { return nil }

var quick = agent.Timing{
	PollWait: 500 * time.Millisecond, // where a restart of the database has lost a hint
	RetryMin: 5 * time.Millisecond, RetryMax: 50 * time.Millisecond,
	LogFirst: 10 * time.Millisecond, LogEvery: 50 * time.Millisecond,
	CheckpointPoll: 10 * time.Millisecond, ProgressPoll: 20 * time.Millisecond, HealthPoll: 20 * time.Millisecond,
	NamePatience: 50 * time.Millisecond, StageEvery: 10 * time.Millisecond, UseReport: 20 * time.Millisecond,
	PullPause: 5 * time.Millisecond, CachePause: 10 * time.Millisecond, DiskPoll: 20 * time.Millisecond, DiskRecheck: 100 * time.Millisecond,
	// However busy this machine is, no claim is old, and no engine that is slow or
	// starts again counts as silent or broken.
	RenewPause: 20 * time.Millisecond, LineEvery: 10 * time.Millisecond, LinePause: 20 * time.Millisecond,
	LineRepeat: 50 * time.Millisecond, ClaimFresh: time.Hour, EngineProbe: time.Hour, EnginePatience: patience,
	// No pause of the path to the store ends within a test, and no transfer of a slow machine counts as stalled.
	DirectPause: time.Hour, DirectStall: patience,
}

// impatient makes the agent, from its next process on, give up a store that
// does not answer or refuses. Where a test means to be in time nothing is short.
func (m *machine) impatient() {
	m.s.t.Helper()
	m.cfg.Timing.RestorePatience, m.cfg.Timing.UploadPatience = 300*time.Millisecond, 300*time.Millisecond
	m.restart()
}

// machine joins a machine with a fake engine and waits until it is ready for
// work.
func (s *site) machine(id berth.MachineID) *machine {
	s.t.Helper()
	fake := fakeruntime.New(fakeruntime.Options{CPUMilli: 64000})
	s.t.Cleanup(fake.Shutdown)
	m := s.machineOn(id, fake)
	m.runtime = fake
	return m
}

func (s *site) machineOn(id berth.MachineID, engine node.Runtime) *machine {
	s.t.Helper()
	j, err := s.db.JoinTokens.Create(s.t.Context(), spec.NewJoinToken{}, "operator:test")
	if err != nil {
		s.t.Fatal(err)
	}
	m := &machine{s: s, id: id, logs: &lockedBuffer{}}
	m.cfg = s.config(m, engine, j.Secret)
	s.t.Cleanup(func() {
		if s.t.Failed() {
			s.t.Logf("log of agent %s:\n%s", id, m.logs.text())
		}
	})
	m.start()
	m.until("machine is ready", func() bool { return s.machineState(id) == berth.MachineReady })
	return m
}

// config is the configuration of a machine with two GPUs.
func (s *site) config(m *machine, engine node.Runtime, joinToken string) agent.Config {
	id := string(m.id)
	return agent.Config{
		Server: s.url, JoinToken: joinToken, StateDir: filepath.Join(s.t.TempDir(), "agent"), Machine: m.id, HostBoot: "boot-1",
		Runtime: engine, Logger: slog.New(slog.NewTextHandler(m.logs, &slog.HandlerOptions{Level: slog.LevelDebug})), Timing: quick,
		GPUs: declared{{Index: 0, UUID: id + "-0", Model: "H100", MemoryMiB: 81920, Healthy: true}, {Index: 1, UUID: id + "-1", Model: "H100", MemoryMiB: 81920, Healthy: true}},
	}
}

// start runs the agent's process, so to speak.
func (m *machine) start() {
	m.s.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	registered := strings.Count(m.logs.text(), "msg=registered ")
	go func() { done <- agent.Run(ctx, m.cfg) }()
	m.cancel = cancel
	m.stop = sync.OnceValue(func() error {
		cancel()
		return <-done
	})
	m.s.t.Cleanup(func() { _ = m.stop() })
	m.until("its session has begun", func() bool {
		select {
		case err := <-done:
			done <- err
			m.s.t.Fatalf("agent ended: %v", err)
		default:
		}
		return strings.Count(m.logs.text(), "msg=registered ") > registered
	})
}

// restart is a new agent process over the same engine and state.
func (m *machine) restart() {
	m.s.t.Helper()
	if err := m.stop(); err != nil {
		m.s.t.Fatal(err)
	}
	m.start()
}

// patience bounds every wait for an expected event; machines that run tests are busy.
const patience = 5 * time.Minute

func (m *machine) until(what string, ok func() bool) { m.s.until(what, ok) }

func (s *site) until(what string, ok func() bool) {
	s.t.Helper()
	if !poll.Until(patience, 100*time.Millisecond, ok) {
		s.t.Fatalf("never: %s", what)
	}
}

func (s *site) machineState(id berth.MachineID) berth.MachineState {
	s.t.Helper()
	m, err := s.db.Machines.Get(s.t.Context(), "", id)
	if err != nil {
		return ""
	}
	return m.State
}

// submit stores a job that runs the test program with this command.
func (s *site) submit(edit func(*spec.Job), command ...string) berth.JobID {
	s.t.Helper()
	return s.submitAs("default", edit, command...)
}

func (s *site) submitAs(tenant berth.TenantID, edit func(*spec.Job), command ...string) berth.JobID {
	s.t.Helper()
	jobSpec := spec.Job{Name: "test", Image: s.image, Command: command}
	grace := spec.Duration(time.Minute)
	jobSpec.StopGrace = &grace
	if edit != nil {
		edit(&jobSpec)
	}
	job, _, err := s.db.Jobs.Submit(s.t.Context(), db.Submission{Tenant: tenant, Spec: jobSpec.WithDefaults(), Actor: "user:test"})
	if err != nil {
		s.t.Fatal(err)
	}
	return job.ID
}

// place is the leader: it begins the job's next attempt on the machine.
func (m *machine) place(id berth.JobID) wire.RunRequest {
	m.s.t.Helper()
	return m.placeOn(0, id)
}

// placeOn places the job on the machine's device of that index.
func (m *machine) placeOn(device int, id berth.JobID) wire.RunRequest {
	s := m.s
	s.t.Helper()
	if _, err := s.db.Jobs.Load(s.t.Context(), id); err != nil {
		s.t.Fatal(err)
	}
	mach, err := s.db.Machines.Get(s.t.Context(), "", m.id)
	if err != nil {
		s.t.Fatal(err)
	}
	var version int64
	var attempt int
	if err := s.db.Pool().QueryRow(s.t.Context(), `SELECT version, attempt FROM jobs WHERE id = $1`, id).Scan(&version, &attempt); err != nil {
		s.t.Fatal(err)
	}
	start := berth.Start{Job: id, Version: version, Attempt: attempt + 1, Ranks: []berth.Grant{{
		Machine: m.id, Epoch: mach.Epoch, Capacity: berth.Capacity{CPUMilli: 1000, MemoryMiB: 64, GPUMilli: 1000},
		GPUs: []berth.DeviceShare{{Index: device, Milli: 1000}},
	}}}
	c, err := s.db.Queue.CommitStarts(s.t.Context(), s.term, []berth.Start{start})
	if err != nil || len(c.Started) != 1 {
		s.t.Fatalf("place: %+v, %v", c, err)
	}
	s.db.Hub().Publish(db.TopicMachine, string(m.id))
	v, err := s.db.Jobs.Load(s.t.Context(), id)
	if err != nil {
		s.t.Fatal(err)
	}
	return wire.RunRequest{Job: id, Attempt: v.Attempt, Alloc: v.Slots[0].Alloc}
}

// waiter waits for the end of a rank as the control plane does: in its row.
type waiter struct {
	t    *testing.T
	done chan struct{}
	r    wire.RunResult
	err  error
}

// run places a job and begins to wait for it.
func (m *machine) run(id berth.JobID) (wire.RunRequest, *waiter) {
	m.s.t.Helper()
	req := m.place(id)
	return req, m.wait(req)
}

// runOn is run on the machine's device of that index.
func (m *machine) runOn(device int, id berth.JobID) (wire.RunRequest, *waiter) {
	m.s.t.Helper()
	req := m.placeOn(device, id)
	return req, m.wait(req)
}

func (m *machine) wait(req wire.RunRequest) *waiter {
	w := &waiter{t: m.s.t, done: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	m.s.t.Cleanup(func() { cancel(); <-w.done })
	go func() {
		defer close(w.done)
		for ctx.Err() == nil {
			rows, err := m.s.db.Attempts.Members(ctx, db.Silence{Suspect: time.Hour, Lost: time.Hour}, []berth.AllocationID{req.Alloc})
			switch {
			case err != nil && ctx.Err() == nil:
				w.err = err
				return
			case len(rows) == 1 && rows[0].Sealed:
				w.r = wire.RunResult{Phase: berth.PhaseSealed, Exit: rows[0].Exit}
				return
			case len(rows) == 1 && !rows[0].Live():
				return // of a superseded attempt
			}
			select {
			case <-time.After(5 * time.Millisecond):
			case <-ctx.Done():
			}
		}
		w.err = ctx.Err()
	}()
	return w
}

func (w *waiter) result() wire.RunResult {
	w.t.Helper()
	select {
	case <-w.done:
	case <-time.After(patience):
		w.t.Fatal("the waiter does not come back")
	}
	if w.err != nil {
		w.t.Fatalf("waiter: %v", w.err)
	}
	return w.r
}

// exit is the result of a waiter whose rank was sealed.
func (w *waiter) exit() failure.Exit {
	w.t.Helper()
	r := w.result()
	if r.Phase != berth.PhaseSealed || r.Exit == nil {
		w.t.Fatalf("the waiter came back with %+v", r)
	}
	return *r.Exit
}

// settle is the workflow's last step of an attempt.
func (s *site) settle(id berth.JobID) wire.Job {
	s.t.Helper()
	v, err := s.db.Jobs.Load(s.t.Context(), id)
	if err != nil {
		s.t.Fatal(err)
	}
	r, err := s.db.Attempts.Settle(s.t.Context(), id, v.Attempt)
	if err != nil || r.NotReady {
		s.t.Fatalf("settle: %+v, %v", r, err)
	}
	return s.job(id)
}

func (s *site) job(id berth.JobID) wire.Job {
	s.t.Helper()
	j, err := s.db.Jobs.Get(s.t.Context(), "", id)
	if err != nil {
		s.t.Fatal(err)
	}
	return j
}

func (s *site) cancel(id berth.JobID) {
	s.t.Helper()
	if _, err := s.db.Jobs.RequestCancel(s.t.Context(), "", id, "user:test", nil); err != nil {
		s.t.Fatal(err)
	}
}

// log returns the texts of an attempt's stored log.
func (s *site) log(id berth.JobID, attempt int) []string {
	s.t.Helper()
	in, err := (&blob.LogReader{Store: s.blobs, DB: s.db}).OpenLog(s.t.Context(), berth.LogRef{Job: id, Attempt: attempt}, 0)
	if err != nil {
		s.t.Fatal(err)
	}
	defer in.Close()
	b, err := io.ReadAll(in)
	if err != nil {
		s.t.Fatal(err)
	}
	lines := []string{}
	for line := range strings.Lines(string(b)) {
		part := strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 3)
		if len(part) != 3 {
			s.t.Fatalf("log line %q", line)
		}
		lines = append(lines, part[2])
	}
	return lines
}

func (s *site) events(id berth.JobID) []wire.Event {
	s.t.Helper()
	list, err := s.db.Jobs.Events(s.t.Context(), "", id, 0, 100)
	if err != nil {
		s.t.Fatal(err)
	}
	return list
}

func (s *site) hasEvent(id berth.JobID, kind wire.EventKind, text string) bool {
	return slices.ContainsFunc(s.events(id), func(e wire.Event) bool { return e.Kind == kind && strings.Contains(e.Detail, text) })
}

// container is the rank's, ErrNoContainer if there is none.
func (m *machine) container(req wire.RunRequest) (node.Container, error) {
	return m.cfg.Runtime.Inspect(context.Background(), berth.ContainerName(req.Job, 0, req.Attempt))
}

func (m *machine) running(req wire.RunRequest) {
	m.s.t.Helper()
	m.until("container runs", func() bool {
		c, err := m.container(req)
		return err == nil && c.State == node.ContainerRunning
	})
}

// cleared waits until nothing of the rank is left on the machine or in its set.
func (m *machine) cleared(req wire.RunRequest) {
	m.s.t.Helper()
	m.until("rank is forgotten", func() bool {
		var forgotten bool
		if err := m.s.db.Pool().QueryRow(m.s.t.Context(), `SELECT forgotten_at IS NOT NULL FROM allocations WHERE id = $1`, int64(req.Alloc)).Scan(&forgotten); err != nil {
			m.s.t.Fatal(err)
		}
		return forgotten
	})
	if c, err := m.container(req); err == nil {
		m.s.t.Errorf("container is still there: %+v", c)
	}
	if _, err := os.Stat(m.scratch(req)); !os.IsNotExist(err) {
		m.s.t.Errorf("scratch folder is still there: %v", err)
	}
}

func (m *machine) scratch(req wire.RunRequest) string {
	return filepath.Join(m.cfg.StateDir, "ranks", berth.ContainerName(req.Job, 0, req.Attempt))
}

func ptr[T any](v T) *T { return &v }

// moody is an inventory whose first device can fail.
type moody struct {
	declared
	fail atomic.Bool
}

func (m *moody) Devices(ctx context.Context) ([]berth.GPU, error) {
	list, err := m.declared.Devices(ctx)
	if m.fail.Load() {
		list[0].Healthy, list[0].Reason = false, "XID 79"
	}
	return list, err
}
