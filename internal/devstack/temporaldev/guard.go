package temporaldev

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// The times of a guard: the pause between two looks, the limit of one, and the default of Options.LockGrace.
const (
	guardEvery = time.Second
	guardLimit = 10 * time.Second
	guardGrace = time.Minute
)

// guard holds a session-level advisory lock in the main database, by which exclusive servers take turns.
// Two servers at the same databases lose nothing, because Temporal fences its shards by a number in
// the database, but each takes the shards from the other, and work stands still.
//
// The database releases the lock with the session: at the end of this process, and within half a minute of the loss
// of its host (liveness). A server that has lost its session takes the lock again, unless another one has it.
type guard struct {
	st     store
	grace  time.Duration
	log    *slog.Logger
	lost   chan struct{} // closed when the lock is lost for good
	cancel context.CancelFunc
	done   sync.WaitGroup
	conn   *pgx.Conn
	former session // that has, or had, the lock
}

// session identifies a session of the database: process ids are used again.
type session struct {
	pid   int32
	start time.Time
}

// newGuard waits until no other server holds the lock, and keeps the lock until release. Errors of the database count
// as a lock that another one holds, except for the first one.
func newGuard(ctx context.Context, st store, grace time.Duration, log *slog.Logger) (*guard, error) {
	g := &guard{st: st, grace: cmp.Or(grace, guardGrace), log: log, lost: make(chan struct{})}
	for n := 0; ; n++ {
		taken, err := g.take(ctx)
		switch {
		case err != nil && n == 0:
			return nil, fmt.Errorf("lock of the databases: %w", err)
		case err != nil:
			log.Warn("cannot lock the temporal databases, will retry", "err", err)
		case taken:
			run, cancel := context.WithCancel(context.WithoutCancel(ctx))
			g.cancel = cancel
			g.done.Go(func() { g.keep(run) })
			return g, nil
		case n == 0:
			log.Info("another temporal server uses the databases, waiting for its end")
		}
		if err := pause(ctx, guardEvery); err != nil {
			return nil, fmt.Errorf("lock of the databases: another server holds it: %w", err)
		}
	}
}

// Statements of a guard. Advisory locks belong to a database, so the prefix of its name needs no part in the key.
const (
	endFormer = `
		SELECT count(pg_terminate_backend(l.pid))
		FROM pg_locks l JOIN pg_stat_activity a USING (pid)
		WHERE l.locktype = 'advisory' AND l.classid = hashtext('berth-temporal')::oid AND l.granted
		  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
		  AND a.pid = $1 AND a.backend_start = $2`
	tryLock  = `SELECT pg_try_advisory_lock(hashtext('berth-temporal'), 0)`
	identify = `SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()`
)

// take opens a session and tries to lock. It ends a former session of this guard that the database
// has not missed yet.
func (g *guard) take(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, guardLimit)
	defer cancel()
	workflows, _ := g.st.databases()
	conn, err := g.st.connect(ctx, workflows)
	if err != nil {
		return false, err
	}
	taken, now := false, session{}
	_, err = conn.Exec(ctx, `SET idle_session_timeout = 0`)
	if err == nil {
		_, err = conn.Exec(ctx, endFormer, g.former.pid, g.former.start)
	}
	if err == nil {
		err = conn.QueryRow(ctx, identify).Scan(&now.pid, &now.start)
	}
	if err == nil {
		err = conn.QueryRow(ctx, tryLock).Scan(&taken)
	}
	if err != nil || !taken {
		_ = conn.Close(context.WithoutCancel(ctx)) // the session is of no use
		return false, err
	}
	g.conn, g.former = conn, now
	return true, nil
}

// keep looks after the session until ctx ends, or the lock is lost for good. While the database is away, no other
// server can use it either, but this one cannot know whether it is alone with that: so it gives up after the grace.
func (g *guard) keep(ctx context.Context) {
	var since time.Time // without the lock
	for pause(ctx, guardEvery) == nil {
		if g.conn != nil && g.alive(ctx) {
			continue
		}
		if g.conn != nil {
			_ = g.conn.Close(ctx)
			g.conn, since = nil, time.Now()
			g.log.Warn("session with the lock of the temporal databases is lost, will lock again")
		}
		taken, err := g.take(ctx)
		switch {
		case taken:
			g.log.Info("temporal databases locked again")
		case ctx.Err() != nil:
			return
		case time.Since(since) > g.grace:
			g.log.Warn("temporal databases cannot be locked again", "for", g.grace, "err", err)
			close(g.lost)
			return
		default:
			g.log.Debug("cannot lock the temporal databases, will retry", "err", err)
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
