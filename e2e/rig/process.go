package rig

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// Process is a program under test, in a process group of its own.
type Process struct {
	PID    int
	Log    string   // file with its output
	path   string   // of the program
	env    []string // in addition to this process's
	args   []string
	exited chan struct{} // closed once it has ended and was reaped
	err    error         // how it ended; read only after exited is closed
}

// StartProcess starts a program that is no part of Berth. It dies with this one, however this one ends. Its output goes
// to the file log.
func StartProcess(log, path string, args ...string) (*Process, error) {
	return run(log, nil, path, args...)
}

// run starts a program that dies with this one, however this one ends. The
// kernel ties the child to the thread that started it, so the thread stays.
func run(log string, env []string, path string, args ...string) (*Process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close() // the child has its own
	cmd := exec.Command(path, args...)
	// Without the settings of an installation on this host, and whatever its disk has left.
	cmd.Env = append(append(os.Environ(), "BERTH_SETTINGS_FILE=", "BERTH_IMAGE_DISK_MARK=0"), env...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	p := &Process{Log: log, path: path, env: env, args: args, exited: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		p.PID = cmd.Process.Pid
		started <- nil
		p.err = cmd.Wait()
		close(p.exited)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// Running reports whether the process has not ended yet.
func (p *Process) Running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// Signal sends a signal. A process that has ended receives none.
func (p *Process) Signal(s syscall.Signal) {
	if p.Running() {
		_ = syscall.Kill(p.PID, s) // ESRCH: it has just ended
	}
}

// Kill ends the process as kill -9 does and waits for its end.
func (p *Process) Kill() {
	p.Signal(syscall.SIGKILL)
	<-p.exited
}

// end sends a signal and waits; a process that stays is killed.
func (p *Process) end(s syscall.Signal) error {
	p.Signal(s)
	select {
	case <-p.exited:
		return p.err
	case <-time.After(Patience):
		p.Kill()
		return fmt.Errorf("process %d did not end on %s within %s", p.PID, s, Patience)
	}
}

// Tail returns the last 4 KiB of a file, for messages.
func Tail(path string) string {
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return "(no file)"
	}
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-4096):])
}
