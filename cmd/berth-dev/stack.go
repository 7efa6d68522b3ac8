package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"berth"
	"berth/db"
	"berth/internal/control/controlplane"
	"berth/internal/devstack/postgres"
	"berth/internal/devstack/temporaldev"
	"berth/internal/lib/buildinfo"
	"berth/internal/lib/sealer"
	"berth/internal/lib/tracing"
	"berth/internal/machine/fetch"
	"berth/spec"
	"berth/wire"
)

// database is the name of Berth's database in the private cluster.
const database = "berth"

// stack is the running parts of Berth, in the order in which they were started. A part that
// --only leaves out is nil.
type stack struct {
	cfg      *config
	layout   layout
	log      *slog.Logger
	postgres *postgres.Cluster
	temporal *temporaldev.Server
	db       *db.DB // for the admin token, join tokens and the list of machines
	traces   *tracing.Tracing
	control  *controlplane.ControlPlane
	machines []*machine
	ports    *ports
	known    addresses // published once everything runs
}

// run starts all parts, prints their addresses and stops the parts in reverse order when
// ctx ends. Containers and private engines are left running.
func run(ctx context.Context, cfg *config, log *slog.Logger) (err error) {
	l := layout{cfg.Dir}
	lock, err := l.open()
	if err != nil {
		return err
	}
	defer lock.Close()
	// Addresses of a killed stack would mislead scripts that wait for the file.
	_ = os.Remove(l.addresses())
	s := &stack{cfg: cfg, layout: l, log: log, ports: openPorts(l, os.Stdout), known: addresses{PID: os.Getpid()}}
	// Also after a failed start, which may have started some parts.
	defer func() { err = errors.Join(err, s.stopServers()) }()
	if err := s.startServers(ctx); err != nil {
		return err
	}
	return s.serve(ctx)
}

// startServers starts PostgreSQL and Temporal and prepares the control plane, as --only
// says. The first start creates the database, the schema, the admin token and the sealing
// key, and later ones find them.
func (s *stack) startServers(ctx context.Context) error {
	if s.cfg.runs("postgres") {
		if err := s.startDatabase(ctx); err != nil {
			return err
		}
	}
	if s.cfg.runs("temporal") {
		if s.postgres == nil {
			return errors.New("--only temporal needs postgres too: it keeps its state there")
		}
		if err := s.startTemporal(ctx); err != nil {
			return err
		}
	}
	if !s.cfg.runs("berthd") {
		return nil
	}
	if s.postgres == nil || s.temporal == nil {
		return errors.New("--only berthd needs postgres and temporal too")
	}
	return s.prepareControl(ctx)
}

// startDatabase starts PostgreSQL and creates Berth's database.
func (s *stack) startDatabase(ctx context.Context) (err error) {
	fmt.Println("starting PostgreSQL")
	if s.postgres, err = s.startPostgres(ctx); err != nil {
		return err
	}
	if err := s.ports.keep(&s.ports.Postgres, s.cfg.PostgresPort, s.postgres.Port()); err != nil {
		return err
	}
	if err := s.postgres.CreateDatabase(ctx, database); err != nil {
		return err
	}
	s.known.DatabaseURL = s.postgres.URL(database)
	return nil
}

// startTemporal starts the embedded Temporal server and its web UI.
func (s *stack) startTemporal(ctx context.Context) (err error) {
	fmt.Println("starting Temporal")
	s.temporal, err = temporaldev.Start(ctx, temporaldev.Options{
		DatabaseURL:  s.postgres.URL("postgres"),
		FrontendPort: s.ports.choose("Temporal", s.cfg.TemporalPort, s.ports.Temporal),
		UIPort:       max(s.ports.choose("Temporal's UI", s.cfg.UIPort, s.ports.UI), 0),
		NoUI:         s.cfg.UIPort < 0, Logger: s.log,
	})
	if err != nil {
		return err
	}
	s.known.Temporal, s.known.TemporalUI = s.temporal.Address(), s.temporal.UIURL()
	if err := s.ports.keep(&s.ports.Temporal, s.cfg.TemporalPort, portOf(s.known.Temporal)); err != nil {
		return err
	}
	return s.ports.keep(&s.ports.UI, s.cfg.UIPort, portOf(strings.TrimPrefix(s.known.TemporalUI, "http://")))
}

