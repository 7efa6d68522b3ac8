package dockerd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// child is an engine that this process started. One goroutine waits for its end.
type child struct {
	pid    int
	exited chan struct{}
}

// boot starts an engine on a machine that has none.
func (d *Daemon) boot(ctx context.Context) error {
	m := d.machine
	program, err := lookUp("dockerd", "docker.io")
	if err != nil {
		return err
	}
	// The last engine of this process must be reaped first: as a zombie it would look alive.
	d.reap()
	if err := endOrphans(ctx, m); err != nil {
		return err
	}
	if err := os.MkdirAll(m.run(), 0o711); err != nil {
		return err
	}
	// No process of this machine runs at this point. A stale pid that another program has
	// got meanwhile would keep the engine from starting, and so would a containerd that
	// is dead but not reaped: the engine takes a zombie for a running containerd.
	for _, stale := range []string{m.pidFile(), filepath.Join(m.execDir(), "containerd", "containerd.pid")} {
		if err := os.Remove(stale); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	subnet, err := ensureNetwork(ctx, m)
	if err != nil {
		return fmt.Errorf("network: %w", err)
	}
	if err := writeConfig(m, d.opts, subnet); err != nil {
		return err
	}
	log, err := os.OpenFile(m.log(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close() // the engine has its own copy
	offset, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	began := time.Now()
	cmd := exec.Command(program, "--config-file", m.config())
	cmd.Env = environment()
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log
	// A session of its own: neither Ctrl-C nor a closed terminal reaches it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if d.opts.Tied {
		cmd.SysProcAttr.Pdeathsig = syscall.SIGTERM
	}
	if d.child, err = startChild(cmd); err != nil {
		return err
	}
	if err := awaitAnswer(ctx, m.socket(), d.child.running); err != nil {
		err = fmt.Errorf("%w; it said:\n%s", err, tail(m.log(), offset))
		// The caller's context may be the reason, and must not keep the machine running.
		return errors.Join(err, d.powerOff(context.WithoutCancel(ctx)))
	}
	d.adopted = false
	d.opts.Logger.Info("docker engine started", "socket", m.socket(), "subnet", subnet.String(),
		"took", time.Since(began).Round(time.Millisecond))
	return nil
}

// endOrphans ends a containerd without an engine: the new engine starts one on the same
// socket. Shims are left alone: the new engine looks for the shims of live-restored
// containers and ends all others itself.
func endOrphans(ctx context.Context, m machine) error {
	for {
		all, err := listProcesses()
		if err != nil {
			return err
		}
		left := 0
		for _, p := range all {
			if !p.zombie && (p.program() == "containerd" || p.program() == "dockerd") && p.belongs(m) {
				left++
				_ = syscall.Kill(p.pid, syscall.SIGKILL)
			}
		}
		if left == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("end the earlier engine: %w", ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// startChild starts cmd from a thread that lives as long as the child does: the
// kernel sends the parent-death signal when the starting THREAD ends.
func startChild(cmd *exec.Cmd) (*child, error) {
	c := &child{exited: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		c.pid = cmd.Process.Pid
		started <- nil
		_ = cmd.Wait() // how it ended is in its log
		close(c.exited)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return c, nil
}

// running reports whether the child has not ended yet.
func (c *child) running() bool {
	select {
	case <-c.exited:
		return false
	default:
		return true
	}
}

// pingLimit bounds one ping of an engine. The connection to an engine that ends is closed at once.
const pingLimit = time.Minute

// awaitAnswer returns when the engine answers on its socket, or with an error when the engine has
// ended.
func awaitAnswer(ctx context.Context, socket string, running func() bool) error {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	defer transport.CloseIdleConnections()
	client := http.Client{Transport: transport, Timeout: pingLimit}
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://docker/_ping", nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		if !running() {
			return errors.New("the engine ended while starting")
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the engine: %w", ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// tail returns the log behind offset, its last 4 KiB at most.
func tail(path string, offset int64) string {
	b, err := os.ReadFile(path)
	if err != nil || int64(len(b)) <= offset {
		return ""
	}
	b = b[offset:]
	return strings.TrimSpace(string(b[max(0, len(b)-4096):]))
}

// isZombie reads the state in /proc/pid/stat: "pid (name) S ...". The name may contain any
// character, so the state is searched after the last parenthesis.
func isZombie(stat []byte) bool {
	i := bytes.LastIndexByte(stat, ')')
	return i >= 0 && i+2 < len(stat) && stat[i+2] == 'Z'
}
