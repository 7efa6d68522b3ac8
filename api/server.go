package api

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"runtime"
	"sync"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"
	"github.com/prometheus/client_golang/prometheus"

	"berth"
	"berth/db"
	"berth/internal/control/admission"
	"berth/internal/control/autoscale"
	"berth/internal/control/cloud"
	"berth/internal/control/cloud/agentbin"
	"berth/internal/control/explain"
	"berth/internal/control/notify"
	"berth/internal/lib/archive"
	"berth/internal/lib/background"
	"berth/internal/lib/overload"
	"berth/internal/lib/sealer"
	"berth/internal/lib/tracing"
	"berth/placement"
	"berth/spec"
)

// JobControl cancels jobs. *db.Jobs implements it; another implementation may observe the
// cancels.
type JobControl interface {
	RequestCancel(ctx context.Context, tenant berth.TenantID, id berth.JobID, actor string,
		reason *berth.Reason) (berth.State, error)
}

// Poker notifies the workflows of jobs to read their rows.
type Poker interface{ Poke(ids ...berth.JobID) }

// A Check is one dependency that readiness depends on.
type Check struct {
	Name string
	Run  func(ctx context.Context) error

	// Optional marks a dependency that the API can miss for a while: readiness shows its
	// failure, but stays positive.
	Optional bool

	// Fault is the error whose text the answer shows. For other errors the answer is: does not answer.
	Fault error
}

// Deps are the dependencies of a Server. DB, Control and Logger are required.
type Deps struct {
	DB      *db.DB
	Control JobControl
	Poker   Poker     // nil: workflows find changes by polling, later
	Logs    LogReader // nil: no logs are stored here
	Logger  *slog.Logger
	Version string
	Checks  []Check // in addition to the database, which is always checked

	// Policy is the leader's policy, so that explanations match decisions.
	Policy placement.Policy

	// Rate is the average number of calls a second of each token, and Burst the number of
	// calls at once. 0: 1000 and 2000.
	Rate  float64
	Burst int

	// SubmitRate is the number of submits a second, over all replicas, of each tenant
	// whose quota sets no submit_rps. 0: no limit.
	SubmitRate float64

	// TrustedProxies are the networks of proxies whose X-Forwarded-For is believed where
	// callers are counted by address; nil: the header is never believed.
	TrustedProxies []netip.Prefix

	Vault *sealer.Keys // nil: this server stores no secrets
	// SecretsAs is how containers receive secrets if the job file has no secrets_as. The zero value
	// leaves that to the agents, which give both files and variables.
	SecretsAs string
	// Users is the user of containers if the job file has no user: spec.UserTenant, or spec.UserImage,
	// which the zero value stands for.
	Users string
	// PlainWebhooks: the operator allows networks into which webhooks may be called
	// without TLS.
	PlainWebhooks bool
	Mail          *notify.Mailer       // nil: channels cannot send mail
	Limits        archive.Limits       // of uploads; zero: archive.Default
	Transfers     TransferLimits       // of followed logs, downloads and uploads
	Images        []string             // registries and repositories that images may come from; nil: all
	Signed        []spec.SignatureRule // signatures that images must have; nil: none
	Volumes       admission.Volumes    // folders of machines that jobs may read; nil: none
	Accounts      cloud.Accounts       // providers of machines; zero: none
	Agents        *agentbin.Binaries   // that new machines download; nil: none

	Gate     *overload.Gate    // nil: explanations do not mention the gate
	Temporal *overload.Limiter // nil: explanations do not mention the limit

	Metrics *prometheus.Registry // nil: a new registry
	Traces  *tracing.Tracing     // nil: none
	Agent   AgentDeps

	Sessions SessionDeps // in running containers
}

// orDefaults replaces zero values by the documented defaults.
func (d Deps) orDefaults() Deps {
	if d.Rate == 0 {
		d.Rate, d.Burst = 1000, 2000
	}
	if d.Metrics == nil {
		d.Metrics = prometheus.NewRegistry()
	}
	if d.Limits == (archive.Limits{}) {
		d.Limits = archive.Default
	}
	return d
}

// resource is the group of handlers of one noun of the API.
type resource interface {
	// mount adds the group's routes. It is called once.
	mount(r *router)
}

// Server is the API of one process. Its handler may be used concurrently.
type Server struct {
	router  *router
	auth    *authenticator
	limits  *limits
	tokens  *db.Tokens
	calls   *openCalls
	explain *explain.Explainer
	objects *agentObjectHandlers
	close   sync.Once
	closing chan struct{}
}

