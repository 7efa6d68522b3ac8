package e2e_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"

	"berth"
	"berth/activities/node"
	"berth/activities/node/fakeruntime"
	apiclient "berth/api/client"
	"berth/db"
	"berth/db/dbtest"
	"berth/e2e/commands"
	"berth/internal/check"
	"berth/internal/control/controlplane"
	"berth/internal/control/scheduler"
	"berth/internal/devstack/temporaldev"
	"berth/internal/lib/poll"
	"berth/internal/lib/publicnet"
	"berth/internal/lib/sealer"
	"berth/internal/lib/tracing"
	"berth/internal/machine/agent"
	"berth/internal/machine/fetch"
	"berth/spec"
	"berth/wire"
	"berth/workers"
)

// stack is a running Berth.
type stack struct {
	t        testing.TB
	api      *apiclient.Client
	temporal client.Client
	url      string
	token    string
	database string
	server   *temporaldev.Server
	address  string // of Temporal
	engines  map[berth.MachineID]*fakeruntime.Fake
	logs     *lockedBuffer    // of the control plane and the agents
	dir      string           // of the blobs, the agents' state and the key file
	traces   *tracing.Tracing // nil: none
	spans    *tracetest.InMemoryExporter
	lossy    atomic.Bool  // every Run that is delivered is lost on its way
	bouncy   atomic.Bool  // the first try of every Run fails, as in a replica that stops
	ahead    atomic.Int64 // nanoseconds by which launches see a later time than the database's
	timing   agent.Timing // of agents that join from now on
	gateway  string       // address by which they reach the API; empty: url
}

// waiterBeat is the longest time between two heartbeats of a waiter: so short that
// a running job has had several within a test's patience.
const waiterBeat = 5 * time.Second

// quick are ages at which a test need not wait long for a workflow that is gone.
var quick = scheduler.Ages{Submitted: time.Second, NoWorkflow: time.Second}

// start brings a stack up and takes it down when the test ends.
func start(t testing.TB, ages scheduler.Ages, machines ...berth.MachineID) *stack {
	t.Helper()
	return startWith(t, ages, plain, machines...)
}

func plain(*controlplane.Config) {}

// startWith is start with another configuration of the control plane.
func startWith(t testing.TB, ages scheduler.Ages, edit func(*controlplane.Config), machines ...berth.MachineID) *stack {
	t.Helper()
	return startStack(t, ages, edit, nil, machines...)
}

func startStack(t testing.TB, ages scheduler.Ages, edit func(*controlplane.Config), traces *tracing.Tracing, machines ...berth.MachineID) *stack {
	t.Helper()
	url := dbtest.URL(t)
	log, logs := testLog(t)
	s := &stack{t: t, database: url, logs: logs, traces: traces, dir: t.TempDir(), engines: map[berth.MachineID]*fakeruntime.Fake{}}
	t.Cleanup(s.verify) // the last of all: every writer has ended
	t.Cleanup(s.dropTemporal)
	s.startTemporal(t, freePort(t)) // it must be free when it is started again
	t.Cleanup(func() { _ = s.server.Stop() })
	s.address = s.server.Address()
	var err error
	if s.temporal, err = workers.Dial(workers.ClientOptions{Address: s.address, Logger: log, Traces: traces}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.temporal.Close)

	cfg := controlplane.Default()
	cfg.Policy = cfg.Policy.Plain() // policies are not tested here
	cfg.Listen, cfg.DatabaseURL, cfg.TemporalAddress = "127.0.0.1:0", url, s.address
	cfg.BlobURL = "file://" + filepath.Join(s.dir, "blobs")
	cfg.WebhookAllow = "127.0.0.1"
	cfg.FileInputs = []string{"/datasets=default"}
	cfg.SecretKeyFile = filepath.Join(s.dir, "secret-key")
	if err := sealer.Make(cfg.SecretKeyFile); err != nil {
		t.Fatal(err)
	}
	cfg.Grace = 0
	if ages != (scheduler.Ages{}) {
		cfg.ReconcileEvery = 300 * time.Millisecond
	}
	cfg.RatePerSecond, cfg.Burst, cfg.SubmitRate = 100_000, 100_000, 0
	edit(&cfg)
	token := ""
	plane, err := controlplane.New(cfg, controlplane.Options{
		Logger: log, Version: "e2e", Ages: ages, LeaderIdle: dbtest.Patience, Traces: traces, FirstToken: func(secret string) { token = secret },
		Waiter: s.delivers, WaiterBeat: waiterBeat,
		ScaleEvery: 300 * time.Millisecond,
		CloudClock: func(now time.Time) time.Time { return now.Add(time.Duration(s.ahead.Load())) },
	})
	if err != nil {
		t.Fatal(err)
	}
	s.run("control plane", plane.Run)
	select {
	case <-plane.Ready():
	case <-time.After(patience):
		t.Fatal("control plane is not ready")
	}
	s.url, s.token = plane.URL(), token
	s.api = apiclient.New(s.url, token)
	t.Cleanup(s.api.Close)
	for _, m := range machines {
		s.join(m, log)
	}
	return s
}

