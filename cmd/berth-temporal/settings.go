package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"

	"github.com/spf13/pflag"

	"berth/db"
	"berth/internal/devstack/temporaldev"
	"berth/internal/lib/flags"
	"berth/internal/lib/publicnet"
)

// settingsPath is the file of settings that is read if it exists.
const settingsPath = "/etc/berth/temporal.yaml"

// settings are the values of the flags.
type settings struct {
	database       string
	listen         string // HOST:PORT of the frontend
	cert, key, ca  string // files of TLS; all or none
	allowPlaintext bool
	uiPort         int    // on 127.0.0.1; 0: no UI
	metrics        string // HOST:PORT; "": no metrics
	level          slog.Level

	host string // of listen
	port int
}

func defaults() settings {
	return settings{listen: net.JoinHostPort("127.0.0.1", strconv.Itoa(temporaldev.DefaultFrontendPort))}
}

// flags registers all flags. s holds the defaults, which the help text shows.
func (s *settings) flags(f *pflag.FlagSet) {
	flags.File(f, settingsPath)
	f.StringVar(&s.database, "database-url", s.database,
		"PostgreSQL URL, such as postgres://temporal:PASSWORD@HOST/temporal?sslmode=verify-full; the server uses the "+
			"databases temporal and temporal_visibility, and creates them if the role may")
	f.StringVar(&s.listen, "listen", s.listen,
		"listen address for berthd, an IP address of this host and a port; 0.0.0.0 means all addresses")
	f.StringVar(&s.cert, "tls-cert", s.cert,
		"TLS certificate file, for servers and clients (default: no TLS, on loopback only)")
	f.StringVar(&s.key, "tls-key", s.key, "TLS key file")
	f.StringVar(&s.ca, "tls-ca", s.ca,
		"file with the authorities that sign the certificates of clients, and the one of --tls-cert")
	f.BoolVar(&s.allowPlaintext, "allow-plaintext", s.allowPlaintext,
		"start although clients or the database are reached beyond this machine without TLS")
	f.IntVar(&s.uiPort, "ui-port", s.uiPort,
		"port of Temporal's web UI on 127.0.0.1; every user of this machine can then change workflows (default: no UI)")
	f.StringVar(&s.metrics, "metrics-listen", s.metrics,
		"listen address of the metrics for Prometheus, without TLS and tokens (default: no metrics)")
	flags.LogLevel(f, &s.level)
}

// validate reports every fault of the settings.
func (s *settings) validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if s.database == "" {
		fault("no database: set --database-url or BERTH_DATABASE_URL to a PostgreSQL URL")
	}
	host, port, err := net.SplitHostPort(s.listen)
	if host == "localhost" {
		host = "127.0.0.1"
	}
	s.host = host
	if s.port, _ = strconv.Atoi(port); err != nil || net.ParseIP(host) == nil || s.port < 1 || s.port > 65535 {
		fault("listen address %q: write an IP address of this host and a port, such as 0.0.0.0:7233", s.listen)
	}
	if n := given(s.cert, s.key, s.ca); n != 0 && n != 3 {
		fault("TLS needs three files, and %d are set: --tls-cert, --tls-key and --tls-ca", n)
	}
	if s.uiPort < 0 || s.uiPort > 65535 {
		fault("UI port %d: allowed are 0 (no UI) to 65535", s.uiPort)
	}
	at, _, err := net.SplitHostPort(s.metrics)
	if s.metrics != "" && err != nil {
		fault("metrics address %q: write HOST:PORT, such as 127.0.0.1:9233", s.metrics)
	}
	if !s.allowPlaintext {
		if s.metrics != "" && err == nil && !publicnet.Loopback(at) {
			fault("metrics address %q: other machines can reach it, and metrics have no TLS: listen on 127.0.0.1, or "+
				"accept the risk with --allow-plaintext", s.metrics)
		}
		if s.cert == "" && net.ParseIP(host) != nil && !publicnet.Loopback(host) {
			fault("listen address %q: other machines can reach it, and it has no TLS: set --tls-cert, --tls-key and "+
				"--tls-ca (berthd ca makes all three), listen on 127.0.0.1, or accept the risk with --allow-plaintext",
				s.listen)
		}
		if h := db.Unverified(s.database); h != "" {
			fault("database on %s: the connection does not verify the server: add sslmode=verify-full to "+
				"--database-url, and sslrootcert=FILE for a private authority, or accept the risk with "+
				"--allow-plaintext", h)
		}
	}
	return errors.Join(faults...)
}

// given counts the texts that are not empty.
func given(texts ...string) (n int) {
	for _, t := range texts {
		if t != "" {
			n++
		}
	}
	return n
}

// options returns the options of the server.
func (s *settings) options() temporaldev.Options {
	o := temporaldev.Options{
		DatabaseURL: s.database, FrontendHost: s.host, FrontendPort: s.port, UIPort: s.uiPort, NoUI: s.uiPort == 0,
		MetricsAddress: s.metrics, Exclusive: true,
	}
	if s.cert != "" {
		o.TLS = &temporaldev.TLS{CertFile: s.cert, KeyFile: s.key, CAFile: s.ca}
	}
	return o
}
