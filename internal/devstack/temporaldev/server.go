package temporaldev

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	uiserver "github.com/temporalio/ui-server/v2/server"
	uiconfig "github.com/temporalio/ui-server/v2/server/config"
	uioptions "github.com/temporalio/ui-server/v2/server/server_options"
	"go.temporal.io/sdk/client"
	sdklog "go.temporal.io/sdk/log"
	"go.temporal.io/server/common/authorization"
	"go.temporal.io/server/common/config"
	"go.temporal.io/server/temporal"
)

// startLimit bounds a start under a context without a deadline. A first start takes a few
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
	frontendPort int
	uiPort       int // 0: no UI
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
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
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
	s := &Server{log: newLogger(opts.Logger)}
	if s.frontendPort, err = claim("temporal", opts.FrontendPort); err != nil {
		return nil, err
	}
	if !opts.NoUI {
		if s.uiPort, err = claim("temporal UI", opts.UIPort); err != nil {
			return nil, err
		}
	}
	began := time.Now()
	if err := setUpSchemas(ctx, st, s.log); err != nil {
		return nil, err
	}
	err = s.startServer(st)
	for n := 1; n < assemblies && err != nil && strings.Contains(err.Error(), mismatch); n++ {
		opts.Logger.Warn("temporal is started again", "err", err)
		err = s.startServer(st)
	}
	if err != nil {
		return nil, err
	}
	if err := s.prepare(ctx, st, opts.Logger); err != nil {
		s.log.gate.stopping.Store(true)
		_ = s.server.Stop() // the error that matters is the one returned
		return nil, err
	}
	if !opts.NoUI {
		s.startUI()
	}
	opts.Logger.Info("temporal started", "address", s.Address(), "ui", s.UIURL(),
		"took", time.Since(began).Round(time.Millisecond))
	return s, nil
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
	cfg := serverConfig(st, ports)
	authorizer, err := authorization.GetAuthorizerFromConfig(&cfg.Global.Authorization)
	if err != nil {
		return fmt.Errorf("authorizer: %w", err)
	}
	claims, err := authorization.GetClaimMapperFromConfig(&cfg.Global.Authorization, s.log)
	if err != nil {
		return fmt.Errorf("claim mapper: %w", err)
	}
	s.server, err = temporal.NewServer(
		temporal.ForServices(temporal.DefaultServices),
		temporal.WithConfig(cfg),
		temporal.WithStaticHosts(staticHosts(ports)),
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
	c, err := client.NewLazyClient(client.Options{
		HostPort:  s.Address(),
		Namespace: Namespace,
		Logger:    sdklog.NewStructuredLogger(log),
	})
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
	s.ui = uiserver.NewServer(uioptions.WithConfigProvider(&uiconfig.Config{
		TemporalGRPCAddress: s.Address(),
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

// Address is where clients and workers connect.
func (s *Server) Address() string { return address(s.frontendPort) }

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
	})
	return s.stopErr
}
