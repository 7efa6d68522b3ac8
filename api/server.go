package api

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"
	"github.com/prometheus/client_golang/prometheus"

	"berth"
	"berth/db"
	"berth/internal/control/admission"
	"berth/internal/control/explain"
	"berth/internal/lib/archive"
	"berth/internal/lib/overload"
	"berth/internal/lib/sealer"
	"berth/internal/lib/tracing"
	"berth/placement"
)

// JobControl cancels jobs. *db.Jobs implements it; another implementation may
// observe the cancels.
type JobControl interface {
	RequestCancel(ctx context.Context, tenant berth.TenantID, id berth.JobID, actor string, reason *berth.Reason) (berth.State, error)
}

// Poker notifies the workflows of jobs to read their rows.
type Poker interface{ Poke(ids ...berth.JobID) }

// A Check is one dependency that readiness depends on.
type Check struct {
	Name string
	Run  func(ctx context.Context) error

	// Optional marks a dependency that the API can miss for a while: readiness
	// shows its failure, but stays positive.
	Optional bool
}

// Deps are the dependencies of a Server. DB, Control and Logger are required.
type Deps struct {
	DB      *db.DB
	Control JobControl
	Poker   Poker     // nil: workflows learn of changes by themselves, later
	Logs    LogReader // nil: no logs are stored here
	Logger  *slog.Logger
	Version string
	Checks  []Check // in addition to the database, which is always checked

	// Policy is the leader's policy, so that explanations match decisions.
	Policy placement.Policy

	// Rate is how many calls a second each token may make on average, Burst
	// how many at once. 0: 1000 and 2000.
	Rate  float64
	Burst int

	// SubmitRate is how many submits a second each tenant may make over all replicas
	// whose quota does not say (submit_rps). 0: as many as it wants.
	SubmitRate float64

	// TrustedProxies are the networks of proxies whose X-Forwarded-For is believed
	// where callers are counted by address; nil: the header is never believed.
	TrustedProxies []netip.Prefix

	Vault *sealer.Keys // nil: no secrets are kept
	// PlainWebhooks: the operator allows networks into which webhooks may be
	// called without TLS.
	PlainWebhooks bool
	Limits        archive.Limits    // of uploads; zero: archive.Default
	Transfers     TransferLimits    // of followed logs, downloads and uploads
	Volumes       admission.Volumes // folders of machines that jobs may read; nil: none

	Gate     *overload.Gate    // nil: explanations do not mention the gate
	Temporal *overload.Limiter // nil: explanations do not mention the limit

	Metrics *prometheus.Registry // nil: one of its own
	Traces  *tracing.Tracing     // nil: none
	Agent   AgentDeps
}

// Server is the API of one process. Its handler may be used concurrently.
type Server struct {
	Deps
	echo      *echo.Echo
	huma      huma.API
	auth      *authenticator
	limits    *limits
	metrics   *metrics
	joins     *joins
	submits   *submits
	admission *admission.Controller
	explainer *explain.Explainer
	logRoom   *logRoom
	readiness readiness
	close     sync.Once
	closing   chan struct{}
	calls     atomic.Int64 // of users, that wait for a slot or have one
	slots     callSlots    // of users' calls
	unread    *unread      // answers to users
	refusals  *refusals    // of users' calls
	arriving  *slots       // of bodies of users' calls
	addresses addresses
	transfers *transfers
	watches   *watches
	followed  followed
}

// New returns a server with all routes mounted. It starts nothing.
func New(d Deps) (*Server, error) {
	if d.DB == nil || d.Control == nil || d.Logger == nil {
		return nil, errors.New("api: DB, Control and Logger are required")
	}
	if d.Rate == 0 {
		d.Rate, d.Burst = 1000, 2000
	}
	if d.Metrics == nil {
		d.Metrics = prometheus.NewRegistry()
	}
	if d.Limits == (archive.Limits{}) {
		d.Limits = archive.Default
	}
	s := &Server{Deps: d, echo: echo.New(), closing: make(chan struct{})}
	s.slots, s.unread = newCallSlots(d.DB.Shares(), runtime.GOMAXPROCS(0)), newUnread()
	s.refusals = newRefusals()
	s.arriving = newSlots(bodiesAbreast, bodiesOfTenant, waitsOfTenant)
	s.addresses = newAddresses(d.TrustedProxies)
	s.admission, s.explainer = admission.New(d.DB, d.Volumes), explain.New(d.DB, d.Policy)
	s.auth = newAuthenticator(d.DB)
	s.transfers, s.watches = newTransfers(d.Transfers.orDefaults(), s.holds), newWatches(d.DB)
	s.joins = newJoins(d.DB)
	s.submits = newSubmits(d.DB)
	s.logRoom = newLogRoom()
	s.limits = newLimits(d.Metrics, d.Rate, d.Burst)
	s.metrics = newMetrics(d.Metrics, d.DB)
	s.echo.HideBanner, s.echo.HidePort = true, true
	s.echo.HTTPErrorHandler = s.renderError
	s.echo.Use(
		s.answersInTurn,
		s.metrics.middleware,
		s.traceUsers,
		securityHeaders,
		middleware.RecoverWithConfig(middleware.RecoverConfig{DisablePrintStack: true, LogErrorFunc: s.logPanic}),
		deadlines,
		s.authenticate,
		s.bodies,
		s.shed,
		s.traceMachines,
	)
	s.huma = newHuma(s.echo, d.Version)
	s.registerJobs()
	s.registerStreams()
	s.registerJobMetrics()
	s.registerMachines()
	s.registerTokens()
	s.registerTenants()
	s.registerAdmission()
	s.registerUploads()
	s.registerSecrets()
	s.registerSchedules()
	s.registerOutputs()
	s.registerPages()
	s.registerAgent(s.echo.Group("/agent/v1"))
	return s, nil
}

// Handler serves every route.
func (s *Server) Handler() http.Handler { return s.echo }

// HTTP returns an http.Server with the timeouts this API wants: long enough for
// streams and long-polls, which set their own write deadlines.
func (s *Server) HTTP() *http.Server {
	h := &http.Server{
		Handler:           s.echo,
		ReadHeaderTimeout: 10 * time.Second,
		ConnContext:       s.connContext,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(s.Logger.Handler(), slog.LevelWarn),
	}
	h.RegisterOnShutdown(s.Close)
	return h
}

// Close ends the streams, which a shutdown would otherwise wait for. It is
// idempotent.
func (s *Server) Close() { s.close.Do(func() { close(s.closing) }) }

func (s *Server) logPanic(c echo.Context, err error, stack []byte) error {
	s.Logger.Error("request handler panicked", "method", c.Request().Method, "path", c.Path(), "err", err, "stack", string(stack))
	return err
}

func securityHeaders(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		h := c.Response().Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		return next(c)
	}
}
