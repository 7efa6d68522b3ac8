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

// core is shared by all stores: the connection pools, the hub that carries hints between
// processes, the options, and the agents' calls that are gathered into one statement. Its
// methods open transactions. Statements on an aggregate's rows belong to the stores, with one
// exception: the session of a machine, which guards the writes of several stores.
type core struct {
	pool  *pgxpool.Pool
	vital *pgxpool.Pool // used for leases only; see Open
	log   *slog.Logger
	hub   *Hub
	turns *turns // shares pool's connections out between classes of work

	halfLife   time.Duration // after which past usage counts half; 0: it does not count
	entry      time.Duration // Options.EntryPenalty
	leaderIdle time.Duration // Options.LeaderIdle

	credentialTTL time.Duration // Options.CredentialTTL

	renewals *renewals
	sessions *sessions
	heard    *gather[heardFrom, struct{}] // machines to change from suspect back to ready
	ends     ends

	incarnations incarnations
}

// tx runs f in a read-committed transaction and commits if f returns nil. After a deadlock or
// a serialization failure it runs f again, three times in all, so f must reset its results at
// the start.
func (d *core) tx(ctx context.Context, f func(tx pgx.Tx) error) error {
	var err error
	for range 3 {
		err = pgx.BeginFunc(ctx, d.pool, f)
		pg, ok := errors.AsType[*pgconn.PgError](err)
		if !ok || pg.Code != "40P01" && pg.Code != "40001" {
			return err
		}
		d.log.Warn("transaction retried", "sqlstate", pg.Code, "err", err)
	}
	return err
}

// movedTx is tx for a transaction that learns only under its locks which rows it had to lock
// first. If f returns errMoved, movedTx starts over, five times in all.
func (d *core) movedTx(ctx context.Context, f func(tx pgx.Tx) error) error {
	var err error
	for range 5 {
		if err = d.tx(ctx, f); !errors.Is(err, errMoved) {
			break
		}
	}
	return err
}

// errMoved restarts a movedTx: under its locks, the transaction has found more rows that the
// lock order requires to be locked first.
var errMoved = errors.New("rows changed before they were locked")

// leaderTx is tx for a write of the leader. It fails with ErrStaleEpoch if the term is over;
// the fence keeps the term from ending before the transaction does.
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

// readTx runs f read-only on one snapshot of the database.
func (d *core) readTx(ctx context.Context, f func(tx pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, d.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, f)
}

// aged runs a query with the columns of Aged, in the order of the fields.
func (d *core) aged(ctx context.Context, what, sql string, args namedArgs) ([]Aged, error) {
	rows, err := d.pool.Query(ctx, sql, args)
	if err != nil {
		return nil, mapError(err, what)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Aged])
	return list, mapError(err, what)
}

// Aged is a job with its state and the time since the job entered that state.
type Aged struct {
	ID      berth.JobID
	Attempt int
	State   berth.State
	Age     time.Duration // in State, unless the query defines it otherwise
}
