package controlplane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"go.temporal.io/sdk/client"

	"berth/internal/control/scheduler"
	"berth/internal/lib/tracing"
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

	// Providers are the kinds of providers that the file of Config.CloudFile may name; nil: the kinds
	// of this version. Tests add their own.
	Providers map[string]NewProvider

	// ScaleEvery is the pause between two passes of the scaler; 0: the default of package autoscale.
	ScaleEvery time.Duration

	// CloudClock and CloudFaster are control.MachineDeps' Clock and Faster, and hold for the sweep of clouds
	// too; tests move them.
	CloudClock  func(time.Time) time.Time
	CloudFaster int

	// LeaderIdle is db.Options' own; tests lengthen it.
	LeaderIdle time.Duration

	// AdminToken is an admin token that an operator chose, for installations
	// without a person at their first start. It is stored unless it exists.
	AdminToken string

	// FirstToken receives the secret of the first admin token, if this start had
	// to create one and Config.AdminTokenFile names no file. nil: none is created.
	FirstToken func(secret string)
}

// ControlPlane is one process's control plane.
type ControlPlane struct {
	cfg  Config
	opts Options
	log  *slog.Logger

	ready       chan struct{}
	listener    net.Listener
	certificate *certificate // of the API; nil: plain HTTP
}

// New returns a control plane that Run starts. It validates the configuration and does no I/O.
func New(cfg Config, o Options) (*ControlPlane, error) {
	err := errors.Join(cfg.Validate(), cfg.plainTemporal(o.Temporal.ConnectionOptions.TLS))
	if err != nil {
		return nil, err
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &ControlPlane{
		cfg: cfg, opts: o, log: o.Logger, ready: make(chan struct{}),
		certificate: newCertificate(cfg.TLSCert, cfg.TLSKey, o.Logger),
	}, nil
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
	c.log.Info("control plane starting", "version", c.opts.Version, "config", c.cfg)
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
	a := &assembly{ControlPlane: c, db: d, temporal: temporal}
	defer a.close()
	if err := a.assemble(ctx); err != nil {
		return stopped(ctx, err)
	}
	close(c.ready)
	err = runStages(ctx, a.front, a.middle, a.last)
	c.log.Info("control plane stopped", "err", err)
	return err
}

// stopped drops an error that ctx's end has caused: a requested stop is a success.
func stopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
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
			c.log.Warn("cannot add search attributes that workflows need",
				"attributes", workers.SearchAttributes(), "err", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}
