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
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
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

	exited      chan error
	out, errs   bytes.Buffer
	removeGroup func()
}

// StartHelper starts this binary again as the named helper. share is the most
// cores that it may use.
func StartHelper(name string, share float64, config any) (*Helper, error) {
	text, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	h := &Helper{exited: make(chan error, 1), removeGroup: func() {}}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), HelperName+"="+name)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(text), &h.out, &h.errs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			h.exited <- cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	h.PID = cmd.Process.Pid
	h.removeGroup, h.Fixed = limitCPU(h.PID, share)
	return h, nil
}

// Stop asks the helper to end, waits for its end, and reads its report.
func (h *Helper) Stop(report any) error {
	_ = syscall.Kill(h.PID, syscall.SIGTERM) // ESRCH: it has just ended
	return h.Wait(report)
}

// Wait waits until the helper ends by itself and reads its report.
func (h *Helper) Wait(report any) error {
	err := <-h.exited
	h.removeGroup()
	if err != nil {
		return fmt.Errorf("helper: %w: %s", err, h.errs.Bytes())
	}
	if err := json.Unmarshal(h.out.Bytes(), report); err != nil {
		return fmt.Errorf("report of the helper: %w", err)
	}
	return nil
}

// cpuPeriod is the period of the kernel's CPU quotas, in microseconds.
const cpuPeriod = 100_000

// limitCPU puts a process into a control group of its own that may use so many
// cores. It reports false where the host has no control group to write to.
func limitCPU(pid int, cores float64) (remove func(), ok bool) {
	quota := strconv.Itoa(int(cores * cpuPeriod))
	name := fmt.Sprintf("berth-rig-%d", pid)
	for _, way := range []struct{ root, file, value string }{
		{"/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", quota},                            // version 1
		{"/sys/fs/cgroup", "cpu.max", quota + " " + strconv.Itoa(cpuPeriod)},         // version 2
		{"/sys/fs/cgroup/unified", "cpu.max", quota + " " + strconv.Itoa(cpuPeriod)}, // both versions mounted
	} {
		dir := filepath.Join(way.root, name)
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		err := errors.Join(
			writeExisting(filepath.Join(dir, way.file), way.value),
			writeExisting(filepath.Join(dir, "cgroup.procs"), strconv.Itoa(pid)))
		if err == nil {
			return sync.OnceFunc(func() { _ = os.Remove(dir) }), true // one that stays is empty
		}
		_ = os.Remove(dir)
	}
	return func() {}, false
}

// writeExisting writes to an existing file of the kernel, and never creates a file.
func writeExisting(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}