// prepareControl migrates the database, stores the admin token and creates the
// control plane, which serve runs.
func (s *stack) prepareControl(ctx context.Context) error {
	fmt.Println("starting the control plane")
	token, err := s.adminToken()
	if err != nil {
		return err
	}
	// Objects lie in the folder too, so a copy of the folder is a copy of all state.
	s.known.BlobURL = "file://" + s.layout.blobs()
	s.known.TokenFile = s.layout.token()
	if err := db.Migrate(ctx, s.known.DatabaseURL); err != nil {
		return err
	}
	if s.db, err = db.Open(ctx, s.known.DatabaseURL, db.Options{MaxConns: 4, Logger: s.log}); err != nil {
		return err
	}
	valid, err := s.db.Tokens.Ensure(ctx, token,
		spec.NewToken{Name: "admin", Tenant: "default", Role: spec.RoleAdmin}, "start:berth-dev")
	if err != nil {
		return err
	}
	if !valid {
		s.log.Warn("the admin token of the token file is revoked", "file", s.layout.token())
	}
	c, err := s.controlConfig()
	if err != nil {
		return err
	}
	if err := sealer.Make(c.SecretKeyFile); err != nil {
		return err
	}
	// The agents are processes of their own, and read the same variables.
	o, err := tracing.FromEnvironment(os.LookupEnv, "")
	if err != nil {
		return err
	}
	o.Service, o.Version, o.Instance, o.Logger = "berthd", buildinfo.Version(), "berth-dev", s.log
	if s.traces, err = tracing.Open(ctx, o); err != nil {
		return err
	}
	s.control, err = controlplane.New(c, controlplane.Options{Version: buildinfo.Version(), Logger: s.log,
		Traces: s.traces})
	return err
}

// controlConfig returns berthd's default configuration with the changes for this stack.
func (s *stack) controlConfig() (controlplane.Config, error) {
	c := controlplane.Default()
	host, _, _ := net.SplitHostPort(s.cfg.Listen)
	c.Listen = net.JoinHostPort(host, strconv.Itoa(s.ports.choose("the API", portOf(s.cfg.Listen), s.ports.API)))
	c.DatabaseURL, c.BlobURL, c.TemporalAddress = s.known.DatabaseURL, s.known.BlobURL, s.known.Temporal
	c.SecretKeyFile, c.CloudFile = s.layout.secretKey(), s.cfg.Cloud
	c.ContainerUser = s.cfg.User
	volumes, err := fetch.ParseVolumes(s.cfg.FileInputs)
	if err != nil {
		return c, err
	}
	for name := range volumes {
		c.FileInputs = append(c.FileInputs, name.String())
	}
	c.WebhookAllow = "127.0.0.0/8,::1" // a developer's receivers are on the same machine
	// Agents of this stack start with it and register within seconds, so a silent machine
	// need not get a minute after each start.
	c.Grace = 10 * time.Second
	if portOf(c.Listen) != 0 { // else the kernel chooses the port, and links would be wrong
		c.PublicURL = "http://" + c.Listen
	}
	return c, nil
}

// startPostgres starts the cluster on its previous port. Whether another process has taken
// that port shows only after an earlier server on the same data has ended, so one failed
// start may be repeated on a free port.
func (s *stack) startPostgres(ctx context.Context) (*postgres.Cluster, error) {
	o := postgres.Options{
		Dir: s.layout.postgres(), BinDir: os.Getenv("PG_BINDIR"),
		Port: s.ports.choosePostgres(s.layout, s.cfg.PostgresPort), MaxConnections: 400, Logger: s.log,
	}
	c, err := postgres.Start(ctx, o)
	if err == nil || o.Port == s.cfg.PostgresPort || ctx.Err() != nil {
		return c, err
	}
	if o.Port = s.ports.choose("PostgreSQL", 0, o.Port); o.Port != 0 {
		return nil, err // its port is free, so that was not the reason
	}
	return postgres.Start(ctx, o)
}

// adminToken returns the admin token, which the first start creates next to the data.
func (s *stack) adminToken() (string, error) {
	b, err := os.ReadFile(s.layout.token())
	if err == nil {
		return strings.TrimSpace(string(b)), nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	token := "berth_" + berth.NewSecret()[:12] + "_" + berth.NewSecret()
	return token, os.WriteFile(s.layout.token(), []byte(token+"\n"), 0o600)
}

// serve runs the control plane and the machines until ctx ends or a part fails for good.
func (s *stack) serve(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	if s.postgres != nil {
		g.Go(func() error { return s.keepPostgres(ctx) })
	}
	if s.control != nil {
		g.Go(func() error { return s.control.Run(ctx) })
		g.Go(func() error { return s.serveControlled(ctx) })
	} else {
		g.Go(s.announce)
	}
	// With --only, no other part may run that lasts until ctx ends.
	g.Go(func() error { <-ctx.Done(); return nil })
	err := g.Wait()
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	fmt.Println("stopping")
	return err
}

// keepPostgres restarts the cluster on its port after a crash, as a service manager would.
func (s *stack) keepPostgres(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.postgres.Exited():
		}
		if ctx.Err() != nil {
			return nil
		}
		s.log.Warn("PostgreSQL exited, restarted")
		if err := s.postgres.Restart(ctx); err != nil {
			return err
		}
	}
}

