package db

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"berth/internal/lib/overload"
)

// turns decide who gets the next connection of the pool: it has a queue that is
// first come, first served, in which a settled job would wait behind a thousand
// first steps. Two limits share the connections: reads of users have a third to
// themselves, everything else has the rest, by its class. Connections for leases
// are of another pool and never wait.
//
// It hangs on the pool as its tracer, so that no statement can go past it.
type turns struct {
	work   *overload.Limiter
	reads  *overload.Limiter
	shares Shares
}

// Shares are the connections of the pool by what they are for.
type Shares struct {
	Reads     int // for users' reads; always
	Work      int // for everything else
	LeastWork int // of Work, while the database is slow
}

// A connection that is held for longer than slowHold counts against the database,
// unless it is a sweep's, which may well read much.
const slowHold = 500 * time.Millisecond

// allWait is more than can ever wait: who waits too long is for callers to say.
const allWait = 1 << 20

func newTurns(conns int) *turns {
	s := Shares{Reads: max(1, conns/3)}
	s.Work = max(1, conns-s.Reads)
	s.LeastWork = (s.Work + 1) / 2
	limiter := func(name string, least, n int) *overload.Limiter {
		return overload.New(overload.Options{Name: name, Min: least, First: n, Max: n, Tolerance: slowHold,
			Queue: allWait})
	}
	// Reads do not give way: reads of one tenant that wait for a lock look like a slow
	// database, and would take connections from the other tenants.
	return &turns{work: limiter("postgres", s.LeastWork, s.Work), reads: limiter("postgres_reads", s.Reads, s.Reads),
		shares: s}
}

type permitKey struct{}

// permitData is the name under which a connection carries its permit.
const permitData = "berth.permit"

// TraceAcquireStart waits for the turn. Where the caller's context ends first,
// the pool finds that out.
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

// TraceAcquireEnd hangs the permit on the connection, or gives it back where
// there is none.
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

// TraceRelease ends the turn.
func (t *turns) TraceRelease(_ *pgxpool.Pool, data pgxpool.TraceReleaseData) {
	held := data.Conn.PgConn().CustomData()
	if p, ok := held[permitData].(*overload.Permit); ok {
		delete(held, permitData)
		p.Done(nil)
	}
}

// TraceQueryStart is there because a tracer has it.
func (t *turns) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

// TraceQueryEnd is there because a tracer has it.
func (t *turns) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// Limiters are what this process's statements run under: users' reads, and
// everything else but leases.
func (d *DB) Limiters() []*overload.Limiter { return []*overload.Limiter{d.turns.work, d.turns.reads} }
