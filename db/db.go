package db

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"berth"
	"berth/internal/lib/publicnet"
	"berth/spec"
)

// Options tune a DB. Zero fields take their defaults.
type Options struct {
	MaxConns int32        // connections for everything but leases; 0: 16
	Logger   *slog.Logger // nil: discard

	// HalfLife is the time after which past usage counts half. 0: spec.DefaultHalfLife;
	// negative: past usage does not count.
	HalfLife time.Duration
	// EntryPenalty is the usage charged for each start, in addition to the run, as if the
	// capacity had been held for this time. 0: none.
	EntryPenalty time.Duration

	// LeaderIdle is how long a leader's transaction may wait for its next statement before
	// the server ends it. 0: one second. A leader that freezes inside a transaction keeps
	// every other process from taking the lead until then. Only tests set a longer time.
	LeaderIdle time.Duration

	// CredentialTTL is the lifetime of a machine's credential. 0: CredentialTTL. Only tests set
	// another one.
	CredentialTTL time.Duration
}

// vitalConns is the size of the pool for liveness writes: renewals of machine leases, and the
// API beacon. No machine is declared lost because the main pool is exhausted, or because a
// table other than these two is locked.
const vitalConns = 4

// spareConns is how long a connection that was opened for a burst stays open. Each is a
// server process that caches the plan of every statement it has run, about 10 MiB in all.
const spareConns = 2 * time.Minute

// connLife, plus up to a fifth more, is the lifetime of a connection. The server process
// behind a connection grows with every statement that it plans, to 20 MiB.
const connLife = 10 * time.Minute

// idleParam limits how long a transaction may wait for its next statement before the server
// ends the session. idleLimit is the value where the database URL sets none; transactions of
// a leader have another one, Options.LeaderIdle.
const (
	idleParam = "idle_in_transaction_session_timeout"
	idleLimit = 5 * time.Second
)

// Open connects to the database at url and checks that the server responds. It does not
// migrate; see Migrate. It sets connect_timeout (5 s) and idle_in_transaction_session_timeout
// (5 s) unless the url does. It refuses an idle timeout of 0, which means no limit, as
// invalid. Writes of a leader have a limit of their own; see Options.
//
// In addition to MaxConns, Open reserves a few connections for leases only.
func Open(ctx context.Context, url string, o Options) (*DB, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.HalfLife == 0 {
		o.HalfLife = spec.DefaultHalfLife
	}
	if o.LeaderIdle == 0 {
		o.LeaderIdle = leaderIdle
	}
	if o.CredentialTTL == 0 {
		o.CredentialTTL = CredentialTTL
	}
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("parse database url: %w", err)
	}
	cfg.MaxConns = 16
	if o.MaxConns > 0 {
		cfg.MaxConns = o.MaxConns
	}
	cfg.MaxConnIdleTime = spareConns
	cfg.MaxConnLifetime, cfg.MaxConnLifetimeJitter = connLife, connLife/5
	// An idle open transaction holds back the feed of every process.
	_, ownIdle := cfg.ConnConfig.RuntimeParams[idleParam]
	if !ownIdle {
		cfg.ConnConfig.RuntimeParams[idleParam] = idleSetting(idleLimit)
	}
	cfg.ConnConfig.RuntimeParams["timezone"] = "UTC"
	// Statements are written so that one plan serves all values. Planning the statements with
	// arrays on each call cost as much as executing them.
	cfg.ConnConfig.RuntimeParams["plan_cache_mode"] = "force_generic_plan"
	// A statement names its rows by key, and the rows that change are in memory. With the default of 4, the plans of a
	// young database read whole tables, and stay until the statistics of a table are renewed.
	cfg.ConnConfig.RuntimeParams["random_page_cost"] = "1.1"
	cfg.ConnConfig.RuntimeParams["application_name"] = "berth"
	cfg.ConnConfig.RuntimeParams["berth.format"] = strconv.Itoa(spec.Format) // see jobs_know_groups, migration 0073
	if cfg.ConnConfig.ConnectTimeout == 0 {
		cfg.ConnConfig.ConnectTimeout = 5 * time.Second
	}
	turns := newTurns(int(cfg.MaxConns))
	cfg.ConnConfig.Tracer = turns
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	if err = pool.Ping(ctx); err != nil {
		err = berth.Errorf(berth.CodeUnavailable, "database does not answer: %v", err)
	} else if ownIdle {
		err = checkIdle(ctx, pool)
	}
	if err != nil {
		pool.Close()
		return nil, err
	}
	// Leases bypass turns: a renewal must not queue behind other work.
	cfg = cfg.Copy()
	cfg.MaxConns, cfg.ConnConfig.Tracer = vitalConns, nil
	vital, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		pool.Close()
		return nil, fmt.Errorf("open database: %w", err)
	}
	c := &core{
		pool: pool, vital: vital, turns: turns, log: o.Logger,
		halfLife: max(0, o.HalfLife), entry: o.EntryPenalty, leaderIdle: o.LeaderIdle,
		credentialTTL: o.CredentialTTL,
	}
	c.hub = newHub(pool, o.Logger)
	c.renewals, c.sessions = newRenewals(c), newSessions(c)
	c.heard = newSuspicions(c)
	return newDB(c), nil
}

