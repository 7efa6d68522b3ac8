package db

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"berth"
	"berth/spec"
)

// Options tune a DB.
type Options struct {
	MaxConns int32        // 0: 16
	Logger   *slog.Logger // nil: discard

	// HalfLife is after what time past use counts half. 0: spec.DefaultHalfLife;
	// negative: past use does not count.
	HalfLife time.Duration
	// EntryPenalty is what a start costs beside the run, as if its capacity had
	// been held for so long. 0: nothing.
	EntryPenalty time.Duration

	// LeaderIdle is how long a write of a leader may stand still before the server
	// ends it. 0: a second. Only tests have more patience with a process that is
	// frozen in the middle of one: meanwhile nobody can take the lead.
	LeaderIdle time.Duration
}

// vitalConns are set apart for what tells that machines and replicas live: the
// renewals of leases, and the beacon. However crowded the other connections are,
// and whichever table but these two is locked, no machine is declared lost because of
// it.
const vitalConns = 4

// spareConns is how long a connection that only a burst has needed stays open.
// Each is a process of the server's that remembers every statement it has
// planned, some 10 MiB of them.
const spareConns = 2 * time.Minute

// connLife, and up to a fifth more, is how long a connection is used: with every
// statement that it has once planned the server's process grows, to 20 MiB.
const connLife = 10 * time.Minute

// idleParam is how long a transaction may wait for its next statement before the
// server ends it; idleLimit is that of all but a leader's writes, where the
// database URL says nothing.
const (
	idleParam = "idle_in_transaction_session_timeout"
	idleLimit = 5 * time.Second
)

// Open connects to the database at url and checks that it answers. It does not
// migrate; see Migrate. A connect_timeout (5 s) or
// idle_in_transaction_session_timeout (5 s) that the url names is left as it is,
// but that 0, which is never, is refused as invalid. Writes of a leader have a
// limit of their own; see Options.
//
// Beside MaxConns there are a few connections for leases alone.
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
	// A transaction that is left open holds back the feed of every process.
	_, ownIdle := cfg.ConnConfig.RuntimeParams[idleParam]
	if !ownIdle {
		cfg.ConnConfig.RuntimeParams[idleParam] = idleSetting(idleLimit)
	}
	cfg.ConnConfig.RuntimeParams["timezone"] = "UTC"
	// Statements here are written so that one plan serves all values. Planning
	// those with arrays anew each time cost as much as executing them.
	cfg.ConnConfig.RuntimeParams["plan_cache_mode"] = "force_generic_plan"
	cfg.ConnConfig.RuntimeParams["application_name"] = "berth"
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
	}
	c.hub = newHub(pool, o.Logger)
	c.renewals, c.sessions = newRenewals(c), newSessions(c)
	c.heard = newSuspicions(c)
	return newDB(c), nil
}

// checkIdle refuses a URL by which transactions may stand still for ever. The
// server is asked, which takes the limit in many units and forms.
func checkIdle(ctx context.Context, pool *pgxpool.Pool) error {
	var limit string
	err := pool.QueryRow(ctx, `SELECT setting FROM pg_settings WHERE name = $1`, idleParam).Scan(&limit)
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

// idleSetting is a limit in the server's unit, milliseconds.
func idleSetting(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// Close waits for the connections in use and closes the pools.
func (d *DB) Close() {
	d.renewals.close()
	d.sessions.close()
	d.heard.close()
	d.pool.Close()
	d.vital.Close()
}

// Pool is the underlying pool, for tests and the schema's own tools.
func (d *DB) Pool() *pgxpool.Pool { return d.pool }

// Hub carries hints between processes; see Hub.
func (d *DB) Hub() *Hub { return d.hub }

// Shares returns how the connections for work that can wait are shared out.
func (d *DB) Shares() Shares { return d.turns.shares }

// Ping reports whether the database answers.
func (d *DB) Ping(ctx context.Context) error { return d.pool.Ping(ctx) }

// SQLSTATEs this package maps to errors; BT… are raised by our own triggers.
const (
	sqlUniqueViolation       = "23505"
	sqlCheckViolation        = "23514"
	sqlInsufficientPrivilege = "42501"
)

// mapError turns driver errors into berth errors; what says what was asked for.
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
	case pg.Code[:2] == "22": // such as a NUL in a text
		return berth.Errorf(berth.CodeInvalid, "%s: %s", what, pg.Message)
	case pg.Code == sqlCheckViolation:
		return berth.Errorf(berth.CodeCapacity, "%s: %s (%s)", what, pg.Message, pg.ConstraintName)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// lost reports whether err is about the connection and not about what was asked.
func lost(err error) bool {
	_, connect := errors.AsType[*pgconn.ConnectError](err)
	_, network := errors.AsType[*net.OpError](err)
	return connect || network || pgconn.Timeout(err) || pgconn.SafeToRetry(err) ||
		errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed)
}

// IsConstraint reports whether err is a violation of the named constraint.
func IsConstraint(err error, name string) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.ConstraintName == name
}
