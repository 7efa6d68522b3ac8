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
// steps. Two limiters share the connections: users' reads have a third for themselves, and
// everything else has the rest, served by class. Connections for leases belong to another
// pool and never wait.
//
// turns is the pool's tracer, so that no statement can bypass it.
type turns struct {
	work   *overload.Limiter
	reads  *overload.Limiter
	shares Shares
}

// Shares is the division of the pool's connections by purpose.
type Shares struct {
	Reads     int // for users' reads, also while the database is slow
	Work      int // for everything else
	LeastWork int // of Work, remaining while the database is slow
}

// slowHold is the time for which a connection may be held before the database counts as
// slow. A sweep is exempt, since it may read many rows.
const slowHold = 500 * time.Millisecond

// allWait is more than the number of calls that can ever wait: callers bound their own
// waits.
const allWait = 1 << 20

// newTurns divides conns connections; each limiter gets at least one.
func newTurns(conns int) *turns {
	s := Shares{Reads: max(1, conns/3)}
	s.Work = max(1, conns-s.Reads)
	s.LeastWork = (s.Work + 1) / 2
	limiter := func(name string, least, n int) *overload.Limiter {
		return overload.New(overload.Options{Name: name, Min: least, First: n, Max: n, Tolerance: slowHold,
			Queue: allWait})
	}
	// The limit of reads is fixed: one tenant's reads that wait for a lock look like a slow
	// database, and a lower limit would take connections from the other tenants.
	return &turns{work: limiter("postgres", s.LeastWork, s.Work), reads: limiter("postgres_reads", s.Reads, s.Reads),
		shares: s}
}

// permitKey is the context key of the permit between TraceAcquireStart and TraceAcquireEnd.
type permitKey struct{}

// permitData is the key of the permit in a connection's custom data.
const permitData = "berth.permit"

// TraceAcquireStart waits for a permit of the caller's class. If no permit is granted, it
// returns a canceled context, with which the pool fails the acquisition.
func (t *turns) TraceAcquireStart(ctx context.Context, _ *pgxpool.Pool,
	_ pgxpool.TraceAcquireStartData) context.Context {
	class, limiter := overload.ClassOf(ctx), t.work
	acquire := limiter.Acquire
	switch class {
	case overload.Read:
		acquire = t.reads.Acquire
	case overload.Sweep:
		acquire = t.work.AcquireSlow
	}
	p, err := acquire(ctx, class)
	if err != nil {
		ctx, cancel := context.WithCancelCause(ctx)
		cancel(err)
		return ctx
	}
	return context.WithValue(ctx, permitKey{}, p)
}

// TraceAcquireEnd attaches the permit to the connection, or drops the permit if the pool
// returned no connection.
func (t *turns) TraceAcquireEnd(ctx context.Context, _ *pgxpool.Pool, data pgxpool.TraceAcquireEndData) {
	p, ok := ctx.Value(permitKey{}).(*overload.Permit)
	if !ok {
		return
	}
	if data.Conn == nil {
		p.Drop()
		return
	}
	data.Conn.PgConn().CustomData()[permitData] = p
}

// TraceRelease ends the permit when the connection returns to the pool.
func (t *turns) TraceRelease(_ *pgxpool.Pool, data pgxpool.TraceReleaseData) {
	held := data.Conn.PgConn().CustomData()
	if p, ok := held[permitData].(*overload.Permit); ok {
		delete(held, permitData)
		p.Done(nil)
	}
}

// TraceQueryStart does nothing; pgx requires a tracer to have this method.
func (t *turns) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

// TraceQueryEnd does nothing; pgx requires a tracer to have this method.
func (t *turns) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// Limiters returns the limiters of this process's statements: one for users' reads, and one
// for everything else except leases.
func (d *DB) Limiters() []*overload.Limiter { return []*overload.Limiter{d.turns.work, d.turns.reads} }
