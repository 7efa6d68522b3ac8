package db

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"berth/internal/lib/overload"
)

// turns decides which caller gets the next connection of the pool. The pool's own queue is
// first come, first served: the settlement of a job would wait behind a thousand first
// steps. Users' reads, users' changes and look-ups of tokens have connections of their own,
// and everything else has the rest, served by class. Connections for leases belong to another
// pool and never wait.
//
// turns is the pool's tracer, so that no statement can bypass it.
type turns struct {
	reads   *overload.Limiter
	writes  *overload.Limiter
	lookups *overload.Limiter
	work    *overload.Limiter
	sweeps  *overload.Limiter // a sweep has a permit of this one and one of work
	shares  Shares
}

// Shares is the division of the pool's connections by purpose.
type Shares struct {
	Reads     int // for users' reads, also while the database is slow
	Writes    int // for users' changes, such as submits and cancels, also while it is slow
	Lookups   int // for look-ups of tokens (class Vital), also while it is slow
	Work      int // for everything else
	LeastWork int // of Work, remaining while the database is slow
	Sweeps    int // of Work, the most that sweeps may hold at once
}

// slowHold is the time for which a connection may be held before the database counts as
// slow. A sweep is exempt, since it may read many rows.
const slowHold = 500 * time.Millisecond

// allWait is more than the number of calls that can ever wait: callers bound their own
// waits.
const allWait = 1 << 20

// mostLookups bounds the connections for look-ups of tokens. Look-ups are batched: few
// statements look all tokens up. Two connections let the others go on while one hangs.
const mostLookups = 2

// sharesOf divides conns connections: a quarter for users' changes, a quarter for work, an
// eighth and at most mostLookups for look-ups of tokens, and the others for users' reads. Each
// share has at least one connection.
//
// Every call waits for the look-up of its token first. In the share of another class, that wait
// would be as long as the queue of that class (docs/adr/0115-users-calls-wait-for-no-work.md).
//
// Few connections serve more work than many: beyond twice the cores of the server,
// statements only wait for each other. On two cores, 4 connections for work settled 1.3 to 1.7
// times as many jobs a second as 16 (docs/adr/0031-limits-follow-dependencies.md).
func sharesOf(conns int) Shares {
	s := Shares{Writes: max(1, conns/4), Work: max(1, conns/4), Lookups: max(1, min(mostLookups, conns/8))}
	s.Reads = max(1, conns-s.Writes-s.Work-s.Lookups)
	s.LeastWork = max(1, s.Work*3/4)
	s.Sweeps = max(1, s.Work/2)
	return s
}

// newTurns divides conns connections.
func newTurns(conns int) *turns {
	s := sharesOf(conns)
	limiter := func(name string, least, n int) *overload.Limiter {
		return overload.New(overload.Options{Name: name, Min: least, First: n, Max: n, Tolerance: slowHold,
			Queue: allWait})
	}
	// The limits of users' calls are fixed: one tenant's calls that wait for a lock look like
	// a slow database, and a lower limit would take connections from the other tenants.
	return &turns{
		reads:   limiter("postgres_reads", s.Reads, s.Reads),
		writes:  limiter("postgres_writes", s.Writes, s.Writes),
		lookups: limiter("postgres_lookups", s.Lookups, s.Lookups),
		work:    limiter("postgres", s.LeastWork, s.Work),
		sweeps:  limiter("postgres_sweeps", s.Sweeps, s.Sweeps),
		shares:  s,
	}
}

// turn is the right to one connection.
type turn struct {
	permit *overload.Permit
	sweep  *overload.Permit // nil unless a sweep has the turn
}

// take waits for a turn of that class.
func (t *turns) take(ctx context.Context, class overload.Class) (turn, error) {
	switch class {
	case overload.Read:
		p, err := t.reads.Acquire(ctx, class)
		return turn{permit: p}, err
	case overload.Write:
		p, err := t.writes.Acquire(ctx, class)
		return turn{permit: p}, err
	case overload.Vital:
		p, err := t.lookups.Acquire(ctx, class)
		return turn{permit: p}, err
	case overload.Sweep:
		s, err := t.sweeps.AcquireSlow(ctx, class)
		if err != nil {
			return turn{}, err
		}
		p, err := t.work.AcquireSlow(ctx, class)
		if err != nil {
			s.Drop()
		}
		return turn{permit: p, sweep: s}, err
	default:
		p, err := t.work.Acquire(ctx, class)
		return turn{permit: p}, err
	}
}

// done ends the turn of a connection that was used.
func (x turn) done() {
	x.permit.Done(nil)
	if x.sweep != nil {
		x.sweep.Done(nil)
	}
}

// drop ends a turn without a connection.
func (x turn) drop() {
	x.permit.Drop()
	if x.sweep != nil {
		x.sweep.Drop()
	}
}

// turnKey is the context key of the turn between TraceAcquireStart and TraceAcquireEnd.
type turnKey struct{}

// turnData is the key of the turn in a connection's custom data.
const turnData = "berth.turn"

// TraceAcquireStart waits for a turn of the caller's class. If no turn is granted, it
// returns a canceled context, with which the pool fails the acquisition.
func (t *turns) TraceAcquireStart(ctx context.Context, _ *pgxpool.Pool,
	_ pgxpool.TraceAcquireStartData) context.Context {
	x, err := t.take(ctx, overload.ClassOf(ctx))
	if err != nil {
		ctx, cancel := context.WithCancelCause(ctx)
		cancel(err)
		return ctx
	}
	return context.WithValue(ctx, turnKey{}, x)
}

// TraceAcquireEnd attaches the turn to the connection, or drops the turn if the pool
// returned no connection.
func (t *turns) TraceAcquireEnd(ctx context.Context, _ *pgxpool.Pool, data pgxpool.TraceAcquireEndData) {
	x, ok := ctx.Value(turnKey{}).(turn)
	if !ok {
		return
	}
	if data.Conn == nil {
		x.drop()
		return
	}
	data.Conn.PgConn().CustomData()[turnData] = x
}

// TraceRelease ends the turn when the connection returns to the pool.
func (t *turns) TraceRelease(_ *pgxpool.Pool, data pgxpool.TraceReleaseData) {
	held := data.Conn.PgConn().CustomData()
	if x, ok := held[turnData].(turn); ok {
		delete(held, turnData)
		x.done()
	}
}

// TraceQueryStart does nothing; pgx requires a tracer to have this method.
func (t *turns) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

// TraceQueryEnd does nothing; pgx requires a tracer to have this method.
func (t *turns) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// AwaitTurn returns when a statement of the context's class would get a connection. It
// takes none: a caller whose work costs the database later waits here for its turn.
func (d *DB) AwaitTurn(ctx context.Context) error {
	x, err := d.turns.take(ctx, overload.ClassOf(ctx))
	if err == nil {
		x.drop()
	}
	return err
}

// Limiters returns the limiters of this process's statements: for everything but leases and
// users' calls, for the sweeps among that, for users' reads, for users' changes, and for
// look-ups of tokens.
func (d *DB) Limiters() []*overload.Limiter {
	return []*overload.Limiter{d.turns.work, d.turns.sweeps, d.turns.reads, d.turns.writes, d.turns.lookups}
}
