package bench_test

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.temporal.io/sdk/client"

	"berth"
	"berth/activities/node"
	apiclient "berth/api/client"
	"berth/db"
	"berth/internal/control/controlplane"
	"berth/internal/devstack/postgres"
	"berth/internal/devstack/temporaldev"
	"berth/internal/machine/agent"
	"berth/spec"
	"berth/wire"
	"berth/workers"
)

// stack is a running Berth on a durable PostgreSQL. Everything but PostgreSQL
// and the containers is this process.
type stack struct {
	b        *testing.B
	dir      string
	postgres *postgres.Cluster
	temporal client.Client
	db       *db.DB
	api      *apiclient.Client
	url      string
	log      *slog.Logger
}

func start(b *testing.B) *stack {
	b.Helper()
	s := &stack{b: b, log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))}
	s.startPostgres()
	server, err := temporaldev.Start(b.Context(), temporaldev.Options{DatabaseURL: s.postgres.URL("berth"), NoUI: true})
	s.must(err)
	b.Cleanup(func() { _ = server.Stop() })
	s.temporal, err = workers.Dial(workers.ClientOptions{Address: server.Address(), Logger: s.log})
	s.must(err)
	b.Cleanup(s.temporal.Close)

	cfg := controlplane.Default()
	cfg.Listen, cfg.DatabaseURL, cfg.TemporalAddress = "127.0.0.1:0", s.postgres.URL("berth"), server.Address()
	cfg.BlobURL = "file://" + filepath.Join(s.dir, "blobs")
	cfg.RatePerSecond, cfg.Burst, cfg.SubmitRate = 100_000, 100_000, 0
	token := ""
	plane, err := controlplane.New(cfg, controlplane.Options{Logger: s.log, Version: "bench", FirstToken: func(t string) { token = t }})
	s.must(err)
	s.run("control plane", plane.Run)
	select {
	case <-plane.Ready():
	case <-time.After(time.Minute):
		b.Fatal("control plane is not ready")
	}
	s.url = plane.URL()
	s.api = apiclient.New(s.url, token)
	b.Cleanup(s.api.Close)
	s.db, err = db.Open(b.Context(), s.postgres.URL("berth"), db.Options{MaxConns: 2})
	s.must(err)
	b.Cleanup(s.db.Close)
	return s
}

// startPostgres starts a PostgreSQL with its default durability, and makes sure
// of it: the figures are worth nothing without.
func (s *stack) startPostgres() {
	var err error
	s.dir, err = os.MkdirTemp("", "berth-bench-")
	s.must(err)
	s.must(os.Chmod(s.dir, 0o755)) // the server's user must get through
	s.b.Cleanup(func() {
		if err := os.RemoveAll(s.dir); err != nil {
			s.b.Error(err)
		}
	})
	s.must(s.launchPostgres())
	s.b.Cleanup(func() { _ = s.postgres.Stop(context.Background()) })
	if *statements > 0 {
		s.countStatements()
	}
	s.must(s.postgres.CreateDatabase(s.b.Context(), "berth"))
	s.must(db.Migrate(s.b.Context(), s.postgres.URL("berth")))
	d, err := db.Open(s.b.Context(), s.postgres.URL("berth"), db.Options{MaxConns: 1})
	s.must(err)
	defer d.Close()
	var fsync, commit, pages string
	s.must(d.Pool().QueryRow(s.b.Context(), `
		SELECT current_setting('fsync'), current_setting('synchronous_commit'), current_setting('full_page_writes')`).Scan(&fsync, &commit, &pages))
	if fsync != "on" || commit != "on" || pages != "on" {
		s.b.Fatalf("fsync %s, synchronous_commit %s, full_page_writes %s: not durable", fsync, commit, pages)
	}
}

func (s *stack) launchPostgres() (err error) {
	s.postgres, err = postgres.Start(s.b.Context(), postgres.Options{Dir: filepath.Join(s.dir, "postgres"), BinDir: os.Getenv("PG_BINDIR")})
	return err
}

// run runs f for the benchmark's time.
func (s *stack) run(what string, f func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil && ctx.Err() == nil {
			s.b.Errorf("%s: %v", what, err)
		}
	}
	s.b.Cleanup(stop)
	return stop
}

