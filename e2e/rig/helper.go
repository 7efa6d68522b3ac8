package rig

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
)

// HelperName is the variable of the environment that names the helper that a
// test binary is to be. TestMain reads it and calls RunHelper.
const HelperName = "BERTH_RIG_HELPER"

// HelperFunc is the work of a helper. It runs until its context ends and returns its report.
type HelperFunc func(ctx context.Context, config json.RawMessage) (report any, err error)

// RunHelper is the main function of a helper process. It reads the
// configuration from standard input and writes the report to standard output.
// The exit status is for os.Exit.
func RunHelper(f HelperFunc) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	config, err := io.ReadAll(os.Stdin)
	if err == nil {
		var report any
		if report, err = f(ctx, config); err == nil {
			err = json.NewEncoder(os.Stdout).Encode(report)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "helper:", err)
		return 1
	}
	return 0
}

// Helper is a running helper.
type Helper struct {
	PID   int
	Fixed bool // its CPU share is fixed by a control group

	exited    chan struct{} // closed once the helper has ended and was reaped
	err       error         // how it ended; read only after exited is closed
	out, errs bytes.Buffer
	group     *cgroup // nil: none
}

// StartHelper starts this binary again as the named helper. share is the most
// cores that it may use.
func StartHelper(name string, share float64, config any) (*Helper, error) {
	h := &Helper{}
	if err := h.start(name, config, &h.out); err != nil {
		return nil, err
	}
	h.limit(hostCgroups(), name, share)
	return h, nil
}

// start starts the process. Its standard output goes to out.
func (h *Helper) start(name string, config any, out io.Writer) error {
	text, err := json.Marshal(config)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), HelperName+"="+name)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(text), out, &h.errs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	h.exited = make(chan struct{})
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		if err == nil {
			h.PID = cmd.Process.Pid
		}
		started <- err
		if err == nil {
			h.err = cmd.Wait()
			close(h.exited)
		}
	}()
	return <-started
}

// limit puts the process into a group of its own that may use so many cores. Where the host has no such groups, the
// helper runs without a bound and Fixed stays false.
func (h *Helper) limit(tree *cgroups, name string, cores float64) {
	if tree == nil {
		return
	}
	g, err := tree.create(fmt.Sprintf("%s-%d", name, h.PID))
	if err != nil {
		return
	}
	if errors.Join(g.limit(cores), g.add(h.PID)) != nil {
		g.remove()
		return
	}
	h.group, h.Fixed = g, true
}

// Stop asks the helper to end, waits for its end, and reads its report.
func (h *Helper) Stop(report any) error {
	_ = syscall.Kill(h.PID, syscall.SIGTERM) // ESRCH: it has just ended
	return h.Wait(report)
}

// Wait waits until the helper ends by itself and reads its report.
func (h *Helper) Wait(report any) error {
	if err := h.end(); err != nil {
		return err
	}
	if err := json.Unmarshal(h.out.Bytes(), report); err != nil {
		return fmt.Errorf("report of the helper: %w", err)
	}
	return nil
}

// end waits until the helper has ended.
func (h *Helper) end() error {
	<-h.exited
	if h.group != nil {
		h.group.remove()
	}
	if h.err != nil {
		return fmt.Errorf("helper: %w: %s", h.err, h.errs.Bytes())
	}
	return nil
}
