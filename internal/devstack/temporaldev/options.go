package temporaldev

import (
	"fmt"
	"log/slog"
	"net"
	"strconv"

	"github.com/jackc/pgx/v5"
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

	// FrontendPort on 127.0.0.1 for clients and workers; 0 takes a free one.
	FrontendPort int

	// UIPort on 127.0.0.1 for browsers; 0 takes a free one, NoUI leaves it out.
	UIPort int
	NoUI   bool

	// Logger gets the server's errors as warnings and its chatter as debug. Nil
	// discards everything but the reason of a fatal exit.
	Logger *slog.Logger
}

// store is how to reach the PostgreSQL cluster.
type store struct {
	address  string
	user     string
	password string
	admin    *pgx.ConnConfig
	prefix   string // of the databases
}

// databases returns the names of the two databases.
func (s store) databases() (workflows, visibility string) {
	return s.prefix + mainStore, s.prefix + visibilityStore
}

func parseStore(url, prefix string) (store, error) {
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return store{}, fmt.Errorf("temporal database URL: %w", err)
	}
	return store{
		address:  net.JoinHostPort(cfg.Host, strconv.Itoa(int(cfg.Port))),
		user:     cfg.User,
		password: cfg.Password,
		admin:    cfg,
		prefix:   prefix,
	}, nil
}
