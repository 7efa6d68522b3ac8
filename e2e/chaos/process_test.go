package chaos_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// program is a process under test: it can be armed, dies, and is started again
// as it was.
type program struct {
	name string // also of its log and its folder of failpoints
	dir  string // the stack's
	path string
	args []string
	env  []string
	// answers reports whether it is up, after a start; nil: at once.
	answers func() error

	restart sync.Mutex // held from an intended end to the next start
	life    sync.Mutex // held while it is started: two cells may have struck it

	mu     sync.Mutex
	pid    int
	exited chan struct{}      // closed once it is gone and reaped; nil before the first start
	status syscall.WaitStatus // how it ended; read only after exited is closed
}

func (p *program) points() string { return filepath.Join(p.dir, "failpoints", p.name) }
func (p *program) log() string    { return filepath.Join(p.dir, p.name+".log") }

// start starts it, tied to this test run: the kernel kills it when the thread
// that started it ends, so that thread stays.
func (p *program) start() error {
	if err := os.MkdirAll(p.points(), 0o700); err != nil {
		return err
	}
	out, err := os.OpenFile(p.log(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer out.Close() // the child has its own
	cmd := exec.Command(p.path, p.args...)
	cmd.Env = append(append(os.Environ(), "BERTH_SETTINGS_FILE=", "BERTH_IMAGE_DISK_MARK=0", "BERTH_FAILPOINT_DIR="+p.points()), p.env...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.exited = make(chan struct{})
	exited, started := p.exited, make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		p.pid = cmd.Process.Pid
		started <- nil
		_ = cmd.Wait() // why it ended is in its log, or our doing
		if s, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok {
			p.status = s
		}
		close(exited)
	}()
	return <-started
}

// up starts it, unless it runs, and waits until it answers, or until another
// cell has struck it: that one starts it again.
func (p *program) up() error {
	p.life.Lock()
	defer p.life.Unlock()
	if p.running() {
		return nil
	}
	if err := p.start(); err != nil || p.answers == nil {
		return err
	}
	return await(p.name+" answers", func() error {
		switch {
		case p.running():
			return p.answers()
		case p.status.Signal() == syscall.SIGKILL:
			return nil
		}
		return fatal{fmt.Errorf("%s ended at its start: %s", p.name, tail(p.log()))}
	})
}

func (p *program) running() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.exited == nil {
		return false
	}
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// wait waits until it is gone that has killed itself. Two cells may have struck
// it at once, and the other may have started it again: then it does not end.
func (p *program) wait() {
	p.mu.Lock()
	exited := p.exited
	p.mu.Unlock()
	select {
	case <-exited:
	case <-time.After(otherwise):
	}
}

// otherwise is how long it is waited for the effect of a failpoint that another
// cell may undo.
const otherwise = 10 * time.Second

// halt waits until it has stopped that stops itself: a signal to go on that comes
// before that would be lost. Another cell may have it going again.
func (p *program) halt() {
	for limit := time.Now().Add(otherwise); p.running() && !p.stopped() && time.Now().Before(limit); {
		time.Sleep(firstLook)
	}
}

// stopped reads the process's state, which stands behind its name in brackets.
func (p *program) stopped() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.pid))
	return err == nil && bytes.Contains(b, []byte(") T "))
}

// signal reaches a process that was not reaped yet, so never a stranger.
func (p *program) signal(s syscall.Signal) {
	if p.running() {
		_ = syscall.Kill(p.pid, s) // ESRCH: it has just ended
	}
}

// end ends it with a signal, by force if need be, and waits until it is gone.
func (p *program) end(s syscall.Signal) error {
	if !p.running() {
		return nil
	}
	p.signal(s)
	p.signal(syscall.SIGCONT)
	select {
	case <-p.exited:
		return nil
	case <-time.After(patience):
		p.signal(syscall.SIGKILL)
		<-p.exited
		return fmt.Errorf("%s did not end on %s", p.name, s)
	}
}

// arm arms a failpoint.
func (p *program) arm(point, action string) error {
	path := filepath.Join(p.points(), point)
	if err := os.WriteFile(path+".new", []byte(action), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// disarm takes a failpoint back, and its proof; it reports whether it was hit.
func (p *program) disarm(point string) bool {
	path := filepath.Join(p.points(), point)
	armed := os.Remove(path) == nil
	hit := os.Remove(path+".hit") == nil
	return hit && !armed
}

func (p *program) hit(point string) bool {
	_, err := os.Stat(filepath.Join(p.points(), point+".hit"))
	return err == nil
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
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-25):], "\n")
}

// patience bounds every wait for an expected event; machines that run tests are busy.
const patience = 4 * time.Minute

// fatal is an error that waiting does not cure.
type fatal struct{ error }

func (f fatal) Unwrap() error { return f.error }

// slowness is the error of a cell that proves nothing: a wait has reached its
// limit, or the job was over before the cell could strike it. No promise is
// broken. Any other error is a breach.
type slowness struct{ error }

func (s slowness) Unwrap() error { return s.error }

// overtaken is slowness: the job was over before the cell could strike it.
type overtaken struct{ error }

// onlySlow reports whether the error is slowness alone. One breach among joined
// errors makes a breach of all of them.
func onlySlow(err error) bool {
	switch e := err.(type) {
	case nil:
		return false
	case slowness:
		return true
	case interface{ Unwrap() []error }:
		return !slices.ContainsFunc(e.Unwrap(), func(e error) bool { return !onlySlow(e) })
	}
	return onlySlow(errors.Unwrap(err))
}

// await waits until check returns nil; its last error names the missing condition. At the limit
// await returns slowness. It looks often at first and then less and less, because each look loads
// the observed system.
func await(what string, check func() error) error { return awaitAtMost(lastLook, what, check) }

// awaitAtMost is await with pauses of at most that.
func awaitAtMost(longest time.Duration, what string, check func() error) error {
	return awaitFor(patience, longest, what, check)
}

// awaitFor is awaitAtMost with a limit of its own.
func awaitFor(patience, longest time.Duration, what string, check func() error) error {
	limit := time.After(patience)
	for pause := firstLook; ; pause = min(pause*3/2, longest) {
		began := time.Now()
		err := check()
		if err == nil {
			return nil
		}
		if _, is := errors.AsType[fatal](err); is {
			return fmt.Errorf("%s: %w", what, err)
		}
		select {
		case <-time.After(max(pause, 3*time.Since(began))): // at most a quarter of the wait goes to looks
		case <-limit:
			return slowness{fmt.Errorf("never: %s: %w", what, err)}
		}
	}
}

// Pauses between looks.
const (
	firstLook = 20 * time.Millisecond
	lastLook  = 400 * time.Millisecond
)