// verify checks that the test's history keeps every promise.
func (s *stack) verify() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	h, err := db.OpenHistory(ctx, s.database)
	if err != nil {
		s.t.Errorf("read the history: %v", err)
		return
	}
	r, err := check.Run(ctx, h, nil, nil, check.Options{})
	if err := errors.Join(err, h.Close()); err != nil {
		s.t.Errorf("read the history: %v", err)
	}
	for _, b := range r.Breaches {
		s.t.Errorf("%s\n%s", b, b.Rows)
	}
}

// freePort is a port for a server that is started again.
func freePort(t testing.TB) int {
	t.Helper()
	port, err := commands.Port()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// startTemporal starts a server on a port. Another one in the same database takes
// up where the last one stopped.
func (s *stack) startTemporal(t testing.TB, port int) {
	t.Helper()
	server, err := temporaldev.Start(t.Context(), temporaldev.Options{DatabaseURL: s.database, Prefix: s.prefix(t), FrontendPort: port, NoUI: true})
	if err != nil {
		t.Fatal(err)
	}
	s.server = server
}

// prefix returns the prefix of the names of Temporal's databases, which are the stack's own: servers of
// stacks that run at the same time would carry out each other's workflows, against the wrong database.
func (s *stack) prefix(t testing.TB) string {
	t.Helper()
	cfg, err := pgx.ParseConfig(s.database)
	if err != nil {
		t.Fatal(err)
	}
	return cfg.Database + "_"
}

// dropTemporal drops the databases of a stopped server, since the tests' PostgreSQL is in memory. It is
// not the test's fault if one is still in use.
func (s *stack) dropTemporal() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.database)
	if err != nil {
		s.t.Logf("drop Temporal's databases: %v", err)
		return
	}
	defer conn.Close(ctx)
	for _, name := range []string{"temporal", "temporal_visibility"} {
		if _, err := conn.Exec(ctx, "DROP DATABASE IF EXISTS "+s.prefix(s.t)+name+" WITH (FORCE)"); err != nil {
			s.t.Logf("drop Temporal's databases: %v", err)
		}
	}
}

// restartTemporal starts a stopped server again where it was.
func (s *stack) restartTemporal(t testing.TB) {
	t.Helper()
	_, port, err := net.SplitHostPort(s.address)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	s.startTemporal(t, n)
}

// run runs f for the test's time.
func (s *stack) run(what string, f func(context.Context) error) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	s.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			s.t.Errorf("%s: %v", what, err)
		}
	})
}

// delivers passes the tasks of waiters on, or loses them: then Temporal counts the activities as
// started, and gets no heartbeat.
func (s *stack) delivers(run workers.RunFunc) workers.RunFunc {
	return func(ctx context.Context, r wire.RunRequest) (wire.RunResult, error) {
		if s.bouncy.Load() && activity.GetInfo(ctx).Attempt == 1 {
			return wire.RunResult{}, errors.New("this replica stops")
		}
		if !s.lossy.Load() {
			return run(ctx, r)
		}
		return wire.RunResult{}, activity.ErrResultPending
	}
}

