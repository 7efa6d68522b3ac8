package temporaldev

import (
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// The ports that contract and documentation name.
const (
	DefaultFrontendPort = 7233
	DefaultUIPort       = 8233
)

// Namespace is the only one, besides Temporal's own.
const Namespace = "default"

// Options configure the server's state and addresses.
type Options struct {
	// DatabaseURL of any database in the cluster, of a user who may create
	// databases. The server makes and uses "temporal" and "temporal_visibility".
	DatabaseURL string

	// Prefix of the names of both databases; "" adds none. No two servers that run at the same time may
	// share databases: each would believe that it owns all workflows, and give their tasks to its own
	// workers.
	Prefix string

	// FrontendHost is the IP address of this host at which the frontend listens; "" is 127.0.0.1, and an unspecified
	// address (0.0.0.0, ::) means all addresses. Others than loopback need TLS, or a network where all are trusted.
	FrontendHost string

	// FrontendPort for clients and workers; 0 takes a free one.
	FrontendPort int

	// TLS of the frontend and between the services; nil: plaintext.
	TLS *TLS

	// MetricsAddress is where Prometheus reads the server's metrics, HOST:PORT; "": nowhere.
	MetricsAddress string

	// Exclusive makes Start wait until no other exclusive server uses the databases; see Lost.
	Exclusive bool

	// LockGrace is the time after which an exclusive server without its lock counts as replaced; 0: a minute.
	LockGrace time.Duration

	// UIPort on 127.0.0.1 for browsers; 0 takes a free one, NoUI leaves it out.
	UIPort int
	NoUI   bool

	// Logger gets the server's errors as warnings and its chatter as debug. Nil
	// discards everything but the reason of a fatal exit.
	Logger *slog.Logger
}

// store is how to reach the PostgreSQL cluster.
type store struct {
	address    string
	user       string
	password   string
	attributes map[string]string // parameters of a connection string
	admin      *pgx.ConnConfig
	prefix     string // of the databases
}

// databases returns the names of the two databases.
func (s store) databases() (workflows, visibility string) {
	return s.prefix + mainStore, s.prefix + visibilityStore
}

// sessions names the sessions of the server in pg_stat_activity.
const sessions = "berth-temporal"

// liveness makes the database miss a lost host within half a minute. Otherwise open transactions of its sessions
// keep rows locked for hours (PostgreSQL manual, "TCP Settings"; times in seconds, the last one in milliseconds).
var liveness = map[string]string{
	"tcp_keepalives_idle": "10", "tcp_keepalives_interval": "5", "tcp_keepalives_count": "3",
	"tcp_user_timeout": "25000",
}

// parseStore reads a connection string. The server builds connection strings of its own from parts, so
// each string is refused from which it would build another one.
func parseStore(database, prefix string) (store, error) {
	refuse := func(format string, args ...any) (store, error) {
		return store{}, fmt.Errorf("temporal database URL: "+format, args...)
	}
	cfg, err := pgx.ParseConfig(database)
	if err != nil {
		return refuse("%w", err)
	}
	u, err := url.Parse(database)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "postgres" && u.Scheme != "postgresql":
		return refuse("write postgres://USER:PASSWORD@HOST/DATABASE?sslmode=…, with a host and not a socket")
	case strings.Contains(u.Host, ","):
		return refuse("name one host: the server does not know several")
	case cfg.User != url.QueryEscape(cfg.User) || strings.Contains(cfg.Password, " "):
		return refuse("the user name must have no special characters, and the password no spaces")
	}
	s := store{
		address:    net.JoinHostPort(cfg.Host, strconv.Itoa(int(cfg.Port))),
		user:       cfg.User,
		password:   cfg.Password,
		attributes: maps.Clone(liveness),
		admin:      cfg,
		prefix:     prefix,
	}
	s.attributes["application_name"] = sessions
	for name, values := range u.Query() {
		if slices.Contains([]string{"host", "port", "user", "password", "dbname"}, name) {
			return refuse("%s must not be a parameter", name)
		}
		s.attributes[name] = values[0]
	}
	if needsTLS(cfg) && s.attributes["sslmode"] == "" {
		return refuse("name sslmode in the URL, not in the environment")
	}
	return s, nil
}

// needsTLS reports whether each connection by cfg has TLS. The default of sslmode, prefer, also permits
// connections without.
func needsTLS(cfg *pgx.ConnConfig) bool {
	return cfg.TLSConfig != nil && !slices.ContainsFunc(cfg.Fallbacks, func(f *pgconn.FallbackConfig) bool {
		return f.TLSConfig == nil
	})
}
