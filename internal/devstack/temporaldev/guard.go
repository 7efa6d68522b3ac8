package temporaldev

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// The times of a guard: the pause between two looks, the limit of one, and the number of refused looks in
// a row after which the databases belong to another server.
const (
	guardEvery   = time.Second
	guardLimit   = 10 * time.Second
	guardRefusal = 5
)

// guard holds a session-level advisory lock of PostgreSQL, by which exclusive servers take turns at the
// databases. Two servers at the same databases lose nothing, because Temporal fences its shards by a number in
// the database, but each takes the shards from the other, and work stands still.
//
// The database releases the lock with the session: at the end of this process, and some seconds after the end of
// its host, since the database asks a silent host whether it lives. A server that has lost its session takes the
// lock again, unless another one has it.
type guard struct {
	st     store
	log    *slog.Logger
	lost   chan struct{} // closed when another server has the lock
	cancel context.CancelFunc
	done   sync.WaitGroup
	conn   *pgx.Conn
	pid    uint32 // of the session that has, or had, the lock
}

// newGuard waits until no other server holds the lock, and keeps the lock until release.
func newGuard(ctx context.Context, st store, log *slog.Logger) (*guard, error) {
	g := &guard{st: st, log: log, lost: make(chan struct{})}
	told := false
	for {
		taken, err := g.take(ctx)
		switch {
		case err != nil:
			return nil, fmt.Errorf("lock of the databases: %w", err)
		case taken:
			run, cancel := context.WithCancel(context.WithoutCancel(ctx))
			g.cancel = cancel
			g.done.Go(func() { g.keep(run) })
			return g, nil
		case !told:
			told = true
			log.Info("another temporal server uses the databases, waiting for its end")
		}
		if err := pause(ctx, guardEvery); err != nil {
			return nil, fmt.Errorf("lock of the databases: another server holds it: %w", err)
		}
	}
}

// take opens a session and tries to lock. It ends a former session of this guard that the database
// has not missed yet.
func (g *guard) take(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, guardLimit)
	defer cancel()
	cfg := g.st.admin.Copy()
	cfg.RuntimeParams["application_name"] = "berth-temporal lock"
	// The database notices the loss of this host in 25 s.
	cfg.RuntimeParams["tcp_keepalives_idle"] = "10"
	cfg.RuntimeParams["tcp_keepalives_interval"] = "5"
	cfg.RuntimeParams["tcp_keepalives_count"] = "3"
	cfg.RuntimeParams["idle_session_timeout"] = "0"
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return false, err
	}
	const former = `
		SELECT count(pg_terminate_backend(pid))
		FROM pg_locks
		WHERE locktype = 'advisory' AND classid = hashtext('berth-temporal')::oid AND objid = hashtext($1)::oid
		  AND pid = $2`
	const lock = `SELECT pg_try_advisory_lock(hashtext('berth-temporal'), hashtext($1))`
	taken := false
	_, err = conn.Exec(ctx, former, g.st.prefix, int32(g.pid)) // process ids of Linux are below 2^22
	if err == nil {
		err = conn.QueryRow(ctx, lock, g.st.prefix).Scan(&taken)
	}
	if err != nil || !taken {
		_ = conn.Close(context.WithoutCancel(ctx)) // the session is of no use
		return false, err
	}
	g.conn, g.pid = conn, conn.PgConn().PID()
	return true, nil
}

// keep looks after the session until ctx ends or another server has the lock. A database that does not answer
// gives the lock to nobody.
func (g *guard) keep(ctx context.Context) {
	refused := 0
	for pause(ctx, guardEvery) == nil {
		if g.conn != nil && g.alive(ctx) {
			continue
		}
		if g.conn != nil {
			_ = g.conn.Close(ctx)
			g.conn = nil
			g.log.Warn("session with the lock of the temporal databases is lost, will lock again")
		}
		taken, err := g.take(ctx)
		switch {
		case err != nil:
			g.log.Debug("cannot lock the temporal databases, will retry", "err", err)
		case taken:
			refused = 0
			g.log.Info("temporal databases locked again")
		default:
			if refused++; refused >= guardRefusal {
				close(g.lost)
				return
			}
		}
	}
}

// alive reports whether the session with the lock answers.
func (g *guard) alive(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, guardLimit)
	defer cancel()
	return g.conn.Ping(ctx) == nil
}

// release ends the session and with it the lock. A nil guard holds none.
func (g *guard) release() {
	if g == nil {
		return
	}
	g.cancel()
	g.done.Wait()
	if g.conn != nil {
		ctx, cancel := context.WithTimeout(context.Background(), guardLimit)
		defer cancel()
		_ = g.conn.Close(ctx) // the end of the process closes it at the latest
		g.conn = nil
	}
}

// pause waits, or returns the error of a context that ends before.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