// New returns a server with all routes mounted. It starts nothing.
func New(d Deps) (*Server, error) {
	if d.DB == nil || d.Control == nil || d.Logger == nil {
		return nil, errors.New("api: DB, Control and Logger are required")
	}
	d = d.orDefaults()
	owner := background.New()
	s := &Server{
		router: newRouter(d.Version, d.Logger), auth: newAuthenticator(d.DB, owner), closing: make(chan struct{}),
		limits: newLimits(d.Metrics, d.Rate, d.Burst), explain: explain.New(d.DB, d.Policy, d.Metrics),
		tokens: d.DB.Tokens,
	}
	rules := admission.Rules{Volumes: d.Volumes, Images: d.Images, Signed: d.Signed, Users: d.Users}
	refusals := newRefusals()
	gate := &gatekeeper{
		auth: s.auth, limits: s.limits, addresses: newAddresses(d.TrustedProxies),
		admission: admission.New(d.DB, owner, rules), submits: newSubmits(d.DB, owner),
		submitRate: d.SubmitRate, refusals: refusals, closing: s.closing,
	}
	s.calls = &openCalls{
		slots: newCallSlots(d.DB.Shares(), runtime.GOMAXPROCS(0)), unread: newUnread(), refusals: refusals,
		arriving:  newSlots(bodiesAbreast, bodiesOfTenant, waitsOfTenant),
		transfers: newTransfers(d.Transfers.orDefaults(), s.auth.holds), closing: s.closing,
		owner: owner,
	}
	tracer := callTracer{d.Traces}
	// The order matters. A call waits for its client's unread answers before the clock of
	// the metrics starts. Deadlines come before authentication, so that a refused call's
	// body is bounded too. The body is read before the call takes a slot.
	s.router.echo.Use(
		s.calls.answersInTurn,
		newMetrics(d.Metrics, d.DB, d.Version).middleware,
		tracer.traceUsers,
		securityHeaders,
		middleware.RecoverWithConfig(middleware.RecoverConfig{
			DisablePrintStack: true, LogErrorFunc: s.router.logPanic,
		}),
		deadlines,
		gate.authenticate,
		s.calls.bodies,
		s.calls.shed,
		tracer.traceMachines,
	)
	follows := &streams{router: s.router, transfers: s.calls.transfers, closing: s.closing}
	s.objects = newAgentObjectHandlers(d, gate.admission, follows, s.calls.owner)
	for _, r := range append(resources(d, gate, follows, s.explain),
		s.objects,
		newSessionHandlers(jobReader{d.DB.Jobs}, d.DB, follows, d.Sessions, s.calls.owner, d.Logger)) {
		r.mount(s.router)
	}
	return s, nil
}

