package db

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"berth"
)

// Names of rows in leases. Only the leader is elected: the others are marks in time, see
// RenewBeacon, HoldVerdicts and RecordCount.
const (
	LeaseLeader = "leader"
	leaseAPI    = "api"
	leaseGrace  = "grace"
	leaseFreeze = "freeze"
	leaseCount  = "count"
)

// backAt is the value of back_at for a statement that renews the lease l of a machine: the first renewal after a
// silence that was longer than the lease records the return of the machine. It must be written together with seen_at,
// since from then on the machine is no longer silent; its state may change later or not at all.
const backAt = `
	CASE WHEN l.seen_at < clock_timestamp() - @ttl::interval THEN clock_timestamp() ELSE l.back_at END`

// Term is a period of leadership. Every write of a leader names its term and fails once the
// term is over.
type Term struct {
	Name   string
	Holder string
	Epoch  int64 // grows with each change of the holder

	idle time.Duration // longest pause between statements of a write; see Options.LeaderIdle
}

// Lease is a process's bid for a named lease. It has its own connection, so that an exhausted
// pool never costs a leader its lease. It is not for concurrent use.
type Lease struct {
	db     *core
	name   string
	holder string
	conn   *pgx.Conn
}

// OpenLease prepares a bid for the named lease, without connecting. holder must be random per
// process: a restarted process is a new holder.
func (d *Leader) OpenLease(name, holder string) *Lease {
	return &Lease{db: d.core, name: name, holder: holder}
}

// Acquire takes the lease if it has expired or never had a holder, and renews it if this
// holder has it. ok is false while another process holds it. Only the database's clock
// counts. Acquire gives up after half of ttl, but not before one second. Connecting has no
// such limit: otherwise no process could ever take the lead of a slow database.
func (l *Lease) Acquire(ctx context.Context, ttl time.Duration) (term Term, ok bool, err error) {
	conn, err := l.connect(ctx)
	if err != nil {
		return Term{}, false, err
	}
	ctx, cancel := context.WithTimeout(ctx, max(ttl/2, time.Second))
	defer cancel()
	term = Term{Name: l.name, Holder: l.holder, idle: l.db.leaderIdle}
	args := namedArgs{"name": l.name, "holder": l.holder, "ttl": ttl}
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

// renewLead changes no column of a unique index, so it does not wait for writes of its own
// term (see fence): a leader whose write waits for a locked table keeps the lead. takeLead
// changes the epoch and does wait for these writes, so no write of the old term commits after
// the new term begins. It does not lock a row that it cannot take. A quarantined cluster elects no holder: no
// lease of the time before the restore lasts, so there is no leader and no sweep.
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
		  AND NOT ` + quarantined + `
		ON CONFLICT (name) DO UPDATE
		SET holder = excluded.holder, epoch = l.epoch + 1, expires_at = excluded.expires_at
		WHERE l.expires_at < clock_timestamp()
		RETURNING l.epoch`
)

// Close releases the lease, so that a standby need not wait for its expiry. A holder that has
// lost the lease changes nothing.
func (l *Lease) Close(ctx context.Context) error {
	conn, err := l.connect(ctx)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, `
		UPDATE leases
		SET expires_at = clock_timestamp() - interval '1 ms'
		WHERE name = @name AND holder = @holder`,
		namedArgs{"name": l.name, "holder": l.holder})
	l.disconnect()
	return mapError(err, "lease "+l.name)
}

// connect returns the open connection, or a new one after a failure.
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

// disconnect drops the connection. The next call connects again.
func (l *Lease) disconnect() {
	if l.conn != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = l.conn.Close(ctx)
		l.conn = nil
	}
}

// fence is the first statement of every write of a leader. It keeps the term from ending
// before the transaction does, and sets the idle limit that cuts off a leader which freezes
// inside it. FOR KEY SHARE conflicts with a change of the epoch (unique index leases_term)
// and with nothing less, so renewals pass. No row: the term is over.
const fence = `
	SELECT set_config('idle_in_transaction_session_timeout', @idle, true)
	FROM leases
	WHERE name = @name AND holder = @holder AND epoch = @epoch
	FOR KEY SHARE`

// leaderIdle is the default of Options.LeaderIdle.
const leaderIdle = time.Second

// args returns the arguments of fence.
func (t Term) args() namedArgs {
	return namedArgs{"name": t.Name, "holder": t.Holder, "epoch": t.Epoch, "idle": idleSetting(t.idle)}
}

// errDeposed returns the error of a leader's write after the end of its term.
func (t Term) errDeposed() error {
	return berth.ErrStaleEpoch("term %d of lease %s is over", t.Epoch, t.Name)
}

// BeaconTTL is the longest time for which no API replica may be able to write before it
// counts as a gap. In a gap no machine can renew its lease, so silence proves nothing. With a
// shorter suspect time the gap is shorter too; see Silence.Beacon.
const BeaconTTL = 10 * time.Second

// beaconAhead is more than any beacon ends ahead of the present. One that ends later was
// written before the database's clock was set back, and would outlast an outage of the API.
const beaconAhead = 2 * BeaconTTL

// lapsed is true for a beacon (row of leases) that says nothing about the present: no API
// replica renewed it in time, or the database's clock was set back since.
const lapsed = `NOT expires_at BETWEEN clock_timestamp() AND clock_timestamp() + @ahead::interval`

// RenewBeacon records that an API replica can renew leases of machines. Its first part
// updates no lease, but waits for a lock on the table as a renewal would. Each replica calls
// it every few seconds. The first call after a gap, which is longer than ttl, starts the
// grace in which no machine is declared lost. A clock of the database that was set back counts
// as a gap (see lapsed), and its grace replaces one that would end too late.
func (d *Leader) RenewBeacon(ctx context.Context, holder string, ttl, grace time.Duration) error {
	_, err := d.vital.Exec(ctx, `
		WITH writable AS (
			UPDATE machine_leases SET seq = seq WHERE machine_id = ''
		), was AS (
			SELECT `+lapsed+` AS lapsed, expires_at > clock_timestamp() AS ahead FROM leases WHERE name = @api
		), beat AS (
			INSERT INTO leases (name, holder, expires_at)
			VALUES (@api, @holder, clock_timestamp() + @ttl::interval)
			ON CONFLICT (name) DO UPDATE
			SET holder = excluded.holder, expires_at = excluded.expires_at
		)
		INSERT INTO leases AS l (name, holder, expires_at)
		SELECT @grace, @holder, clock_timestamp() + @length::interval
		FROM was
		WHERE was.lapsed
		ON CONFLICT (name) DO UPDATE
		SET holder = excluded.holder, epoch = l.epoch + 1, expires_at = CASE WHEN (SELECT ahead FROM was)
			THEN excluded.expires_at ELSE greatest(l.expires_at, excluded.expires_at) END`,
		namedArgs{
			"api": leaseAPI, "grace": leaseGrace, "holder": holder, "ttl": ttl, "length": grace, "ahead": beaconAhead,
		})
	return mapError(err, "beacon")
}

// isRefusal reports whether the database rejected the data (an integrity constraint, or a
// guard of Berth's triggers), rather than being unable to write.
func isRefusal(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (pg.Code[:2] == "23" || pg.Code[:2] == "BT")
}
