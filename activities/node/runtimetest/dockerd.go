package runtimetest

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/docker/docker/client"

	"berth/internal/lib/netns"
)

// Dockerd is a private Docker engine: its own socket, data root and containerd, and no
// bridge. A test may kill it without hurting another test.
//
// The engine runs in a network namespace of its own, because dockerd --bridge=none deletes
// any interface called docker0, which is the bridge of the machine's own engine. So the
// engine reaches no registry, not even on loopback: load its images by Image and Load.
type Dockerd struct {
	t     testing.TB
	dir   string
	space string // path of the network namespace; "": one of its own for each start
	flags []string

	running *exec.Cmd     // nil while the engine is stopped
	exited  chan struct{} // closed at the process's exit
}

// StartDockerd starts a private engine with further flags, such as --live-restore. The
// engine and its containers end with the test.
func StartDockerd(t testing.TB, flags ...string) *Dockerd {
	t.Helper()
	return StartDockerdIn(t, "", flags...)
}

// StartDockerdIn starts a private engine in the network namespace at a path. A restarted engine uses
// the same namespace, so containers find their networks again.
func StartDockerdIn(t testing.TB, space string, flags ...string) *Dockerd {
	t.Helper()
	dir, err := os.MkdirTemp("", "dockerd") // a short path: a socket's is limited to 107 bytes
	must(t, err)
	d := &Dockerd{t: t, dir: dir, space: space, flags: flags}
	t.Cleanup(d.destroy)
	d.Start()
	return d
}

// Host is the engine's address.
func (d *Dockerd) Host() string { return "unix://" + filepath.Join(d.dir, "docker.sock") }

// Dir is the folder that holds everything the engine writes.
func (d *Dockerd) Dir() string { return d.dir }

// Start starts the engine on its existing data and returns once the engine answers.
func (d *Dockerd) Start() {
	d.t.Helper()
	log, err := os.OpenFile(filepath.Join(d.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must(d.t, err)
	defer log.Close()
	args := append([]string{
		"--host", d.Host(),
		"--data-root", filepath.Join(d.dir, "data"),
		"--exec-root", filepath.Join(d.dir, "exec"),
		"--pidfile", d.pidFile(),
		"--config-file", filepath.Join(d.dir, "daemon.json"),
		"--bridge=none", "--iptables=false", "--ip6tables=false",
	}, d.flags...)
	d.endContainerd()
	must(d.t, os.WriteFile(filepath.Join(d.dir, "daemon.json"), []byte("{}"), 0o600))
	cmd := exec.Command("dockerd", args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if d.space == "" {
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWNET
	}
	must(d.t, netns.Do(d.space, cmd.Start))
	d.running, d.exited = cmd, make(chan struct{})
	go func(exited chan struct{}) { // ends with the process; Kill and Stop wait for it
		_ = cmd.Wait()
		close(exited)
	}(d.exited)
	d.await()
}

// await waits until the engine answers. If it exits instead, the test fails with the
// engine's log.
func (d *Dockerd) await() {
	d.t.Helper()
	api, err := client.NewClientWithOpts(client.WithHost(d.Host()))
	must(d.t, err)
	defer api.Close()
	ctx, cancel := context.WithTimeout(d.t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := api.Ping(ctx); err == nil {
			return
		}
		select {
		case <-d.exited:
			d.t.Fatalf("private dockerd ended at once; its log:\n%s", d.log())
		case <-ctx.Done():
			d.t.Fatalf("private dockerd does not answer; its log:\n%s", d.log())
		case <-tick.C:
		}
	}
}

// Kill kills the engine process with SIGKILL; its containerd and its containers keep
// running until the next Start, or the test's end.
func (d *Dockerd) Kill() { d.end(syscall.SIGKILL) }

// Stop stops the engine with SIGTERM, which without --live-restore also stops its
// containers.
func (d *Dockerd) Stop() { d.end(syscall.SIGTERM) }

// Freeze suspends the engine process, which keeps its sockets and no longer answers.
func (d *Dockerd) Freeze() { d.signal(syscall.SIGSTOP) }

// Thaw resumes the engine process after Freeze.
func (d *Dockerd) Thaw() { d.signal(syscall.SIGCONT) }

func (d *Dockerd) signal(s syscall.Signal) {
	d.t.Helper()
	if d.running != nil {
		must(d.t, d.running.Process.Signal(s))
	}
}

func (d *Dockerd) end(s syscall.Signal) {
	if d.running == nil {
		return
	}
	_ = d.running.Process.Signal(s) // it may have ended on its own
	// A frozen process would never act on SIGTERM.
	_ = d.running.Process.Signal(syscall.SIGCONT)
	<-d.exited
	d.running = nil
	_ = os.Remove(d.pidFile()) // a later process may have this number
}

func (d *Dockerd) pidFile() string { return filepath.Join(d.dir, "docker.pid") }

// log returns the end of the engine's log.
func (d *Dockerd) log() string {
	text, err := os.ReadFile(filepath.Join(d.dir, "log"))
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-4000):])
}

// destroy kills the engine and all its descendants: shims and containerd are found by the
// exec root in their command lines, containers as their children.
func (d *Dockerd) destroy() {
	d.end(syscall.SIGKILL)
	deadline := time.Now().Add(patience)
	// Repeated, since a process may fork between the listing and its death.
	for {
		left := d.processes()
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if len(left) == 0 || time.Now().After(deadline) {
			break
		}
		time.Sleep(10 * time.Millisecond) // nothing to wait on: they are not our children
	}
	d.unmount()
	if err := os.RemoveAll(d.dir); err != nil {
		d.t.Errorf("remove private dockerd: %v", err)
	}
}

// endContainerd kills the containerd of a killed engine and removes its pid file: a new
// engine would adopt the process with that number, even an unrelated one, and wait for its
// answer. The shims, and so the containers, keep running.
func (d *Dockerd) endContainerd() {
	pidFile := filepath.Join(d.dir, "exec", "containerd", "containerd.pid")
	text, err := os.ReadFile(pidFile)
	if err != nil {
		return
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err == nil && slices.Contains(d.processes(), pid) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
		for slices.Contains(d.processes(), pid) {
			time.Sleep(time.Millisecond) // not our child: nothing to wait on
		}
	}
	_ = os.Remove(pidFile)
}

// processes returns the ids of the engine's helpers and of all their descendants, without
// zombies. A container's processes are the children of its shim.
func (d *Dockerd) processes() []int {
	parents := make(map[int]int)
	mine := make(map[int]bool)
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		if err != nil {
			continue
		}
		// The fields after the name, which may itself hold spaces and brackets.
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if len(fields) < 2 || fields[0] == "Z" {
			continue
		}
		parents[pid], _ = strconv.Atoi(fields[1])
		line, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		mine[pid] = strings.Contains(string(line), d.dir+"/") && pid != os.Getpid()
	}
	var found []int
	for pid := range parents {
		for p := pid; p > 1; p = parents[p] {
			if mine[p] {
				found = append(found, pid)
				break
			}
		}
	}
	return found
}

// unmount detaches the engine's mounts below its folder, deepest first.
func (d *Dockerd) unmount() {
	table, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return
	}
	lines := strings.Split(string(table), "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		f := strings.Fields(lines[i])
		if len(f) > 1 && strings.HasPrefix(f[1], d.dir+"/") {
			if err := syscall.Unmount(f[1], syscall.MNT_DETACH); err != nil && !errors.Is(err, syscall.EINVAL) {
				d.t.Logf("unmount %s: %v", f[1], err)
			}
		}
	}
}
