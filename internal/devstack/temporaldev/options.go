package temporaldev

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strconv"

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
	attributes map[string]string // of TLS, as in a connection string
	admin      *pgx.ConnConfig
	prefix     string // of the databases
}

// databases returns the names of the two databases.
func (s store) databases() (workflows, visibility string) {
	return s.prefix + mainStore, s.prefix + visibilityStore
}

func parseStore(database, prefix string) (store, error) {
	cfg, err := pgx.ParseConfig(database)
	if err != nil {
		return store{}, fmt.Errorf("temporal database URL: %w", err)
	}
	s := store{
		address:    net.JoinHostPort(cfg.Host, strconv.Itoa(int(cfg.Port))),
		user:       cfg.User,
		password:   cfg.Password,
		attributes: map[string]string{},
		admin:      cfg,
		prefix:     prefix,
	}
	u, err := url.Parse(database)
	if err != nil || u.Host == "" && needsTLS(cfg) {
		// The server builds its own connection strings, and has no TLS where it finds no attributes.
		return store{}, errors.New("temporal database URL: TLS needs the form postgres://USER@HOST/DATABASE?sslmode=…")
	}
	for _, name := range []string{"sslmode", "sslrootcert", "sslcert", "sslkey"} {
		if v := u.Query().Get(name); v != "" {
			s.attributes[name] = v
		}
	}
	if needsTLS(cfg) && s.attributes["sslmode"] == "" {
		return store{}, errors.New("temporal database URL: name sslmode in the URL, not in the environment")
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
