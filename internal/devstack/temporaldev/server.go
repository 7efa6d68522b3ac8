package temporaldev

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	uiserver "github.com/temporalio/ui-server/v2/server"
	uiconfig "github.com/temporalio/ui-server/v2/server/config"
	uioptions "github.com/temporalio/ui-server/v2/server/server_options"
	"go.temporal.io/sdk/client"
	sdklog "go.temporal.io/sdk/log"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/server/common/authorization"
	"go.temporal.io/server/common/config"
	"go.temporal.io/server/temporal"

	"berth/internal/lib/buildinfo"
)

// startLimit bounds a start, not counting the wait for another server's end. A first start takes a few
// seconds, most of it the schema, and minutes on a crowded machine.
const startLimit = 10 * time.Minute

// mismatch is in the error of a start whose write of the cluster's metadata was applied, but answered too late: the
// server writes again, with the version that it had read. A further start reads the version again.
const (
	mismatch   = "SaveClusterMetadata encountered version mismatch"
	assemblies = 5 // starts in all
)

// Server is a running Temporal server, with its UI unless that was left out.
type Server struct {
	bind         string // IP address of the frontend; "": 127.0.0.1
	frontendPort int
	tls          *identity // nil: plaintext
	metrics      string    // address of the metrics; "": none
	guard        *guard    // nil: the server is not exclusive
	uiPort       int       // 0: no UI
	log          logger
	server       temporal.Server
	ui           *uiserver.Server
	uiDone       chan struct{}
	stop         sync.Once
	stopErr      error
}

// Start sets up the databases, starts the server and returns when a workflow
// with Berth's search attributes can be started. The server runs until Stop.
func Start(ctx context.Context, opts Options) (*Server, error) {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	s, err := start(ctx, opts)
	if err != nil {
		return nil, fmt.Errorf("temporal server: %w", err)
	}
	return s, nil
}

func start(ctx context.Context, opts Options) (*Server, error) {
	st, err := parseStore(opts.DatabaseURL, opts.Prefix)
	if err != nil {
		return nil, err
	}
	s := &Server{log: newLogger(opts.Logger), metrics: opts.MetricsAddress}
	if err := s.listenAt(opts); err != nil {
		return nil, err
	}
	if opts.Exclusive {
		workflows, _ := st.databases()
		if err := createDatabase(ctx, st, workflows); err != nil {
			return nil, err
		}
		if s.guard, err = newGuard(ctx, st, opts.LockGrace, opts.Logger); err != nil {
			return nil, err
		}
	}
	began := time.Now()
	limited, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	if err := s.run(limited, st, opts); err != nil {
		s.guard.release()
		return nil, err
	}
	opts.Logger.Info("temporal started", "address", s.Address(), "ui", s.UIURL(),
		"took", time.Since(began).Round(time.Millisecond))
	return s, nil
}

// listenAt determines the addresses and the identity of the server.
func (s *Server) listenAt(opts Options) (err error) {
	if opts.FrontendHost != "" && net.ParseIP(opts.FrontendHost) == nil {
		return fmt.Errorf("host %q: write an IP address of this host, or 0.0.0.0 for all of them", opts.FrontendHost)
	}
	s.bind = opts.FrontendHost
	if s.frontendPort, err = claimOn(s.host(), "temporal", opts.FrontendPort); err != nil {
		return err
	}
	if !opts.NoUI {
		if s.uiPort, err = claim("temporal UI", opts.UIPort); err != nil {
			return err
		}
	}
	if opts.TLS != nil {
		s.tls, err = opts.TLS.read(time.Now())
	}
	return err
}

// run sets up the databases and starts the server and the UI.
func (s *Server) run(ctx context.Context, st store, opts Options) error {
	if err := setUpSchemas(ctx, st, s.log); err != nil {
		return err
	}
	err := s.startServer(st)
	// A server that is not stopped keeps the address of its metrics, on which the next one would end the process.
	again := func(err error) bool { return err != nil && strings.Contains(err.Error(), mismatch) && s.metrics == "" }
	for n := 1; n < assemblies && again(err); n++ {
		opts.Logger.Warn("temporal is started again", "err", err)
		err = s.startServer(st)
	}
	if err != nil {
		return err
	}
	if err := s.prepare(ctx, st, opts.Logger); err != nil {
		s.log.gate.stopping.Store(true)
		_ = s.server.Stop() // the error that matters is the one returned
		return err
	}
	if !opts.NoUI {
		s.startUI()
	}
	return nil
}

