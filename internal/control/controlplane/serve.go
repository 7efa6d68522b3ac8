package controlplane

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"berth"
	"berth/api"
	"berth/db"
)

// shutdownLimit is how long calls under way may take when the API stops.
const shutdownLimit = 5 * time.Second

// serve returns the part that serves the API on the listener. It ends after every goroutine
// of the API has ended.
func (c *ControlPlane) serve(of *api.Server) part {
	server := of.HTTP()
	return func(ctx context.Context) error {
		defer of.Wait()
		c.log.Info("api listening", "url", c.URL())
		if c.cfg.TLSCert == "" && !isLoopback(c.listener.Addr().String()) {
			c.log.Warn("the api speaks plain HTTP beyond this machine: tokens travel readable, unless a proxy in " +
				"front speaks TLS")
		}
		if c.certificate != nil {
			if _, err := c.certificate.current(); err != nil {
				return err
			}
			server.TLSConfig = tlsConfig(c.certificate)
		}
		of.ProveStore()
		// Long polls end with the part, and machines ask again elsewhere.
		server.BaseContext = func(net.Listener) context.Context { return ctx }
		return serveHTTP(ctx, server, func() error {
			if c.certificate != nil {
				return server.ServeTLS(c.listener, "", "")
			}
			return server.Serve(c.listener)
		})
	}
}

// tlsConfig serves a certificate that may change between two connections.
func tlsConfig(c *certificate) *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.current() },
	}
}

// serveHTTP runs serve until ctx ends, and then lets calls under way finish within shutdownLimit.
func serveHTTP(ctx context.Context, server *http.Server, serve func() error) error {
	ended := make(chan error, 1)
	go func() { ended <- serve() }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	// ctx has ended: the limit for calls under way needs a context of its own.
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownLimit)
	defer cancel()
	if err := server.Shutdown(limit); err != nil {
		_ = server.Close() // cuts calls that take too long
	}
	if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return ctx.Err()
}

// profile serves Go's profiles, on the loopback address that Validate requires.
func (c *ControlPlane) profile(ctx context.Context) error {
	listener, err := net.Listen("tcp", c.cfg.Pprof)
	if err != nil {
		return fmt.Errorf("listen for pprof on %s: %w", c.cfg.Pprof, err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	c.log.Warn("serving profiles", "address", listener.Addr().String())
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	return serveHTTP(ctx, server, func() error { return server.Serve(listener) })
}

// beacon records that an API replica reaches the database. It runs in processes without the
// leader's role; a leader's scheduler makes the record itself. See db.Leader.RenewBeacon.
type beacon struct {
	*ControlPlane
	db     *db.DB
	holder string
}

// newBeacon returns the beacon of this process, under a name of its own.
func (c *ControlPlane) newBeacon(d *db.DB) *beacon {
	return &beacon{c, d, berth.NewSecret()}
}

// renew renews the record once.
func (b *beacon) renew(ctx context.Context) error {
	return b.db.Leader.RenewBeacon(ctx, b.holder, b.cfg.silence().Beacon(), b.cfg.grace())
}

// run renews the record five times in its lifetime, so that a few lost renewals do not show.
func (b *beacon) run(ctx context.Context) error {
	tick := time.NewTicker(b.cfg.silence().Beacon() / 5)
	defer tick.Stop()
	for {
		if err := b.renew(ctx); err != nil && ctx.Err() == nil {
			b.log.Warn("cannot renew the beacon", "err", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}
