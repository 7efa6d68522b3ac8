package deadman

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// process is one of a container's.
type process struct {
	pid    int
	first  bool   // number 1 inside the container: the others die with it
	cgroup string // content of /proc/PID/cgroup
}

// Processes returns the process ids of the container's processes: each has a cgroup path with an
// element named after the container's id, as every engine names such elements ("ID",
// "docker-ID.scope"). Zombies do not count.
func Processes(container string) ([]int, error) {
	found, err := find(container)
	pids := make([]int, len(found))
	for i, p := range found {
		pids[i] = p.pid
	}
	return pids, err
}

// find lists the container's processes by one pass over /proc. A process that starts during the
// pass may be missing from the list.
func find(container string) ([]process, error) {
	if !isContainerID(container) {
		return nil, fmt.Errorf("%q is no id of a container", container)
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var found []process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if cgroup, ok := lives(pid, container); ok {
			found = append(found, process{pid: pid, first: isFirst(pid), cgroup: cgroup})
		}
	}
	return found, nil
}

// lives reports whether this number is now a living process of the container. A
// process that cannot be read has ended.
func lives(pid int, container string) (cgroup string, ok bool) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil || !bytes.Contains(b, []byte(container)) {
		return "", false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", false
	}
	// The name in brackets may contain anything; the state follows the last one.
	_, after, ok := bytes.Cut(stat[max(0, bytes.LastIndexByte(stat, ')')):], []byte(") "))
	if !ok || len(after) == 0 || after[0] == 'Z' || after[0] == 'X' {
		return "", false
	}
	return string(b), true
}

// isFirst reports whether the process is number 1 of its innermost namespace.
func isFirst(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(b)) {
		if ids, ok := strings.CutPrefix(line, "NSpid:"); ok {
			f := strings.Fields(ids)
			return len(f) > 1 && f[len(f)-1] == "1"
		}
	}
	return false
}

// signal sends a signal to the process unless the process has left the container. It opens a
// handle of the process before it checks membership, so that the signal cannot reach a new
// process with the same number.
func (p process) signal(container string, s syscall.Signal) error {
	h, err := os.FindProcess(p.pid)
	if err != nil {
		return nil // it has ended
	}
	defer func() { _ = h.Release() }()
	if _, ok := lives(p.pid, container); !ok {
		return nil
	}
	if err := h.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal process %d: %w", p.pid, err)
	}
	return nil
}

// Terminate asks the container's first process to end.
func Terminate(container string) error {
	found, err := find(container)
	for _, p := range found {
		if p.first {
			err = errors.Join(err, p.signal(container, syscall.SIGTERM))
		}
	}
	return err
}

// Kill kills every process of the container and returns the number of processes found. Zero means
// that the container does not run. Kill does not wait for the end of the processes.
func Kill(container string) (int, error) {
	found, err := find(container)
	if err != nil || len(found) == 0 {
		return 0, err
	}
	killGroups(found, container)
	freeze := freezers(found, container)
	write(freeze, "FROZEN") // cgroup v1: no process forks meanwhile
	for _, p := range found {
		err = errors.Join(err, p.signal(container, syscall.SIGKILL))
	}
	write(freeze, "THAWED") // frozen processes, even if frozen by another program, die only now
	return len(found), err
}

// cgroupRoots are where cgroup v2 may be mounted.
var cgroupRoots = []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}

// killGroups kills the container's whole group where the kernel can (cgroup v2,
// Linux 5.14): processes that fork meanwhile die too.
func killGroups(found []process, container string) {
	for _, dir := range groups(found, container, "") {
		for _, root := range cgroupRoots {
			write([]string{filepath.Join(root, dir, "cgroup.kill")}, "1")
		}
	}
}

// freezers returns the state files of the container's cgroup v1 freezers.
func freezers(found []process, container string) []string {
	var files []string
	for _, dir := range groups(found, container, "freezer") {
		files = append(files, filepath.Join("/sys/fs/cgroup/freezer", dir, "freezer.state"))
	}
	return files
}

// groups returns the container's own groups in the hierarchy of a controller;
// "" is cgroup v2.
func groups(found []process, container, controller string) []string {
	var dirs []string
	seen := map[string]bool{}
	for _, p := range found {
		for line := range strings.Lines(p.cgroup) {
			f := strings.SplitN(strings.TrimSpace(line), ":", 3)
			if len(f) != 3 || f[1] != controller {
				continue
			}
			if dir, ok := upTo(f[2], container); ok && !seen[dir] {
				seen[dir] = true
				dirs = append(dirs, dir)
			}
		}
	}
	return dirs
}

// upTo cuts a path after the element that is named after the container.
func upTo(path, container string) (string, bool) {
	at := strings.Index(path, container)
	if at < 0 {
		return "", false
	}
	if end := strings.IndexByte(path[at:], '/'); end >= 0 {
		path = path[:at+end]
	}
	return path, true
}

// write writes to the kernel's files that exist. They only help: the signals
// decide.
func write(files []string, text string) {
	for _, path := range files {
		if f, err := os.OpenFile(path, os.O_WRONLY, 0); err == nil {
			_, _ = f.WriteString(text)
			_ = f.Close()
		}
	}
}
