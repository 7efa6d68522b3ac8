package db

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"berth"
)

// core is the part that all stores share: the pools of connections, the hub that
// carries hints between processes, the options, and the calls of machines that are
// gathered into one statement. Its methods open transactions; they hold no
// statement of an aggregate but the session of a machine, which guards the writes
// of several stores.
type core struct {
	pool  *pgxpool.Pool
	vital *pgxpool.Pool // for leases alone; see Open
	log   *slog.Logger
	hub   *Hub
	turns *turns

	halfLife   time.Duration
	entry      time.Duration
	leaderIdle time.Duration
	renewals   *renewals
	sessions   *sessions
	heard      *gather[heardFrom, struct{}] // machines whose suspicion ends
	ends       ends
}

// tx runs f in one transaction (read committed) and commits if it returns nil.
// Deadlocks and serialization failures are tried again, up to three times.
func (d *core) tx(ctx context.Context, f func(tx pgx.Tx) error) error {
	var err error
	for range 3 {
		err = pgx.BeginFunc(ctx, d.pool, f)
		pg, ok := errors.AsType[*pgconn.PgError](err)
		if !ok || pg.Code != "40P01" && pg.Code != "40001" {
			return err
		}
		d.log.Warn("transaction tried again", "sqlstate", pg.Code, "err", err)
	}
	return err
}

// movedTx is tx for what learns only under its locks what it had to lock first:
// where f ends with errMoved it begins anew, up to five times.
func (d *core) movedTx(ctx context.Context, f func(tx pgx.Tx) error) error {
	var err error
	for range 5 {
		if err = d.tx(ctx, f); !errors.Is(err, errMoved) {
			break
		}
	}
	return err
}

// errMoved makes a transaction start over because what it had to lock first
// turned out to be more than it knew.
var errMoved = errors.New("rows changed before they were locked")

// leaderTx is tx for writes of a leader: fenced.
func (d *core) leaderTx(ctx context.Context, term Term, f func(tx pgx.Tx) error) error {
	return d.tx(ctx, func(tx pgx.Tx) error {
		var timeout string
		err := tx.QueryRow(ctx, fence, term.args()).Scan(&timeout)
		if errors.Is(err, pgx.ErrNoRows) {
			return term.errDeposed()
		}
		if err != nil {
			return err
		}
		return f(tx)
	})
}

// readTx runs f on one snapshot of the database.
func (d *core) readTx(ctx context.Context, f func(tx pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, d.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, f)
}

func (d *core) aged(ctx context.Context, what, sql string, args pgx.NamedArgs) ([]Aged, error) {
	rows, err := d.pool.Query(ctx, sql, args)
	if err != nil {
		return nil, mapError(err, what)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Aged])
	return list, mapError(err, what)
}

// Aged is a job in a state, and for how long.
type Aged struct {
	ID      berth.JobID
	Attempt int
	State   berth.State
	Age     time.Duration // in that state, or as the query says
}
