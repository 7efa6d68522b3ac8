package dockerd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process is one line of /proc.
type process struct {
	pid, parent int
	zombie      bool
	args        []string
}

// program returns the name under which the process was started.
func (p process) program() string {
	if len(p.args) == 0 {
		return ""
	}
	return filepath.Base(p.args[0])
}

// enginePrograms are the only ones that are ever taken for a part of an engine.
// Others, such as an agent, name the engine's socket on their command line too.
var enginePrograms = []string{"dockerd", "containerd", "containerd-shim", "containerd-shim-runc-v1",
	"containerd-shim-runc-v2", "runc", "fuse-overlayfs"}

// belongs reports whether the process is a part of the machine's engine.
func (p process) belongs(m machine) bool {
	return slices.Contains(enginePrograms, p.program()) && slices.ContainsFunc(p.args[1:], func(arg string) bool {
		return strings.Contains(arg, m.run()+"/") || strings.Contains(arg, m.dir+"/")
	})
}

// listProcesses reads /proc. Processes that end meanwhile are left out.
func listProcesses() ([]process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var all []process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		if err != nil {
			continue
		}
		// "pid (name) S parent ..."; the name may hold anything, so look behind it.
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		if len(fields) < 2 {
			continue
		}
		parent, err := strconv.Atoi(fields[1])
		if err != nil {
			continue
		}
		cmdline, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err != nil {
			continue
		}
		p := process{pid: pid, parent: parent, zombie: fields[0] == "Z"}
		if len(cmdline) > 0 {
			p.args = strings.Split(strings.TrimSuffix(string(cmdline), "\x00"), "\x00")
		}
		all = append(all, p)
	}
	return all, nil
}

// findEngine returns the machine's running dockerd, or nil.
func findEngine(m machine) (*process, error) {
	all, err := listProcesses()
	if err != nil {
		return nil, err
	}
	for _, p := range all {
		if !p.zombie && p.program() == "dockerd" && p.belongs(m) {
			return &p, nil
		}
	}
	return nil, nil
}

// members returns all processes of the machine: the engine, containerd, shims, all their
// descendants, and the processes in the machine's cgroup.
func members(m machine) ([]process, error) {
	all, err := listProcesses()
	if err != nil {
		return nil, err
	}
	in := cgroupPIDs(m)
	// A parent may stand behind its child in the list, so repeat until a round finds no new
	// process.
	for grown := true; grown; {
		grown = false
		for _, p := range all {
			if !in[p.pid] && (in[p.parent] || p.belongs(m)) {
				in[p.pid], grown = true, true
			}
		}
	}
	return slices.DeleteFunc(all, func(p process) bool { return !in[p.pid] || p.zombie }), nil
}

// killAll kills every process of the machine and returns when none is left. The engine dies
// first, so that no container is restarted meanwhile.
func killAll(ctx context.Context, m machine) error {
	for {
		victims, err := members(m)
		if err != nil || len(victims) == 0 {
			return err
		}
		slices.SortStableFunc(victims, func(a, b process) int { return rank(a) - rank(b) })
		for _, p := range victims {
			_ = syscall.Kill(p.pid, syscall.SIGKILL) // ESRCH: it is gone, which is the aim
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("kill machine %s: %d processes are left, the first is %d %q: %w",
				m.dir, len(victims), victims[0].pid, victims[0].args, ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// rank orders the processes to kill: engines come first.
func rank(p process) int {
	if i := slices.Index(enginePrograms, p.program()); i >= 0 {
		return i
	}
	return len(enginePrograms)
}

// cgroupDirs are the machine's own cgroup, once per hierarchy under cgroup v1.
func cgroupDirs(m machine) []string {
	var dirs []string
	for _, pattern := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} {
		found, _ := filepath.Glob(pattern + m.tag()) // the pattern is well-formed
		dirs = append(dirs, found...)
	}
	return dirs
}

// cgroupPIDs returns the processes in the machine's cgroup and in all groups below.
func cgroupPIDs(m machine) map[int]bool {
	pids := map[int]bool{}
	for _, root := range cgroupDirs(m) {
		_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.Name() != "cgroup.procs" {
				return nil // a container's group went away while we walked
			}
			b, _ := os.ReadFile(path)
			for _, field := range strings.Fields(string(b)) {
				if pid, err := strconv.Atoi(field); err == nil {
					pids[pid] = true
				}
			}
			return nil
		})
	}
	delete(pids, 0) // a process of another pid namespace
	return pids
}

// removeCgroups deletes the machine's empty cgroups, children first.
func removeCgroups(m machine) error {
	var errs []error
	for _, root := range cgroupDirs(m) {
		var dirs []string
		_ = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		for _, dir := range slices.Backward(dirs) {
			if err := syscall.Rmdir(dir); err != nil && !errors.Is(err, syscall.ENOENT) {
				errs = append(errs, fmt.Errorf("remove cgroup %s: %w", dir, err))
			}
		}
	}
	return errors.Join(errs...)
}