// gpus is a declared inventory.
type gpus []berth.GPU

func (g gpus) Devices(context.Context) ([]berth.GPU, error) { return slices.Clone(g), nil }
func (gpus) Declared() bool                                 { return true }
func (gpus) Close() error                                   { return nil }

// join runs an agent over an engine in memory, with two GPUs.
func (s *stack) join(m berth.MachineID, log *slog.Logger) {
	s.t.Helper()
	engine := fakeruntime.New(fakeruntime.Options{CPUMilli: 64_000})
	s.engines[m] = engine
	s.t.Cleanup(engine.Shutdown)
	s.joinOver(m, engine, log, nil, node.HostNetwork)
}

// joinOver runs an agent over an engine.
func (s *stack) joinOver(m berth.MachineID, engine node.Runtime, log *slog.Logger, labels map[string]string, gangNetwork string) {
	s.t.Helper()
	token, err := s.api.CreateJoinToken(s.t.Context(), spec.NewJoinToken{})
	if err != nil {
		s.t.Fatal(err)
	}
	cfg := agent.Config{
		Server: cmp.Or(s.gateway, s.url), JoinToken: token.Secret, StateDir: filepath.Join(s.dir, string(m)),
		Machine: m, HostBoot: "boot-1",
		Runtime: engine, Logger: log, Traces: s.traces, Labels: labels, GangNetwork: gangNetwork, Timing: s.timing,
		InputNetworks: publicnet.Policy{}.Allow(netip.MustParsePrefix("127.0.0.0/8")), // where tests have their servers
		GPUs: gpus{
			{Index: 0, UUID: string(m) + "-0", Model: "H100", MemoryMiB: 81920, Healthy: true},
			{Index: 1, UUID: string(m) + "-1", Model: "H100", MemoryMiB: 81920, Healthy: true},
		},
	}
	if m == "m1" { // one machine has the content of the folder
		cfg.Volumes = fetch.Volumes{"datasets": s.volume(s.t)}
	}
	s.run("agent "+string(m), func(ctx context.Context) error { return agent.Run(ctx, cfg) })
	until(s.t, "machine is ready", func() bool {
		found, err := s.api.Machine(s.t.Context(), m)
		return err == nil && found.State == berth.MachineReady
	})
}

