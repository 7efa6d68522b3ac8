package db

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"berth"
)

// Names of rows in leases. The last two are no elections: see RenewBeacon.
const (
	LeaseLeader = "leader"
	leaseAPI    = "api"
	leaseGrace  = "grace"
)

// Term is a period of leadership. Every write of a leader names its own, and a
// deposed leader writes nothing.
type Term struct {
	Name   string
	Holder string
	Epoch  int64

	idle time.Duration // that a write of it may stand still
}

// Lease is a process's bid for a named lease. It has a connection of its own,
// so that a crowded pool costs nobody the lead. It is not for concurrent use.
type Lease struct {
	db     *core
	name   string
	holder string
	conn   *pgx.Conn
}

// OpenLease prepares a bid for the named lease. holder must be random per
// process: a restart is a new holder.
func (d *Leader) OpenLease(name, holder string) *Lease {
	return &Lease{db: d.core, name: name, holder: holder}
}

// Acquire takes the lease if nobody else holds it, or renews it if we do; ok
// tells which. Only the database's clock counts. It gives up after half of ttl or a second;
// a connection that must be made anew may take longer, or a slow database could
// never be led again.
func (l *Lease) Acquire(ctx context.Context, ttl time.Duration) (term Term, ok bool, err error) {
	conn, err := l.connect(ctx)
	if err != nil {
		return Term{}, false, err
	}
	ctx, cancel := context.WithTimeout(ctx, max(ttl/2, time.Second))
	defer cancel()
	term = Term{Name: l.name, Holder: l.holder, idle: l.db.leaderIdle}
	args := pgx.NamedArgs{"name": l.name, "holder": l.holder, "ttl": ttl}
	err = conn.QueryRow(ctx, renewLead, args).Scan(&term.Epoch)
	if errors.Is(err, pgx.ErrNoRows) {
		err = conn.QueryRow(ctx, takeLead, args).Scan(&term.Epoch)
	}
	if errors.Is(err, pgx.ErrNoRows) {
		return Term{}, false, nil
	}
	if err != nil {
		l.disconnect()
		return Term{}, false, mapError(err, "lease "+l.name)
	}
	return term, true, nil
}

// renewLead changes no column of a unique index, so it does not wait for the
// writes of its own term (see fence): a leader whose write waits for a locked
// table keeps the lead. takeLead changes the epoch, and does wait for them. It does
// not lock a row that it cannot take.
const (
	renewLead = `
		UPDATE leases
		SET expires_at = clock_timestamp() + @ttl::interval
		WHERE name = @name AND holder = @holder
		RETURNING epoch`
	takeLead = `
		INSERT INTO leases AS l (name, holder, expires_at)
		SELECT @name::text, @holder::text, clock_timestamp() + @ttl::interval
		WHERE NOT EXISTS (SELECT 1 FROM leases WHERE name = @name AND expires_at >= clock_timestamp())
		ON CONFLICT (name) DO UPDATE
		SET holder = excluded.holder, epoch = l.epoch + 1, expires_at = excluded.expires_at
		WHERE l.expires_at < clock_timestamp()
		RETURNING l.epoch`
)

// Close gives the lease back, so that a standby need not wait for it to expire.
func (l *Lease) Close(ctx context.Context) error {
	conn, err := l.connect(ctx)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, `
		UPDATE leases
		SET expires_at = clock_timestamp() - interval '1 ms'
		WHERE name = @name AND holder = @holder`,
		pgx.NamedArgs{"name": l.name, "holder": l.holder})
	l.disconnect()
	return mapError(err, "lease "+l.name)
}

func (l *Lease) connect(ctx context.Context) (*pgx.Conn, error) {
	if l.conn != nil && !l.conn.IsClosed() {
		return l.conn, nil
	}
	conn, err := pgx.ConnectConfig(ctx, l.db.pool.Config().ConnConfig.Copy())
	if err != nil {
		return nil, berth.Errorf(berth.CodeUnavailable, "lease %s: database does not answer: %v", l.name, err)
	}
	l.conn = conn
	return conn, nil
}

func (l *Lease) disconnect() {
	if l.conn != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = l.conn.Close(ctx)
		l.conn = nil
	}
}

// fence is the first statement of every write of a leader: it keeps the term
// from ending before the transaction does, and cuts off a leader that freezes
// inside it. FOR KEY SHARE conflicts with a change of the epoch (unique index
// leases_term) and with nothing less.
const fence = `
	SELECT set_config('idle_in_transaction_session_timeout', @idle, true)
	FROM leases
	WHERE name = @name AND holder = @holder AND epoch = @epoch
	FOR KEY SHARE`

// leaderIdle is how long a write of a leader may stand still.
const leaderIdle = time.Second

func (t Term) args() pgx.NamedArgs {
	return pgx.NamedArgs{"name": t.Name, "holder": t.Holder, "epoch": t.Epoch, "idle": idleSetting(t.idle)}
}

// errDeposed is what a leader's write ends with when its term is over.
func (t Term) errDeposed() error {
	return berth.ErrStaleEpoch("term %d of lease %s is over", t.Epoch, t.Name)
}

// BeaconTTL is how long no API replica may be able to write, at most, before
// that counts as a gap, during which silent machines prove nothing. Where
// machines are suspect sooner a gap is shorter too; see Silence.Beacon.
const BeaconTTL = 10 * time.Second

// RenewBeacon records that an API replica can write leases of machines: it
// updates none of them, but waits for a lock on the table as a renewal would. Each
// replica calls it every few seconds. The first call after a gap, which is longer
// than ttl, starts the grace in which no machine is declared lost.
func (d *Leader) RenewBeacon(ctx context.Context, holder string, ttl, grace time.Duration) error {
	_, err := d.vital.Exec(ctx, `
		WITH writable AS (
			UPDATE machine_leases SET seq = seq WHERE machine_id = ''
		), was AS (
			SELECT expires_at FROM leases WHERE name = @api
		), beat AS (
			INSERT INTO leases (name, holder, expires_at)
			VALUES (@api, @holder, clock_timestamp() + @ttl::interval)
			ON CONFLICT (name) DO UPDATE
			SET holder = excluded.holder, expires_at = excluded.expires_at
		)
		INSERT INTO leases AS l (name, holder, expires_at)
		SELECT @grace, @holder, clock_timestamp() + @length::interval
		FROM was
		WHERE was.expires_at < clock_timestamp()
		ON CONFLICT (name) DO UPDATE
		SET holder = excluded.holder, epoch = l.epoch + 1, expires_at = greatest(l.expires_at, excluded.expires_at)`,
		pgx.NamedArgs{"api": leaseAPI, "grace": leaseGrace, "holder": holder, "ttl": ttl, "length": grace})
	return mapError(err, "beacon")
}

// isRefusal reports whether the database refused what was written, rather than
// being unable to write.
func isRefusal(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (pg.Code[:2] == "23" || pg.Code[:2] == "BT")
}
