package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// maxLog is the size, in bytes, from which a start empties the log of earlier runs.
const maxLog = 16 << 20

// errOldServer says that a server on the same data has not ended yet.
var errOldServer = errors.New("an earlier server on the same data has not ended")

// errPortLost says that another program took the free port before the server did.
var errPortLost = errors.New("the port was taken before the server listened on it")

// launch starts the server and waits for its answer. It retries after errors that pass: an
// earlier server that is still ending, or a free port that another program took first.
func (c *Cluster) launch(ctx context.Context) error {
	began := time.Now()
	for {
		err := c.launchOnce(ctx)
		switch {
		case err == nil:
			c.opts.Logger.Info("postgres started", "dir", c.layout.dir, "port", c.port, "version", c.binaries.major,
				"took", time.Since(began).Round(time.Millisecond))
			return nil
		case !errors.Is(err, errOldServer) && !errors.Is(err, errPortLost):
			return err
		case time.Since(began) > takeOver:
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// launchOnce makes one attempt. A server that does not become ready is killed before launchOnce
// returns, and the error quotes its log.
func (c *Cluster) launchOnce(ctx context.Context) error {
	if err := clearStalePIDs(c.layout); err != nil {
		return err
	}
	port, err := c.pickPort()
	if err != nil {
		return err
	}
	log, offset, err := openLog(c.layout.log())
	if err != nil {
		return err
	}
	defer log.Close() // the child has its own copy

	args := append([]string{"-D", c.layout.data()}, c.opts.settings(port, c.layout.socketDir())...)
	cmd := exec.Command(c.binaries.postgres, args...)
	cmd.Env = environment()
	cmd.Dir = c.layout.data()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = c.account.sysProcAttr(syscall.SIGINT)
	p, err := startProcess(cmd)
	if err != nil {
		return err
	}
	c.proc = p
	if c.port != port { // only ever during Start: a Restart keeps the port, and URL reads it without the lock
		c.port = port
	}
	if err := c.awaitReady(ctx); err != nil {
		p.signal(syscall.SIGKILL)
		<-p.exited
		return explain(err, readFrom(c.layout.log(), offset))
	}
	return nil
}

// pickPort returns the port asked for, or a free one. While an earlier server
// may still be dying, its port is not "taken".
func (c *Cluster) pickPort() (int, error) {
	asked := c.opts.Port
	if asked == 0 {
		return freePort()
	}
	l, err := listen(asked)
	if err != nil {
		_, statErr := os.Stat(c.layout.pidFile())
		switch {
		case !errors.Is(err, syscall.EADDRINUSE):
			return 0, err
		case statErr == nil:
			return 0, fmt.Errorf("port %d on 127.0.0.1 is taken: %w", asked, errOldServer)
		default:
			return 0, fmt.Errorf("port %d on 127.0.0.1 is taken: name another, or 0 for a free one", asked)
		}
	}
	return asked, l.Close()
}

// The ports that a server chooses lie below the range from which the kernel chooses ports for
// connections: while a server that keeps its port is down, no connection takes that port.
const firstFreePort, freePorts = 10_000, 10_000

// freePort returns a port from that range without a listener, or any free
// port where the range has none.
func freePort() (int, error) {
	for range 100 {
		port := firstFreePort + rand.IntN(freePorts)
		if l, err := listen(port); err == nil {
			return port, l.Close()
		}
	}
	l, err := listen(0)
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

// listen listens on a port of the loopback interface.
func listen(port int) (net.Listener, error) {
	return net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
}

// connectLimit bounds one attempt to connect to a server that starts.
const connectLimit = 30 * time.Second

// awaitReady returns when the server accepts the cluster's password, which only this cluster's
// server does, or with an error when the process has ended.
func (c *Cluster) awaitReady(ctx context.Context) error {
	for {
		attempt, cancel := context.WithTimeout(ctx, connectLimit)
		conn, err := pgx.Connect(attempt, c.URL("postgres"))
		cancel()
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-c.proc.exited:
			return fmt.Errorf("server ended while starting: %w", c.proc.err)
		case <-ctx.Done():
			return fmt.Errorf("wait for the server: %w", ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// explain adds the server's log since its start to an error: the reason is written only to the
// log.
func explain(err error, said string) error {
	switch {
	case strings.Contains(said, `lock file "postmaster.pid" already exists`),
		strings.Contains(said, "pre-existing shared memory block"):
		err = fmt.Errorf("%w: %w", errOldServer, err)
	case strings.Contains(said, "could not create any TCP/IP sockets"):
		err = fmt.Errorf("%w: %w", errPortLost, err)
	}
	if said == "" {
		return err
	}
	return fmt.Errorf("%w; it said:\n%s", err, strings.TrimSpace(said[max(0, len(said)-maxSaid):]))
}

// maxSaid limits the part of the server's log that an error quotes, in bytes. The reason may
// stand before that part: hundreds of sessions of an earlier, killed server may have logged their
// end in between.
const maxSaid = 4096

// openLog opens the log for appending and returns its present length. A log beyond maxLog is
// emptied first.
func openLog(path string) (*os.File, int64, error) {
	flags := os.O_CREATE | os.O_WRONLY | os.O_APPEND
	if info, err := os.Stat(path); err == nil && info.Size() > maxLog {
		flags |= os.O_TRUNC
	}
	f, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		return nil, 0, err
	}
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		_ = f.Close()
		return nil, 0, err
	}
	return f, end, nil
}

// readFrom returns the file's text behind offset, and "" for an unreadable file: the text only
// adds to an error.
func readFrom(path string, offset int64) string {
	b, err := os.ReadFile(path)
	if err != nil || int64(len(b)) <= offset {
		return ""
	}
	return strings.TrimSpace(string(b[offset:]))
}
