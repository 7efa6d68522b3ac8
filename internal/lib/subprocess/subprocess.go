// Package subprocess runs programs that an operator configures, for example the checks around a job.
// Each program runs in its own process group, which ends with the run, and its output is bounded.
//
// The one rule to know: a program that must outlive its run has to leave the process group.
package subprocess

import (
	"context"
	"errors"
	"io"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// waitDelay is the time that Run waits for a process outside the group to close the output.
const waitDelay = time.Second

// Program is one run of a program.
type Program struct {
	Path string   // absolute
	Args []string // without the name of the program
	// Env is the whole environment, as NAME=value. The environment of this process is not inherited.
	Env []string
	// Dir is the working folder; "" is /.
	Dir string
	// Stdin is the input; nil is empty. Stdout and Stderr receive the output; nil discards it. If both
	// are the same writer, one goroutine writes at a time.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// BaseEnv returns the environment that each program of an operator has. No secret is part of it.
func BaseEnv() []string {
	return []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/"}
}

// StartError is the error of a run whose program was not started, for example because its interpreter is missing. Not
// one instruction of the program has run.
type StartError struct{ Err error }

// Error returns the cause.
func (e *StartError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *StartError) Unwrap() error { return e.Err }

// Run runs the program to its end and kills its process group when ctx ends. Processes that the
// program leaves behind in the group are killed, too. The error is that of exec.Cmd.Run, as a *StartError if no process
// was started; an output that stays open after the exit is no error.
func Run(ctx context.Context, p Program) error {
	cmd := exec.CommandContext(ctx, p.Path, p.Args...)
	// An empty list would inherit the environment of this process, which has secrets.
	cmd.Env = append(make([]string, 0, len(p.Env)+1), p.Env...)
	if len(cmd.Env) == 0 {
		cmd.Env = BaseEnv()
	}
	cmd.Dir = p.Dir
	if cmd.Dir == "" {
		cmd.Dir = "/"
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = waitDelay
	cmd.Stdin, cmd.Stdout, cmd.Stderr = p.Stdin, p.Stdout, p.Stderr
	if err := cmd.Start(); err != nil {
		return &StartError{err}
	}
	err := cmd.Wait()
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	if errors.Is(err, exec.ErrWaitDelay) {
		return nil
	}
	return err
}

// Tail is a writer that keeps the end of its input. Its methods may be called concurrently.
type Tail struct {
	// Limit is the number of bytes to keep.
	Limit int

	mu  sync.Mutex
	buf []byte
	cut bool
}

// Write keeps the last Limit bytes and never fails.
func (t *Tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, b...)
	if over := len(t.buf) - t.Limit; over > 0 {
		t.buf, t.cut = append(t.buf[:0], t.buf[over:]...), true
	}
	return len(b), nil
}

// Text returns the kept input as valid text. It begins with ... if the beginning is missing.
func (t *Tail) Text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := strings.TrimSpace(strings.ToValidUTF8(strings.ReplaceAll(string(t.buf), "\x00", ""), "?"))
	if t.cut {
		s = "..." + s
	}
	return s
}

// Hidden returns Text with each occurrence of a secret replaced by asterisks, also an occurrence
// whose beginning was cut off.
func (t *Tail) Hidden(secret string) string {
	s := t.Text()
	if secret == "" {
		return s
	}
	s = strings.ReplaceAll(s, secret, "***")
	rest, cut := strings.CutPrefix(s, "...")
	if !cut {
		return s
	}
	for i := 1; i < len(secret); i++ { // the longest suffix first
		if after, found := strings.CutPrefix(rest, secret[i:]); found {
			return "...***" + after
		}
	}
	return s
}

// Head is a writer that keeps the beginning of its input and calls Full, once, when the input
// exceeds Limit.
type Head struct {
	Limit int
	Full  func()

	buf  []byte
	over bool
}

// Write keeps input up to Limit bytes and never fails.
func (h *Head) Write(b []byte) (int, error) {
	room := h.Limit - len(h.buf)
	h.buf = append(h.buf, b[:min(room, len(b))]...)
	if len(b) > room && !h.over {
		h.over = true
		if h.Full != nil {
			h.Full()
		}
	}
	return len(b), nil
}

// Bytes returns the kept input, and whether the input was longer.
func (h *Head) Bytes() (kept []byte, over bool) { return h.buf, h.over }
