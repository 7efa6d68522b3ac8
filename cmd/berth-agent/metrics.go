package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/pflag"
	"golang.org/x/net/netutil"

	"berth/internal/lib/flags"
	"berth/internal/lib/publicnet"
	"berth/internal/machine/agent"
)

// Bounds on the server of the metrics. A caller beyond them waits or is refused; the agent goes on.
const (
	metricsScrapes     = 4
	metricsConnections = 32
	metricsPatience    = 10 * time.Second // with a request, with a scrape, and with an idle connection
	metricsPause       = 10 * time.Second // after a failure to listen
)

// watchFlags registers the flags of metrics, traces and the log.
func (s *settings) watchFlags(f *pflag.FlagSet) {
	f.StringVar(&s.metrics, "metrics-listen", "",
		"listen address of the agent's metrics for Prometheus, without TLS and tokens (default: no metrics)")
	flags.Collector(f, &s.otlp)
	flags.LogLevel(f, &s.level)
}

// checkMetrics returns an error if --metrics-listen is no address, or if other machines can reach it: the
// metrics have neither TLS nor tokens (adr/0058).
func (s *settings) checkMetrics() error {
	if s.metrics == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(s.metrics)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	switch {
	case err != nil:
		return fmt.Errorf("%q is not an address: write HOST:PORT, such as 127.0.0.1:7079", s.metrics)
	case !s.plaintext && !publicnet.Loopback(host):
		return fmt.Errorf("%q: other machines can reach it, and metrics have no TLS: listen on 127.0.0.1, or accept "+
			"the risk with --allow-plaintext", s.metrics)
	}
	return nil
}

// newRegistry returns the metrics that the agent serves: its own, and the standard ones of a Go process.
func newRegistry(of *agent.Metrics) *prometheus.Registry {
	r := prometheus.NewRegistry()
	//lint:ignore SA1019 the package collectors, its replacement, links database/sql, and agents link no SQL
	ofGo := prometheus.NewGoCollector()
	//lint:ignore SA1019 as above
	ofProcess := prometheus.NewProcessCollector(prometheus.ProcessCollectorOpts{})
	r.MustRegister(of, ofGo, ofProcess)
	return r
}

// serveMetrics serves GET /metrics on --metrics-listen, if it is set, until ctx ends or stop is called.
func (s *settings) serveMetrics(ctx context.Context, of *agent.Metrics, log *slog.Logger) (stop func()) {
	if s.metrics == "" {
		return func() {}
	}
	return metricsServer{address: s.metrics, pause: metricsPause, log: log}.start(ctx, newRegistry(of))
}

// metricsServer serves the metrics of an agent. The containers on this machine need the agent more than
// Prometheus needs its metrics: an address that is in use is tried again and again, and does not end the agent.
type metricsServer struct {
	address string
	pause   time.Duration // after a failure to listen
	log     *slog.Logger
}

// start serves a registry until ctx ends or stop is called, which waits for the end.
func (m metricsServer) start(ctx context.Context, registry *prometheus.Registry) (stop func()) {
	errors := slog.NewLogLogger(m.log.Handler(), slog.LevelWarn)
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		ErrorLog: errors, MaxRequestsInFlight: metricsScrapes, Timeout: metricsPatience,
	}))
	server := &http.Server{
		Handler: mux, ErrorLog: errors, MaxHeaderBytes: 16 << 10, ReadTimeout: metricsPatience,
		WriteTimeout: 2 * metricsPatience, IdleTimeout: metricsPatience,
	}
	ctx, cancel := context.WithCancel(ctx)
	closing := context.AfterFunc(ctx, func() { _ = server.Close() })
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			err := m.serve(ctx, server)
			if ctx.Err() != nil {
				return
			}
			m.log.Warn("metrics are not served, will retry", "address", m.address, "err", err)
			select {
			case <-ctx.Done():
				return
			case <-time.After(m.pause):
			}
		}
	})
	return func() {
		cancel()
		closing()
		_ = server.Close()
		serving.Wait()
	}
}

// serve listens and serves until the server is closed or fails.
func (m metricsServer) serve(ctx context.Context, server *http.Server) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", m.address)
	if err != nil {
		return err
	}
	m.log.Info("serving metrics", "address", l.Addr().String())
	return server.Serve(netutil.LimitListener(l, metricsConnections))
}
