package controlplane

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.temporal.io/sdk/client"

	"berth"
	"berth/activities/control"
	"berth/activities/wait"
	"berth/api"
	"berth/db"
	"berth/internal/control/admission"
	"berth/internal/control/blob"
	"berth/internal/control/dispatch"
	"berth/internal/control/scheduler"
	"berth/internal/control/watermark"
	"berth/internal/control/webhook"
	"berth/internal/lib/connlimit"
	"berth/internal/lib/overload"
	"berth/internal/lib/publicnet"
	"berth/internal/lib/sealer"
	"berth/internal/lib/tracing"
	"berth/spec"
	"berth/wire"
	"berth/workers"
)

// Options are the dependencies of a control plane, in addition to its configuration.
type Options struct {
	Logger  *slog.Logger // nil: discard
	Version string

	// Temporal holds TLS and credentials of the Temporal client; addresses come
	// from the configuration.
	Temporal client.Options

	Traces *tracing.Tracing // nil: none. It is the caller's to close

	// Ages are the reconciler's limits; tests shorten them.
	Ages scheduler.Ages

	// Waiter, if not nil, is put around the activity that waits for a member; tests
	// lose its tasks.
	Waiter func(workers.RunFunc) workers.RunFunc

	// WaiterBeat is wait.Options' Beat; tests shorten it.
	WaiterBeat time.Duration

	// WatermarkEvery is watermark.Keeper's own; tests shorten it.
	WatermarkEvery time.Duration

	// LeaderIdle is db.Options' own; tests lengthen it.
	LeaderIdle time.Duration

	// AdminToken is an admin token that an operator chose, for installations
	// without a person at their first start. It is stored unless it exists.
	AdminToken string

	// FirstToken receives the secret of the first admin token, if this start had
	// to create one. nil: none is created.
	FirstToken func(secret string)
}

// ControlPlane is one process's control plane.
type ControlPlane struct {
	cfg  Config
	opts Options
	log  *slog.Logger

	ready    chan struct{}
	listener net.Listener
}

// New returns a control plane that Run starts. It validates the configuration and does no I/O.
func New(cfg Config, o Options) (*ControlPlane, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &ControlPlane{cfg: cfg, opts: o, log: o.Logger, ready: make(chan struct{})}, nil
}

// Ready is closed when the database is migrated and the API, if that is a role,
// listens.
func (c *ControlPlane) Ready() <-chan struct{} { return c.ready }

// URL returns the API's address after Ready, "" for a process without the API.
func (c *ControlPlane) URL() string {
	if c.listener == nil {
		return ""
	}
	scheme := "http://"
	if c.cfg.TLSCert != "" {
		scheme = "https://"
	}
	return scheme + c.listener.Addr().String()
}

// Run runs the roles until ctx ends, and then returns nil. It waits for the database without a
// limit. The end of one part stops all parts.
func (c *ControlPlane) Run(ctx context.Context) error {
	c.log.Info("control plane starts", "version", c.opts.Version, "config", c.cfg)
	d, err := c.openDatabase(ctx)
	if err != nil {
		return stopped(ctx, err)
	}
	defer d.Close()
	// Before the API listens, so that the first caller can already have a token.
	if err := c.makeFirstToken(ctx, d); err != nil {
		return stopped(ctx, err)
	}
	temporal, err := c.dialTemporal()
	if err != nil {
		return err
	}
	defer temporal.Close()
	// Deferred calls run in reverse: the parts' resources go before the connections below them.
	stages, end, err := c.assemble(ctx, d, temporal)
	defer end()
	if err != nil {
		return stopped(ctx, err)
	}
	close(c.ready)
	err = runStages(ctx, stages...)
	c.log.Info("control plane ended", "err", err)
	return err
}

// stopped drops an error that ctx's end has caused: a requested stop is a success.
func stopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// makeFirstToken stores the operator's admin token, or creates one in a database without tokens.
// The secret of a created token is passed to Options.FirstToken and stored nowhere.
func (c *ControlPlane) makeFirstToken(ctx context.Context, d *db.DB) error {
	if c.opts.AdminToken != "" {
		return d.Tokens.Ensure(ctx, c.opts.AdminToken,
			spec.NewToken{Name: "admin", Tenant: "default", Role: spec.RoleAdmin})
	}
	if c.opts.FirstToken == nil || !c.cfg.Plays(RoleAPI) {
		return nil
	}
	secret, err := d.Tokens.CreateFirst(ctx, "default", "admin")
	if secret != "" {
		c.opts.FirstToken(secret)
	}
	return err
}

// dialTemporal returns a client of Temporal. It does not connect, so a server that is away does
// not hold up the start.
func (c *ControlPlane) dialTemporal() (client.Client, error) {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return workers.Dial(workers.ClientOptions{
		Base:      c.opts.Temporal,
		Address:   c.cfg.TemporalAddress,
		Namespace: c.cfg.TemporalNamespace,
		Identity:  fmt.Sprintf("berthd@%s/%d", host, os.Getpid()),
		Logger:    c.log,
		Traces:    c.opts.Traces,
	})
}

