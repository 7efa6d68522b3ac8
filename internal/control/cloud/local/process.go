package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"berth/internal/control/cloud"
	"berth/internal/lib/subprocess"
)

// launcher marks the machine as started and becomes its first process. The lock is file 3, which all
// children inherit.
const launcher = `: >"$0" && exec "$@"`

// hold takes the lock of the machine's process. held: a process of the machine holds it.
func (m machine) hold() (lock *os.File, held bool, err error) {
	lock, err = os.OpenFile(m.path("alive"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, false, err
	}
	err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		return lock, false, nil
	}
	_ = lock.Close()
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, true, nil
	}
	return nil, false, fmt.Errorf("lock %s: %w", m.path("alive"), err)
}

// engineFolder is the folder of an instance with its container engine.
const engineFolder = "engine"

// destroyEngine ends the container engine of an instance whose process has ended. A machine that was started
// without an engine has no such folder.
func (m machine) destroyEngine(ctx context.Context) error {
	if _, err := os.Stat(m.path(engineFolder)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if m.engines == nil {
		return fmt.Errorf("%s: the instance has a container engine of its own, and this call has --engines=host",
			m.path(engineFolder))
	}
	return m.engines.Destroy(ctx, m.path(engineFolder))
}

// state returns the instance with its state, and whether its process was ever started. When it first sees the
// end of the process, it ends the container engine and stores the time.
func (m machine) state(ctx context.Context, r *record) (i cloud.Instance, started bool, err error) {
	lock, held, err := m.hold()
	if err != nil {
		return i, false, err
	}
	if lock != nil {
		defer lock.Close()
	}
	_, err = os.Stat(m.path("started"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return i, false, err
	}
	marked := err == nil
	i = r.Instance
	switch {
	case held && r.Ending:
		i.State = cloud.Ending
	case held && marked:
		i.State = cloud.Running
	case held || !marked && !r.Ending:
		i.State = cloud.Pending
	default:
		i.State, i.Reason = cloud.Terminated, "terminated"
		if !r.Ending {
			i.Reason = "ended by itself"
		}
		if r.EndedAt.IsZero() {
			if err := m.destroyEngine(ctx); err != nil {
				return i, true, err
			}
			r.EndedAt = time.Now().UTC()
			return i, true, m.store(*r)
		}
	}
	return i, held || marked, nil
}

// start starts the command in a session of its own, so that it outlives the process group of this one. The
// caller holds the lock of the folder and has found that no process of the machine lives.
func (m machine) start(command []string, b cloud.Bootstrap) error {
	lock, held, err := m.hold()
	if err != nil || held {
		return err
	}
	defer lock.Close()
	log, err := os.OpenFile(m.path("log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command("/bin/sh", append([]string{"-c", launcher, m.path("started")}, command...)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", log, log
	cmd.ExtraFiles = []*os.File{lock}
	cmd.Env = append(subprocess.BaseEnv(), "BERTH_JOIN_TOKEN="+b.JoinToken)
	if b.CA != "" {
		if err := os.WriteFile(m.path("ca.pem"), []byte(b.CA), 0o600); err != nil {
			return err
		}
		cmd.Env = append(cmd.Env, "SSL_CERT_FILE="+m.path("ca.pem"))
	}
	// Without /etc/berth/agent.yaml, which is of an agent that is installed on this host.
	cmd.Env = append(cmd.Env, "BERTH_SETTINGS_FILE=")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() { _ = cmd.Wait() }() // a long-lived caller leaves no zombies
	return nil
}

// kill kills all processes of the machine and waits until they have ended.
func (m machine) kill(ctx context.Context) error {
	for {
		lock, held, err := m.hold()
		if err != nil {
			return err
		}
		if !held {
			return lock.Close()
		}
		if err := m.killHolders(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("processes of the machine still run: %w", context.Cause(ctx))
		case <-time.After(pause):
		}
	}
}

// killHolders kills each process that has the machine's lock open. Process ids are used
// again, but the file belongs to this machine alone.
func (m machine) killHolders() error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err == nil && pid != os.Getpid() && m.opens(pid) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	return nil
}

// opens reports whether a process has the machine's lock open.
func (m machine) opens(pid int) bool {
	want, err := filepath.EvalSymlinks(m.path("alive"))
	if err != nil {
		return false
	}
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, entry := range entries {
		if file, err := os.Readlink(filepath.Join(dir, entry.Name())); err == nil && file == want {
			return true
		}
	}
	return false
}
