package postgres

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// takeOver is how long a start waits for the end of an earlier server on the same data: the
// postmaster of a killed starter shuts down in the background, and backends outlive a killed
// postmaster for a moment. On a crowded machine each takes more than a minute.
const takeOver = 5 * time.Minute

// Cluster is a running server. Its methods may be called concurrently.
type Cluster struct {
	opts     Options
	layout   layout
	account  account
	binaries binaries
	password string
	port     int

	mu     sync.Mutex // held for the whole of a start, stop or kill
	proc   *process
	lock   *os.File
	closed bool
}

// Start creates a cluster in Dir if necessary, starts its server, and returns when the server
// answers queries. It gives up when ctx ends; once started, the server runs until Stop or the end
// of this process.
func Start(ctx context.Context, opts Options) (*Cluster, error) {
	if err := opts.validate(); err != nil {
		return nil, err
	}
	opts = opts.withDefaults()
	dir, err := filepath.Abs(opts.Dir)
	if err != nil {
		return nil, err
	}
	c := &Cluster{opts: opts, layout: layout{dir: dir}, port: opts.Port}
	if err := c.prepare(ctx); err != nil {
		if c.lock != nil {
			unlock(c.lock)
		}
		return nil, fmt.Errorf("postgres in %s: %w", dir, err)
	}
	if err := c.launch(ctx); err != nil {
		unlock(c.lock)
		return nil, fmt.Errorf("postgres in %s: %w", dir, err)
	}
	c.opts.Port = c.port // a port that was free once is kept for restarts
	return c, nil
}

// prepare creates the missing parts of the folder, so that a server can start.
func (c *Cluster) prepare(ctx context.Context) error {
	acct, err := accountFor(c.layout.data())
	if err != nil {
		return err
	}
	c.account = acct
	if err := acct.ensureDir(c.layout.dir); err != nil {
		return err
	}
	if c.lock, err = lockDir(c.layout); err != nil {
		return err
	}
	major, err := dataVersion(c.layout)
	if err != nil {
		return err
	}
	if c.binaries, err = findBinaries(ctx, c.opts.BinDir, major); err != nil {
		return err
	}
	if major == "" {
		if err := initialise(ctx, c.layout, acct, c.binaries, c.opts.Volatile); err != nil {
			return fmt.Errorf("make data folder: %w", err)
		}
		c.opts.Logger.Info("postgres data folder created", "dir", c.layout.data(), "version", c.binaries.major,
			"user", acct.name)
	}
	if c.password, err = readPassword(c.layout); err != nil {
		return err
	}
	if err := os.Mkdir(c.layout.socket(), 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return acct.own(c.layout.socket())
}

// URL returns a connection string for the database, including the password.
func (c *Cluster) URL(database string) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword(superuser, c.password),
		Host:     "127.0.0.1:" + strconv.Itoa(c.Port()),
		Path:     "/" + database,
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// Port is where the server listens on 127.0.0.1. A Restart keeps it.
func (c *Cluster) Port() int { return c.port }

// CreateDatabase creates the database unless one of this name exists.
func (c *Cluster) CreateDatabase(ctx context.Context, name string) error {
	conn, err := pgx.Connect(ctx, c.URL("postgres"))
	if err != nil {
		return fmt.Errorf("create database %s: %w", name, err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	_, err = conn.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize())
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code == duplicateDatabase {
		return nil
	}
	if err != nil {
		return fmt.Errorf("create database %s: %w", name, err)
	}
	return nil
}

// duplicateDatabase is duplicate_database of PostgreSQL's appendix A.
const duplicateDatabase = "42P04"

// Exited returns a channel that is closed when the present server process has ended, for any
// reason. A Restart starts another process with another channel.
func (c *Cluster) Exited() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.proc.exited
}

// Restart starts the server again, on the same port, after a crash or a Kill. It does nothing
// while the server runs.
func (c *Cluster) Restart(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return fmt.Errorf("restart postgres in %s: it was stopped", c.layout.dir)
	}
	if c.proc.running() {
		return nil
	}
	if err := c.launch(ctx); err != nil {
		return fmt.Errorf("restart postgres in %s: %w", c.layout.dir, err)
	}
	return nil
}

// Kill ends the server with SIGKILL, as a crash would, and returns when the process is gone. The
// folder stays locked: follow with Restart or Stop.
func (c *Cluster) Kill() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.proc.signal(syscall.SIGKILL)
	<-c.proc.exited
}

// Stop shuts the server down, open connections cut, and frees the folder. When
// ctx ends first it kills the server, which costs a recovery at the next start
// but no data, and returns ctx's error. A second Stop does nothing.
func (c *Cluster) Stop(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	defer unlock(c.lock)
	c.proc.signal(syscall.SIGINT) // "fast": roll back, checkpoint, end
	select {
	case <-c.proc.exited:
		c.opts.Logger.Info("postgres stopped", "dir", c.layout.dir)
		return nil
	case <-ctx.Done():
		c.proc.signal(syscall.SIGKILL)
		<-c.proc.exited
		return fmt.Errorf("stop postgres in %s: killed it: %w", c.layout.dir, ctx.Err())
	}
}