// assemble creates the parts of each role, in three stages that stop one after the other: the
// API, which takes calls; the workers, the leader and the senders, which act on calls; and last
// the parts that the others report to. end releases their resources after they have stopped, and
// must be called even after an error.
func (c *ControlPlane) assemble(ctx context.Context, d *db.DB,
	t client.Client) (stages [][]part, end func(), err error) {
	end = func() {}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	dispatcher := dispatch.New(t, d, dispatch.Options{
		Starts:    c.cfg.Plays(RoleDispatch),
		Namespace: cmp.Or(c.cfg.TemporalNamespace, workers.DefaultNamespace), Logger: c.log,
	})
	registry.MustRegister(&limits{
		limiters: append(d.Limiters(), dispatcher.Limiter()),
		repeats:  map[string]*overload.Budget{"temporal": dispatcher.Repeats()},
		gate:     dispatcher.Gate(),
	})
	volumes, err := admission.ParseVolumes(c.cfg.FileInputs)
	if err != nil {
		return nil, end, err
	}
	judge := admission.New(d, volumes)
	traced := newTracedStore(d, c.opts.Traces, c.log)
	var front, middle []part
	var blobs *blob.Store
	if c.cfg.BlobURL != "" { // a leader may do without
		if blobs, err = blob.Open(ctx, c.cfg.BlobURL); err != nil {
			return nil, end, err
		}
		end = func() { _ = blobs.Close() }
	}
	marks := &watermark.Keeper{DB: d, Store: blobs, Logger: c.log, Every: c.opts.WatermarkEvery}
	if blobs == nil {
		marks = nil
	} else if c.cfg.Plays(RoleAPI) {
		// Before the API answers machines: a machine that has been silent since a backup was
		// taken would obey the database restored from that backup.
		err := marks.Check(ctx)
		if errors.Is(err, db.ErrRestored) {
			return nil, end, err
		}
		if err != nil && !errors.Is(err, watermark.ErrLeapt) {
			c.log.Error("object store unreachable, cannot tell yet whether the database was restored", "err", err)
		}
	}
	var keys *sealer.Keys
	if c.cfg.SecretKeyFile != "" {
		if keys, err = sealer.Load(c.cfg.SecretKeyFile); err != nil {
			return nil, end, err
		}
	}
	network, err := publicnet.Parse(c.cfg.WebhookAllow)
	if err != nil {
		return nil, end, err
	}
	if c.cfg.Plays(RoleAPI) {
		if keys != nil {
			middle = append(middle, c.reseal(d, keys))
		}
		serve, err := c.newAPI(traced, dispatcher, blobs, keys, registry)
		if err != nil {
			return nil, end, err
		}
		front = append(front, serve)
	}
	if c.cfg.Plays(RoleWorker) {
		waiters := workers.NewWaiters(workers.WaiterDeps{
			Client: t,
			Limit:  dispatcher,
			Store:  members{d.Attempts, c.cfg.silence()},
			Hints:  d.Hub().EndHints(db.Anywhere),
			Around: c.opts.Waiter,
		}, wait.Options{Beat: c.opts.WaiterBeat, Peers: d.Attempts.NewWaiterSet(berth.NewSecret()), Logger: c.log})
		registry.MustRegister(&waiting{waiters.Registry()})
		middle = append(middle, workers.NewControl(t, control.New(traced, dispatcher, judge), c.log).Run, waiters.Run)
	}
	// The scheduler renews the beacon itself, also as a standby.
	if c.cfg.Plays(RoleLeader) {
		middle = append(middle, c.newScheduler(d, dispatcher, judge, blobs, marks, registry).Run)
	} else if c.cfg.Plays(RoleAPI) {
		middle = append(middle, c.newBeacon(d).run)
	}
	if c.cfg.Plays(RoleDispatch) {
		middle = append(middle, func(ctx context.Context) error { return c.prepareTemporal(ctx, t) })
	}
	// Webhooks are signed with secrets of their tenants, which only the keys can open.
	if keys != nil && c.cfg.Plays(RoleDispatch) {
		sender := webhook.New(webhook.Options{DB: d, Keys: keys, Logger: c.log, Network: network, Metrics: registry})
		middle = append(middle, sender.Run)
	}
	if c.cfg.Pprof != "" {
		middle = append(middle, c.profile)
	}
	// The dispatcher and the hub serve the other parts, and traces may come from all of them.
	last := []part{dispatcher.Run, d.Hub().Run}
	if c.opts.Traces != nil {
		last = append(last, traced.run)
	}
	return [][]part{front, middle, last}, end, nil
}