// checkIdle refuses a URL without a limit on idle transactions. It asks the server for the
// effective value, since the server accepts many units and spellings.
func checkIdle(ctx context.Context, pool *pgxpool.Pool) error {
	var limit string
	err := pool.QueryRow(ctx, `SELECT current_setting($1)`, idleParam).Scan(&limit)
	if err != nil {
		return mapError(err, idleParam)
	}
	if limit == "0" {
		return berth.Errorf(berth.CodeInvalid,
			"%s of the database URL is 0, which is never, and one transaction that is left open holds up every "+
				"process: name a time such as 30s, or leave it out for %s", idleParam, idleLimit)
	}
	return nil
}

// idleSetting formats a limit in the server's unit, milliseconds.
func idleSetting(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// Close waits for the connections in use and closes the pools.
func (d *DB) Close() {
	d.renewals.close()
	d.sessions.close()
	d.heard.close()
	d.pool.Close()
	d.vital.Close()
}

// Pool returns the underlying pool, for tests and schema tools.
func (d *DB) Pool() *pgxpool.Pool { return d.pool }

// Hub returns the hub that carries hints between processes.
func (d *DB) Hub() *Hub { return d.hub }

// Shares returns the division of the pool's connections by purpose.
func (d *DB) Shares() Shares { return d.turns.shares }

// Ping returns an error if the database does not respond. It waits for no turn: statements that wait for a lock, and
// have all connections of a share, do not mean that the database is away.
func (d *DB) Ping(ctx context.Context) error { return d.vital.Ping(ctx) }

// SQLSTATEs this package maps to errors; BT… are raised by our own triggers.
const (
	sqlUniqueViolation       = "23505"
	sqlCheckViolation        = "23514"
	sqlInsufficientPrivilege = "42501"
)

// mapError turns driver errors into berth errors, with the requested object's name in the
// message. berth errors pass unchanged.
func mapError(err error, what string) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return berth.Errorf(berth.CodeNotFound, "no such %s", what)
	}
	if _, ok := errors.AsType[*berth.Error](err); ok {
		return err
	}
	pg, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		if lost(err) {
			return berth.Errorf(berth.CodeUnavailable, "%s: database does not answer: %v", what, err)
		}
		return fmt.Errorf("%s: %w", what, err)
	}
	switch {
	case pg.Code[:2] == "57" || pg.Code[:2] == "08" || pg.Code[:2] == "53":
		return berth.Errorf(berth.CodeUnavailable, "%s: %s", what, pg.Message)
	case pg.Code[:2] == "BT" || pg.Code == sqlUniqueViolation:
		return berth.Errorf(berth.CodeConflict, "%s: %s", what, pg.Message)
	case pg.Code[:2] == "22": // data exception, such as a NUL byte in a text
		return berth.Errorf(berth.CodeInvalid, "%s: %s", what, pg.Message)
	case pg.Code == sqlCheckViolation:
		return berth.Errorf(berth.CodeCapacity, "%s: %s (%s)", what, pg.Message, pg.ConstraintName)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// lost reports whether err concerns the connection rather than the statement. The statement
// may have run all the same.
func lost(err error) bool {
	_, connect := errors.AsType[*pgconn.ConnectError](err)
	_, network := errors.AsType[*net.OpError](err)
	return connect || network || pgconn.Timeout(err) || pgconn.SafeToRetry(err) ||
		errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed)
}

// IsDataError reports whether the database has rejected the data of a statement, so that the same call fails again: a
// cardinality violation, a data exception, a violated constraint, or an exception of a function or trigger. It
// reports false for a term that is over, for a lost connection, and for a database that is short of resources.
func IsDataError(err error) bool {
	if e, ok := errors.AsType[*berth.Error](err); ok {
		return e.Slug != berth.SlugStaleEpoch && e.Code != berth.CodeUnavailable && e.Code != berth.CodeInternal
	}
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && slices.Contains([]string{"21", "22", "23", "BT", "P0"}, pg.Code[:2])
}

// IsConstraint reports whether err is a violation of the named constraint.
func IsConstraint(err error, name string) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.ConstraintName == name
}

// Host returns the host in a connection string, "" for a socket of this host.
func Host(database string) string {
	config, err := pgconn.ParseConfig(database)
	if err != nil || config.Host == "" || config.Host[0] == '/' {
		return ""
	}
	return config.Host
}

// Unverified returns the first host in a connection string whose identity the connection would not
// verify, "" if there is none. Sockets and loopback addresses of this host need no verification; for
// other hosts only sslmode=verify-full verifies the server (libpq, "SSL Support", table of modes).
// An invalid string returns "", since no connection can use it.
func Unverified(database string) string {
	config, err := pgconn.ParseConfig(database)
	if err != nil {
		return ""
	}
	targets := append([]*pgconn.FallbackConfig{{Host: config.Host, TLSConfig: config.TLSConfig}}, config.Fallbacks...)
	for _, t := range targets {
		proves := t.TLSConfig != nil && !t.TLSConfig.InsecureSkipVerify
		if !proves && !strings.HasPrefix(t.Host, "/") && !publicnet.Loopback(t.Host) {
			return t.Host
		}
	}
	return ""
}

// ClientCertificates returns the certificates that a connection string makes the client show, none for most of
// them and for an invalid string.
func ClientCertificates(database string) []tls.Certificate {
	config, err := pgconn.ParseConfig(database)
	if err != nil || config.TLSConfig == nil {
		return nil
	}
	return config.TLSConfig.Certificates
}
