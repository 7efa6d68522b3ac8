package proof_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// process is a program under test, in a process group of its own.
type process struct {
	pid    int
	killed bool          // by us
	exited chan struct{} // closed once it is gone and reaped
	err    error         // how it ended; read only after exited is closed
}

// startProcess starts a program that dies with the test run, however that ends.
// The kernel ties that to the thread that started it, so the thread stays.
func startProcess(log string, env []string, path string, args ...string) (*process, error) {
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
	p := &process{exited: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		p.pid = cmd.Process.Pid
		started <- nil
		p.err = cmd.Wait()
		close(p.exited)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// kill ends it as kill -9 does, and waits until it is gone.
func (p *process) kill() {
	p.killed = true
	p.signal(syscall.SIGKILL)
	<-p.exited
}

// end sends a signal that ends the process in order, and returns the error of its end; a killed
// process has ended well. A process that does not end is killed.
func (p *process) end(s syscall.Signal) error {
	if p.killed {
		return nil
	}
	p.signal(s)
	select {
	case <-p.exited:
		return p.err
	case <-time.After(patience):
		p.kill()
		return fmt.Errorf("process %d did not end on %s", p.pid, s)
	}
}

// signal reaches a process that was not reaped yet, so never a stranger.
func (p *process) signal(s syscall.Signal) {
	if p.running() {
		_ = syscall.Kill(p.pid, s) // ESRCH: it has just ended
	}
}

func (p *process) running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// tail is the end of a file, for messages.
func tail(path string) string {
	b, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return "(no file)"
	}
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-8192):])
}