// members implements wait.Store: the rows of members, judged by the limits of
// silence of this control plane.
type members struct {
	attempts *db.Attempts
	silence  db.Silence
}

// Members returns the rows of members, judged by these limits.
func (m members) Members(ctx context.Context, allocs []berth.AllocationID) ([]wire.MemberView, error) {
	return m.attempts.Members(ctx, m.silence, allocs)
}

// Ended calls db.Attempts.EndedMembers.
func (m members) Ended(ctx context.Context) ([]berth.AllocationID, error) {
	return m.attempts.EndedMembers(ctx)
}

// newScheduler returns the leader's part. Without a blob store it runs without the cleanup of
// objects and without watermarks.
func (c *ControlPlane) newScheduler(
	d *db.DB, dispatcher *dispatch.Dispatcher, judge *admission.Controller,
	blobs *blob.Store, marks *watermark.Keeper, registry *prometheus.Registry,
) *scheduler.Scheduler {
	var objects scheduler.Objects
	if blobs != nil {
		objects = blobs
	}
	metrics := scheduler.NewMetrics()
	registry.MustRegister(metrics)
	return scheduler.New(scheduler.Options{
		DB: d, Poker: dispatcher, Workflows: dispatcher, Gate: dispatcher.Gate(), Clocks: dispatcher, Fires: judge,
		Objects: objects, Watermarks: marks, Logger: c.log, Metrics: metrics,
		Policy:           c.cfg.Policy.placement(),
		Beacon:           c.cfg.Plays(RoleAPI),
		Silence:          c.cfg.silence(),
		Grace:            c.cfg.Grace,
		Retention:        c.cfg.Retention,
		MachineRetention: c.cfg.MachineRetention,
		OutputRetention:  c.cfg.OutputRetention,
		LogRetention:     c.cfg.LogRetention,
		ReconcileEvery:   c.cfg.ReconcileEvery,
		Ages:             c.opts.Ages,
	})
}

// newAPI returns the API's part. It listens before it returns, so that a taken address fails the
// start, and raises the limit of open files to the configured number of connections.
func (c *ControlPlane) newAPI(
	traced *tracedStore, dispatcher *dispatch.Dispatcher, blobs *blob.Store,
	keys *sealer.Keys, registry *prometheus.Registry,
) (part, error) {
	d := traced.db
	volumes, err := admission.ParseVolumes(c.cfg.FileInputs)
	if err != nil {
		return nil, err
	}
	proxies, err := publicnet.ParseNetworks(c.cfg.TrustedProxies)
	if err != nil {
		return nil, err
	}
	server, err := api.New(api.Deps{
		DB: d, Control: traced, Traces: c.opts.Traces, Poker: dispatcher, Logs: &blob.LogReader{Store: blobs, DB: d},
		Logger: c.log, Version: c.opts.Version,
		Checks: []api.Check{
			{Name: "blob store", Run: blobs.Check},
			{Name: "temporal", Run: dispatcher.Check, Optional: true},
		},
		Rate: c.cfg.RatePerSecond, Burst: c.cfg.Burst, TrustedProxies: proxies, SubmitRate: c.cfg.SubmitRate,
		Policy: c.cfg.Policy.placement(),
		Gate:   dispatcher.Gate(), Temporal: dispatcher.Limiter(),
		Metrics: registry,
		Agent:   api.AgentDeps{Blobs: blobs},
		Vault:   keys,
		Volumes: volumes,

		PlainWebhooks: c.cfg.WebhookAllow != "",
	})
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", c.cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", c.cfg.Listen, err)
	}
	// Every connection is an open file: a limit below the configured number must show at the start,
	// not as failed calls under load.
	connections, err := connlimit.OpenFiles(c.cfg.MaxConnections)
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	if connections < c.cfg.MaxConnections {
		c.log.Warn("limit of open files is too low for --max-connections, serving fewer connections",
			"connections", connections, "max_connections", c.cfg.MaxConnections)
	}
	c.listener = connlimit.New(listener, connlimit.Of(connections, proxies))
	return c.serve(server.HTTP()), nil
}

// prepareTemporal adds the search attributes that workflows need, as soon as Temporal answers. It
// repeats that every minute or so, since Temporal's database may have been replaced since.
func (c *ControlPlane) prepareTemporal(ctx context.Context, t client.Client) error {
	const first, longest = time.Second, time.Minute
	for pause := first; ; pause = min(2*pause, longest) {
		call, cancel := context.WithTimeout(ctx, 10*time.Second)
		err := workers.AddSearchAttributes(call, t, c.cfg.TemporalNamespace)
		cancel()
		if err == nil {
			pause = longest / 2 // doubled by the loop: a minute
		} else if ctx.Err() == nil {
			c.log.Warn("search attributes not added; workflows need them",
				"attributes", []string{berth.AttributeTenant, berth.AttributeKind}, "err", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}