// join runs an agent whose jobs ask for its name as a label. Capacity fields
// above 0 override the engine's.
func (s *stack) join(m berth.MachineID, engine node.Runtime, capacity berth.Capacity) {
	token, err := s.api.CreateJoinToken(s.b.Context(), spec.NewJoinToken{})
	s.must(err)
	cfg := agent.Config{
		Server: s.url, JoinToken: token.Secret, StateDir: filepath.Join(s.dir, string(m)), Machine: m, HostBoot: "boot-of-" + string(m),
		Labels: map[string]string{"engine": string(m)}, Capacity: capacity,
		Runtime: engine, GPUs: noGPUs{}, Logger: s.log,
	}
	s.run("agent "+string(m), func(ctx context.Context) error { return agent.Run(ctx, cfg) })
	s.until("machine is ready", func() bool {
		found, err := s.api.Machine(s.b.Context(), m)
		return err == nil && found.State == berth.MachineReady
	})
}

type noGPUs struct{}

func (noGPUs) Devices(context.Context) ([]berth.GPU, error) { return nil, nil }
func (noGPUs) Declared() bool                               { return true }
func (noGPUs) Close() error                                 { return nil }

// spec is a job of a tenth of a core for the machine of that name.
func jobSpec(m berth.MachineID, image string, command ...string) spec.Job {
	cpus, memory := spec.MilliCPU(100), spec.MiB(64)
	return spec.Job{
		Name: "bench", Image: image, Command: command,
		Resources: spec.Resources{CPUs: &cpus, Memory: &memory},
		Placement: spec.Placement{Labels: map[string]string{"engine": string(m)}},
	}
}

func (s *stack) submit(j spec.Job) berth.JobID {
	s.b.Helper()
	job, _, err := s.api.Submit(s.b.Context(), j, "")
	s.must(err)
	return job.ID
}

// ends waits for a job's success and for its workflow.
func (s *stack) ends(id berth.JobID) wire.Job {
	s.b.Helper()
	job, err := s.api.Wait(s.b.Context(), id)
	s.must(err)
	if job.Status != berth.Succeeded {
		s.b.Fatalf("job ended as %s: %+v", job.Status, job.Reason)
	}
	s.must(s.temporal.GetWorkflow(s.b.Context(), berth.JobWorkflowID(id), "").Get(s.b.Context(), nil))
	return job
}

// idle waits until no job is live. It asks the database: many calls of the API
// while jobs run would be charged to them.
func (s *stack) idle() {
	s.b.Helper()
	defer func() {
		if s.b.Failed() {
			s.b.Log(s.stuck())
		}
	}()
	s.until("every job has ended", func() bool {
		var live bool
		s.must(s.db.Pool().QueryRow(s.b.Context(), `
			SELECT EXISTS (SELECT 1 FROM jobs WHERE state NOT IN ('succeeded', 'failed', 'canceled'))`).Scan(&live))
		return !live
	})
}

// stuck lists the live jobs by state.
func (s *stack) stuck() string {
	var rows []string
	err := s.db.Pool().QueryRow(context.Background(), `
		SELECT array_agg(x::text)
		FROM (
			SELECT j.id, j.state, j.attempt, now() - j.state_at, a.id, a.machine_id, a.state, a.phase, a.claimed_at, a.exited_at, a.sealed_at, a.orders
			FROM jobs j
			LEFT JOIN allocations a ON a.job = j.id AND a.attempt = j.attempt
			WHERE j.state NOT IN ('succeeded', 'failed', 'canceled')
			LIMIT 10
		) x`).Scan(&rows)
	if err != nil {
		return err.Error()
	}
	return strings.Join(rows, "\n")
}

func (s *stack) until(what string, ok func() bool) {
	s.b.Helper()
	limit := time.After(2 * time.Minute)
	tick := time.NewTicker(50 * time.Millisecond) // looking costs, too
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-limit:
			s.b.Fatalf("waited in vain: %s", what)
		}
	}
}

func (s *stack) must(err error) {
	s.b.Helper()
	if err != nil {
		s.b.Fatal(err)
	}
}
