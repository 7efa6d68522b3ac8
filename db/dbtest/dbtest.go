package dbtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"berth/db"
	"berth/internal/devstack/postgres"
)

// shared is the cluster of this test process. Package state is the exception in Berth:
// the tests of a package have no common owner that could hold the cluster.
var shared struct {
	once      sync.Once
	cluster   *postgres.Cluster
	strategy  string // STRATEGY clause of CREATE DATABASE, or ""
	err       error
	migrate   sync.Once
	migrated  error
	databases atomic.Int64
	admins    chan *pgx.Conn // idle connections that create and drop databases
	pipe      *os.File       // closed by the end of the process; see makeDir
}

// patience bounds every call. It is long because machines that run tests are busy, and
// the first call creates the cluster.
const patience = 10 * time.Minute

// Patience is the longest idle time of a transaction in a test, a leader's included. A
// busy machine may suspend the test process for long; in production the server ends an
// idle transaction within seconds.
const Patience = 10 * time.Minute

// template is the migrated database that the others are copied from.
const template = "berth_template"

// URL returns a connection string for a fresh, migrated, empty database, which
// is dropped when the test ends.
func URL(t testing.TB) string {
	t.Helper()
	url := migrated(t)
	if err := run(url, identity); err != nil {
		t.Fatalf("dbtest: give the copy an identity of its own: %v", err)
	}
	return url
}

// identity gives the copy of a database an identity of its own.
const identity = `UPDATE cluster SET id = replace(gen_random_uuid()::text, '-', '')`

// migrated is URL without the identity of its own.
func migrated(t testing.TB) string {
	t.Helper()
	c := cluster(t)
	shared.migrate.Do(func() { shared.migrated = migrateTemplate(c) })
	if shared.migrated != nil {
		t.Fatalf("dbtest: %v", shared.migrated)
	}
	return create(t, c, template)
}

// EmptyURL is URL without the migrations, for tests of the migrations.
func EmptyURL(t testing.TB) string {
	t.Helper()
	return create(t, cluster(t), "template0")
}

// Open opens the database at url and closes it when the test ends. The leader's
// transactions may be idle for Patience, which replaces o.LeaderIdle.
func Open(t testing.TB, url string, o db.Options) *db.DB {
	t.Helper()
	o.LeaderIdle = Patience
	d, err := db.Open(context.Background(), url, o)
	if err != nil {
		t.Fatalf("dbtest: %v", err)
	}
	t.Cleanup(d.Close)
	return d
}

// DB opens a fresh database as Open does. It is cheaper than Open with an address from URL by one connection, which
// costs the server more than most statements of a test.
func DB(t testing.TB, o db.Options) *db.DB {
	t.Helper()
	d := Open(t, migrated(t), o)
	if _, err := d.Pool().Exec(context.Background(), identity); err != nil {
		t.Fatalf("dbtest: give the copy an identity of its own: %v", err)
	}
	return d
}

// New returns a pool on a fresh database from URL. The pool is closed before the
// database is dropped.
func New(t testing.TB) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), migrated(t))
	if err == nil {
		_, err = pool.Exec(context.Background(), identity)
	}
	return closing(t, pool, err)
}

// Beside returns another pool on the database of d, for statements of the test itself. A
// test that holds a lock while others wait needs it: d's own pool admits fewer callers while
// statements are slow, and the test would wait for a turn that only the end of its own
// transaction frees.
func Beside(t testing.TB, d *db.DB) *pgxpool.Pool {
	t.Helper()
	cfg := d.Pool().Config()
	cfg.ConnConfig.Tracer = nil // it admits the callers
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	return closing(t, pool, err)
}