// startServer starts the four services on ports of their own.
func (s *Server) startServer(st store) error {
	ports := [len(services)]int{s.frontendPort}
	for i := 1; i < len(ports); i++ {
		port, err := claim(string(services[i]), 0)
		if err != nil {
			return err
		}
		ports[i] = port
	}
	cfg := s.serverConfig(st, ports)
	authorizer, err := authorization.GetAuthorizerFromConfig(&cfg.Global.Authorization)
	if err != nil {
		return fmt.Errorf("authorizer: %w", err)
	}
	claims, err := authorization.GetClaimMapperFromConfig(&cfg.Global.Authorization, s.log)
	if err != nil {
		return fmt.Errorf("claim mapper: %w", err)
	}
	worker.SetBinaryChecksum(buildinfo.Version()) // the server's own workers would hash this program's file
	s.server, err = temporal.NewServer(
		temporal.ForServices(temporal.DefaultServices),
		temporal.WithConfig(cfg),
		temporal.WithStaticHosts(s.staticHosts(ports)),
		temporal.WithDynamicConfigClient(dynamicConfig()),
		temporal.WithAuthorizer(authorizer),
		temporal.WithClaimMapper(func(*config.Config) authorization.ClaimMapper { return claims }),
		temporal.WithLogger(s.log),
	)
	if err != nil {
		return fmt.Errorf("assemble: %w", err)
	}
	if err := s.server.Start(); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	return nil
}

// prepare waits for the frontend and makes the namespace.
func (s *Server) prepare(ctx context.Context, st store, log *slog.Logger) error {
	options := client.Options{HostPort: s.Address(), Namespace: Namespace, Logger: sdklog.NewStructuredLogger(log)}
	if s.tls != nil {
		options.ConnectionOptions.TLS = s.tls.client()
	}
	c, err := client.NewLazyClient(options)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := prepareNamespace(ctx, c); err != nil {
		return err
	}
	if err := fitIndexes(ctx, c, st); err != nil { // it only costs more
		log.Warn("cannot change the indexes of search attributes", "err", err)
	}
	return nil
}

// startUI starts the web UI, which Stop ends.
func (s *Server) startUI() {
	var files uiconfig.TLS
	if s.tls != nil {
		files = s.tls.ui()
	}
	s.ui = uiserver.NewServer(uioptions.WithConfigProvider(&uiconfig.Config{
		TemporalGRPCAddress: s.Address(),
		TLS:                 files,
		Host:                "127.0.0.1",
		Port:                s.uiPort,
		EnableUI:            true,
		DefaultNamespace:    Namespace,
		DisableNewsFetch:    true, // no calls to the outside
		HideLogs:            true,
		// The page comes over plain http on loopback, where a browser would drop
		// a secure cookie and with it every button.
		CORS: uiconfig.CORS{CookieInsecure: true},
	}))
	s.uiDone = make(chan struct{})
	go func() {
		defer close(s.uiDone)
		_ = s.ui.Start() // nil, or the process has ended: it treats a taken port as fatal
	}()
}

// Address is where clients and workers of this host connect.
func (s *Server) Address() string { return net.JoinHostPort(s.host(), strconv.Itoa(s.frontendPort)) }

// host returns an address of the frontend that this host can reach.
func (s *Server) host() string {
	switch ip := net.ParseIP(s.bind); {
	case ip == nil || ip.Equal(net.IPv4zero):
		return "127.0.0.1"
	case ip.IsUnspecified():
		return "::1"
	default:
		return s.bind
	}
}

// Lost is closed when the server has been without its lock for Options.LockGrace, because another exclusive server has
// it or the database does not answer: then this one must stop. It is nil, and so never closed, if the
// server is not exclusive.
func (s *Server) Lost() <-chan struct{} {
	if s.guard == nil {
		return nil
	}
	return s.guard.lost
}

// UIURL returns the web UI's address, "" for a server without the UI.
func (s *Server) UIURL() string {
	if s.uiPort == 0 {
		return ""
	}
	return "http://" + address(s.uiPort)
}

// Stop ends the UI and the server, in about a second. Stop workers and clients first: their calls
// to a stopping server would end in warnings. A second Stop does nothing and returns the same
// error.
func (s *Server) Stop() error {
	s.stop.Do(func() {
		s.log.gate.stopping.Store(true)
		if s.ui != nil {
			s.ui.Stop()
			<-s.uiDone
		}
		if err := s.server.Stop(); err != nil {
			s.stopErr = fmt.Errorf("stop temporal server: %w", err)
		}
		s.guard.release()
	})
	return s.stopErr
}
