package postgres

import (
	"fmt"
	"os/exec"
	"runtime"
	"syscall"
)

// process is a child process. One goroutine waits for its end.
type process struct {
	pid    int
	exited chan struct{} // closed once the child is gone and reaped
	err    error         // how it ended; read only after exited is closed
}

// startProcess starts cmd from a thread that lives as long as the child. The kernel sends the
// parent-death signal when the starting THREAD dies, and the Go runtime ends idle threads at any
// time, so the thread is kept locked.
func startProcess(cmd *exec.Cmd) (*process, error) {
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
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return p, nil
}

// running reports whether the child has not ended yet.
func (p *process) running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// signal is a no-op once the child is reaped, so that a recycled pid is never
// hit.
func (p *process) signal(s syscall.Signal) {
	if p.running() {
		_ = syscall.Kill(p.pid, s) // ESRCH: the process has just ended, which is the purpose of every call
	}
}