// resources lists all groups of routes. The groups share gate's controller of admission
// and its look-ups of tokens, so that a change through one group applies to all.
func resources(d Deps, gate *gatekeeper, streams *streams, explainer *explain.Explainer) []resource {
	store, admission := blobStore{d.Agent.Blobs}, gate.admission
	pages := &pageHandlers{
		version: d.Version, metrics: d.Metrics, ping: d.DB.Ping, checks: d.Checks, gate: gate, log: d.Logger,
	}
	d.Metrics.MustRegister(&dependencies{pages}, &waitingReasons{explainer})
	reader := jobReader{d.DB.Jobs}
	quoter := &autoscale.Quoter{DB: d.DB, Accounts: d.Accounts}
	rules := secretRules{vault: d.Vault, plainWebhooks: d.PlainWebhooks, channels: d.DB.Channels}
	control := controlPlane{cluster: d.DB.Cluster, gate: d.Gate, temporal: d.Temporal}
	reasons := &waitReasons{d.DB.Jobs, explainer, control, d.DB.Scaling}
	followed := &followed{jobs: d.DB.Jobs, watches: newWatches(d.DB)}
	w := withFailpoints(writes{
		jobs: d.DB.Jobs, cancels: d.Control, fires: admission, sessions: d.DB.Agents,
	})
	jobs := &jobHandlers{
		jobReader: reader, submitter: w.jobs, canceler: w.cancels, attempts: d.DB.Attempts,
		parents: d.DB.Parents, retries: d.DB.Retries, holds: d.DB.Holds,
		admission: admission,
		rules:     rules, control: control, reasons: reasons, poker: d.Poker, traces: d.Traces,
	}
	secrets := &secretHandlers{
		secrets: d.DB.Secrets, vault: d.Vault, as: d.SecretsAs, admission: admission, rules: rules,
		log: d.Logger,
	}
	return []resource{
		jobs,
		&queueHandlers{d.DB.Jobs, explainer, reasons},
		&planHandlers{reader, d.DB.Queue, d.DB.Machines, admission, explainer, control, d.DB.Scaling, quoter},
		&pipelineHandlers{reader, admission, rules, reasons, jobs},
		&eventHandlers{reader, streams, followed},
		&logHandlers{reader, d.DB.Logs, d.Logs, streams, followed, newUnfinishedLines(d.DB)},
		&metricHandlers{reader, store, d.Logger},
		&machineHandlers{d.DB.Machines, gate.auth, d.Poker, d.Logger},
		&poolHandlers{d.DB.Pools, d.DB.Launches, d.Accounts, explainer, d.Logger},
		&launchHandlers{d.DB.Launches, d.Accounts, d.Vault != nil, d.Logger},
		&burstHandlers{d.DB.Burst, quoter, d.Logger},
		&offerHandlers{d.DB.Offers, quoter, d.Logger},
		&usageHandlers{d.DB.Spend, d.DB.Burst},
		&maintenanceHandlers{d.DB.Maintenance, explainer, d.Logger},
		&tokenHandlers{d.DB.Tokens, d.DB.JoinTokens, gate.auth, d.Logger},
		&selfHandlers{d.DB.Tokens, gate.auth, d.Logger},
		&tenantHandlers{d.DB.Tenants, admission, explainer, d.Logger},
		&admissionHandlers{d.DB.Cluster, explainer, quoter, d.Logger},
		&uploadHandlers{store, d.DB.Uploads, d.DB.Storage, admission, d.Limits, streams, d.Logger},
		secrets,
		&channelHandlers{d.DB.Channels, rules, d.Mail, d.Logger},
		&scheduleHandlers{d.DB.Schedules, admission, w.fires, rules, d.Logger},
		&outputHandlers{reader, store, d.DB.Objects, streams},
		&checkpointHandlers{reader, store, d.DB.Objects, d.DB.Chunks, d.DB.Machines, streams},
		pages,
		newAgentDownloads(d.Agents, gate.addresses, d.Transfers.orDefaults().AgentStall),
		&joinHandlers{newJoins(d.DB), d.DB.JoinTokens, d.DB.Tokens, d.Accounts, newIdentities(d.Metrics), gate.limits,
			gate.addresses, d.Logger},
		&agentHandlers{w.sessions, admission, secrets, d.Poker, d.Logger},
		newAgentHostHandlers(w.sessions, d.Agent.Resolver),
		&agentLogHandlers{store, d.DB.Logs, d.DB.Storage, admission, newLogRoom()},
	}
}

// ProveStore proves that the object store keeps the conditions of signed addresses, if machines are to use it directly.
// A store that ignores conditions thus shows at the start. ProveStore does not wait for the proof; calls of machines
// repeat a proof without a result.
func (s *Server) ProveStore() {
	s.calls.owner.Go(func(ctx context.Context) {
		if h := s.objects; h.signs() && h.signing.holds(ctx, h.store) {
			h.signing.inParts(ctx, h.store)
		}
	})
}

// Handler serves every route.
func (s *Server) Handler() http.Handler { return s.router.echo }

// HTTP returns an http.Server with the timeouts that this API needs: no write timeout,
// since streams and long-polls set their own write deadlines. Shutdown calls Close.
func (s *Server) HTTP() *http.Server {
	h := &http.Server{
		Handler:           s.router.echo,
		ReadHeaderTimeout: 10 * time.Second,
		ConnContext:       s.calls.connContext,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		ErrorLog:          slog.NewLogLogger(s.router.log.Handler(), slog.LevelWarn),
	}
	h.RegisterOnShutdown(s.Close)
	return h
}

// Close ends the streams, which a shutdown would otherwise wait for. It is idempotent.
func (s *Server) Close() { s.close.Do(func() { close(s.closing) }) }

// Wait ends the goroutines that outlive their calls, such as the watches of unread answers and the
// readings of the queue and of the machines, and returns once they have ended. It comes after the shutdown of
// the HTTP server and before the end of the database's connections.
func (s *Server) Wait() {
	s.explain.Close()
	s.calls.owner.Close()
}

// securityHeaders sets the headers of every answer: no content sniffing, no frames, no
// referrer and no cache, since answers hold data of one tenant.
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