// serveControlled runs the machines as soon as the API listens, and announces the stack.
func (s *stack) serveControlled(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.control.Ready():
	}
	s.known.API = s.control.URL()
	if err := s.ports.keep(&s.ports.API, portOf(s.cfg.Listen),
		portOf(strings.TrimPrefix(s.known.API, "http://"))); err != nil {
		return err
	}
	if !s.cfg.runs("agents") {
		return s.announce()
	}
	return s.serveMachines(ctx)
}

// serveMachines boots all machines and keeps their agents running until ctx ends.
func (s *stack) serveMachines(ctx context.Context) error {
	boots := make([]string, s.cfg.Agents)
	var booting errgroup.Group
	for i := range s.cfg.Agents {
		name := fmt.Sprintf("m%d", i+1)
		m := &machine{
			name: name, number: i, dir: s.layout.machine(name), cfg: s.cfg, log: s.log,
			server: s.known.API, join: s.joinToken,
		}
		s.machines = append(s.machines, m)
		booting.Go(func() (err error) {
			if boots[i], err = m.boot(ctx); err == nil {
				err = m.provide(ctx)
			}
			if err != nil {
				return fmt.Errorf("machine %s: %w", m.name, err)
			}
			return nil
		})
	}
	if len(s.machines) > 0 {
		noun := "machines"
		if len(s.machines) == 1 {
			noun = "machine"
		}
		fmt.Printf("starting %d %s on %s engines\n", len(s.machines), noun, s.cfg.Engines)
	}
	if err := booting.Wait(); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return serveControl(ctx, s.layout, s.machines) })
	for i, m := range s.machines {
		g.Go(func() error { return m.run(ctx, boots[i]) })
	}
	g.Go(func() error {
		s.awaitMachines(ctx)
		return s.announce()
	})
	return g.Wait()
}

// joinLimit bounds the wait for machines before the addresses are printed anyway.
const joinLimit = 20 * time.Second

// awaitMachines waits until every machine has joined, at most joinLimit. A job submitted
// before would be refused: it fits on no machine.
func (s *stack) awaitMachines(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, joinLimit)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		// Machines of earlier starts with more agents are in the table too; only the
		// present ones count.
		joined := 0
		list, err := s.db.Machines.List(ctx, db.MachineFilter{})
		for _, m := range list {
			mine := slices.ContainsFunc(s.machines, func(o *machine) bool { return o.name == string(m.ID) })
			if mine && (m.State == berth.MachineReady || m.State == berth.MachineDraining ||
				m.State == wire.MachineDrained) {
				joined++
			}
		}
		if err == nil && joined == len(s.machines) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// joinToken creates a token with which one agent joins.
func (s *stack) joinToken(ctx context.Context) (string, error) {
	t, err := s.db.JoinTokens.Create(ctx, spec.NewJoinToken{}, "operator:berth-dev")
	if err != nil {
		return "", fmt.Errorf("join token: %w", err)
	}
	return t.Secret, nil
}

// announce prints the addresses of all parts, and publishes stack.json for scripts.
func (s *stack) announce() error {
	k := s.known
	fmt.Println()
	for _, line := range [][2]string{
		{"API", k.API}, {"API description", withPath(k.API, "/docs")}, {"Temporal", k.Temporal},
		{"Temporal UI", k.TemporalUI},
		{"PostgreSQL", k.DatabaseURL}, {"blobs", k.BlobURL}, {"admin token", k.TokenFile},
	} {
		if line[1] != "" {
			fmt.Printf("  %-16s %s\n", line[0], line[1])
		}
	}
	if k.API != "" {
		fmt.Printf("\nUse it with:\n  export BERTH_URL=%s BERTH_TOKEN=$(cat %s)\n", k.API, k.TokenFile)
	}
	fmt.Println("\nCtrl-C stops it; state and containers stay.")
	return s.layout.write(k)
}

// withPath appends a path to an address, unless the part does not run.
func withPath(base, path string) string {
	if base == "" {
		return ""
	}
	return base + path
}

// stopServers stops the parts that startServers started, in reverse. The control plane has
// stopped already, with serve.
func (s *stack) stopServers() error {
	var errs []error
	for _, m := range s.machines {
		errs = append(errs, m.leave())
	}
	s.traces.Close()
	if s.db != nil {
		s.db.Close()
	}
	if s.temporal != nil {
		errs = append(errs, s.temporal.Stop())
	}
	if s.postgres != nil {
		// The context of run has ended by now.
		errs = append(errs, s.postgres.Stop(context.Background()))
	}
	_ = os.Remove(s.layout.addresses())
	_ = os.Remove(filepath.Clean(s.layout.control()))
	return errors.Join(errs...)
}