// closing closes pool when the test ends.
func closing(t testing.TB, pool *pgxpool.Pool, err error) *pgxpool.Pool {
	t.Helper()
	if err != nil {
		t.Fatalf("dbtest: %v", err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// cluster returns the cluster of this process and starts it on the first call. A failed
// start fails every later test as well, without another attempt.
func cluster(t testing.TB) *postgres.Cluster {
	t.Helper()
	shared.once.Do(func() { shared.cluster, shared.err = start() })
	if shared.err != nil {
		t.Fatalf("dbtest: %v", shared.err)
	}
	return shared.cluster
}

// start removes the folders of dead test processes and starts a cluster in a new one.
func start() (*postgres.Cluster, error) {
	sweep()
	dir, err := makeDir()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := postgres.Start(ctx, postgres.Options{
		Dir:           dir,
		BinDir:        os.Getenv("PG_BINDIR"),
		Volatile:      true,
		SharedBuffers: "64MB",
		// A stack of package e2e has up to 130: Temporal's services 100, the control plane 16, the test the rest.
		// Up to eight run at a time.
		MaxConnections: 1100,
	})
	if err != nil {
		return nil, err
	}
	shared.admins = make(chan *pgx.Conn, 8)
	shared.strategy, err = strategy(ctx, c)
	return c, err
}

// strategy returns the clause for the cheapest copy of a database. PostgreSQL 15 and
// later write every page of a copy to the WAL by default; file_copy avoids that. Older
// servers know no such clause and get "".
func strategy(ctx context.Context, c *postgres.Cluster) (string, error) {
	conn, err := pgx.Connect(ctx, c.URL("postgres"))
	if err != nil {
		return "", err
	}
	defer conn.Close(ctx)
	var version int
	if err := conn.QueryRow(ctx, "SELECT current_setting('server_version_num')::int").Scan(&version); err != nil ||
		version < 150000 {
		return "", err
	}
	return " STRATEGY file_copy", nil
}

// migrateTemplate creates and migrates the template database.
func migrateTemplate(c *postgres.Cluster) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := c.CreateDatabase(ctx, template); err != nil {
		return err
	}
	if err := db.Migrate(ctx, c.URL(template)); err != nil {
		return fmt.Errorf("migrate the template database: %w", err)
	}
	return nil
}

// create copies the source database and returns the copy's URL. The copy is dropped when
// the test ends, even if the test left connections open.
func create(t testing.TB, c *postgres.Cluster, source string) string {
	t.Helper()
	name := fmt.Sprintf("test_%d", shared.databases.Add(1))
	copies := func() error { return admin(c, "CREATE DATABASE "+name+" TEMPLATE "+source+shared.strategy) }
	if err := onceUnused(copies); err != nil {
		t.Fatalf("dbtest: create database: %v", err)
	}
	t.Cleanup(func() {
		drops := func() error { return admin(c, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)") }
		if err := onceUnused(drops); err != nil {
			t.Errorf("dbtest: drop database: %v", err)
		}
	})
	return c.URL(name) + patient
}

// patient holds URL parameters with long timeouts, for a test process that the machine
// suspends. Leaders set their own timeout and ignore the URL; see Open.
var patient = fmt.Sprintf("&connect_timeout=%d&idle_in_transaction_session_timeout=%d", int(patience.Seconds()),
	Patience.Milliseconds())

// onceUnused calls f again while the server answers that other connections use the database. The server waits 5
// seconds for the processes of closed connections, and a busy machine may end them later.
func onceUnused(f func() error) error {
	for late := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		err := f()
		answer, ok := errors.AsType[*pgconn.PgError](err)
		if !ok || answer.Code != "55006" || time.Now().After(late) { // object_in_use
			return err
		}
	}
}

// admin runs one statement outside any test database. The test's own context
// is over when its clean-up runs, so the statement has one of its own.
func admin(c *postgres.Cluster, sql string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var conn *pgx.Conn
	var err error
	select {
	case conn = <-shared.admins:
	default:
		if conn, err = pgx.Connect(ctx, c.URL("postgres")); err != nil {
			return err
		}
	}
	if _, err = conn.Exec(ctx, sql); err == nil {
		select {
		case shared.admins <- conn:
			return nil
		default:
		}
	}
	_ = conn.Close(ctx)
	return err
}

// run executes one statement on a connection of its own.
func run(url, sql string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, sql)
	return err
}