// volume is the folder that machine m1 shares as /datasets.
func (s *stack) volume(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(s.dir, "datasets-of-m1")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// spec is a job of the test program.
func jobSpec(name string, command ...string) spec.Job {
	grace, cpus, memory := spec.Duration(time.Minute), spec.MilliCPU(100), spec.MiB(64)
	return spec.Job{
		Name: name, Image: "testprog", Command: command, StopGrace: &grace,
		Resources: spec.Resources{CPUs: &cpus, Memory: &memory},
	}
}

// submit submits a job as the CLI does: with a key, so that it is sent again
// while the server cannot answer.
func (s *stack) submit(t testing.TB, j spec.Job) berth.JobID {
	t.Helper()
	job, _, err := s.api.Submit(t.Context(), j, berth.NewSecret())
	if err != nil {
		t.Fatal(err)
	}
	return job.ID
}

func (s *stack) job(t testing.TB, id berth.JobID) wire.Job {
	t.Helper()
	var job wire.Job
	until(t, "the API tells of job "+string(id), func() (told bool) {
		var err error
		if job, err = s.api.Job(t.Context(), id); err != nil && berth.CodeOf(err) != berth.CodeUnavailable {
			t.Fatal(err)
		}
		return err == nil
	})
	return job
}

// ends waits until a job has this state and its workflow has completed.
func (s *stack) ends(t testing.TB, id berth.JobID, want berth.State) wire.Job {
	t.Helper()
	s.becomes(t, id, want)
	completed := false
	t.Cleanup(func() {
		if !completed {
			t.Logf("job %s is %s; its workflow: %s", id, want, s.workflowState(id))
		}
	})
	until(t, "the workflow completes", func() bool {
		x, err := s.temporal.DescribeWorkflowExecution(t.Context(), berth.JobWorkflowID(id), "")
		status := x.GetWorkflowExecutionInfo().GetStatus()
		if completed = err == nil && status == enums.WORKFLOW_EXECUTION_STATUS_COMPLETED; completed {
			return true
		}
		if err == nil && (status == enums.WORKFLOW_EXECUTION_STATUS_FAILED || status == enums.WORKFLOW_EXECUTION_STATUS_TERMINATED) {
			t.Fatalf("the workflow is %s", status) // its row has ended, so it is not started again
		}
		return false
	})
	return s.job(t, id)
}

// workflowState describes the workflow of a job, with its pending work and its history.
func (s *stack) workflowState(id berth.JobID) string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	x, err := s.temporal.DescribeWorkflowExecution(ctx, berth.JobWorkflowID(id), "")
	if err != nil {
		return err.Error()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s, task %v, activities %v, events:", x.GetWorkflowExecutionInfo().GetStatus(),
		x.GetPendingWorkflowTask(), x.GetPendingActivities())
	events := s.temporal.GetWorkflowHistory(ctx, berth.JobWorkflowID(id), "", false, enums.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	for events.HasNext() {
		e, err := events.Next()
		if err != nil {
			fmt.Fprintf(&b, " %v", err)
			break
		}
		fmt.Fprintf(&b, "\n%s %s", e.GetEventTime().AsTime().Format(time.TimeOnly), e.GetEventType())
		if f := e.GetWorkflowTaskFailedEventAttributes(); f != nil {
			fmt.Fprintf(&b, " %s: %s", f.GetCause(), f.GetFailure().GetMessage())
		}
		if f := e.GetWorkflowExecutionFailedEventAttributes(); f != nil {
			fmt.Fprintf(&b, " %v", f.GetFailure())
		}
	}
	return b.String()
}

func (s *stack) becomes(t testing.TB, id berth.JobID, want berth.State) {
	t.Helper()
	var now berth.State
	until(t, "job "+string(id)+" is "+string(want), func() bool {
		now = s.job(t, id).Status
		if now.Terminal() && now != want {
			t.Fatalf("job ended as %s, want %s: %+v", now, want, s.job(t, id).Reason)
		}
		return now == want
	})
}

// finish lets a job end by itself that runs trap-term, which never does so before
// the test is ready.
func (s *stack) finish(t testing.TB, id berth.JobID) {
	t.Helper()
	until(t, "job "+string(id)+" waits for its end", func() bool {
		ready := false
		err := s.api.Logs(t.Context(), id, apiclient.LogsQuery{}, func(l wire.LogLine) error {
			ready = ready || l.Text == "ready"
			return nil
		})
		return err == nil && ready
	})
	job := s.job(t, id)
	engine := s.engines[job.Attempts[job.Attempt-1].Machines[0]]
	if err := engine.Signal(t.Context(), berth.ContainerName(id, 0, job.Attempt), "SIGTERM"); err != nil {
		t.Fatal(err)
	}
}

// containers counts the job's containers that run, on all machines.
func (s *stack) containers(t testing.TB, id berth.JobID) int {
	t.Helper()
	n := 0
	for _, engine := range s.engines {
		found, err := engine.List(t.Context(), map[string]string{berth.LabelJob: string(id)})
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range found {
			if c.State == node.ContainerRunning {
				n++
			}
		}
	}
	return n
}

// patience bounds every wait. It is longer than Temporal takes to miss a waiter's
// heartbeats, and than a container engine has been seen to stand still on a
// machine without free I/O: 5 minutes.
const patience = 12 * time.Minute

func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	if !poll.Until(patience, 100*time.Millisecond, ok) {
		t.Fatalf("never: %s", what)
	}
}

// testLog keeps the log and shows it if the test fails.
func testLog(t testing.TB) (*slog.Logger, *lockedBuffer) {
	b := &lockedBuffer{}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log:\n%s", b.text())
		}
	})
	return slog.New(slog.NewTextHandler(b, &slog.HandlerOptions{Level: slog.LevelInfo})), b
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

var _ io.Writer = (*lockedBuffer)(nil)

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) text() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
