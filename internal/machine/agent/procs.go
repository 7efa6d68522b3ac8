package agent

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth"
	"berth/activities/node"
)

// procs reads processes from the kernel's files.
type procs struct{ dir string } // such as /proc

// cgroup is the place of a process in each hierarchy of control groups, by the hierarchy's number and
// controllers.
type cgroup map[string]string

// group returns the control groups of a process; nil for a process that has ended.
func (p procs) group(pid int) cgroup {
	b, err := os.ReadFile(p.file(pid, "cgroup"))
	if err != nil {
		return nil
	}
	g := cgroup{}
	for line := range strings.Lines(string(b)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) == 3 && parts[2] != "/" {
			g[parts[0]+":"+parts[1]] = parts[2]
		}
	}
	return g
}

// inGroup reports whether a process is in one of these groups or below it, in some hierarchy.
func (p procs) inGroup(pid int, groups []cgroup) bool {
	if len(groups) == 0 {
		return false
	}
	own := p.group(pid)
	for _, g := range groups {
		for hierarchy, path := range g {
			at, ok := own[hierarchy]
			if ok && (at == path || strings.HasPrefix(at, path+"/")) {
				return true
			}
		}
	}
	return false
}

// inContainer reports whether a process is in a control group that is named after one of these containers, as most
// engines name the groups: "ID" or "docker-ID.scope". Ids that are empty are ignored.
func (p procs) inContainer(pid int, ids []string) bool {
	own := p.group(pid)
	return slices.ContainsFunc(ids, func(id string) bool {
		for _, path := range own {
			if id != "" && strings.Contains(path, id) {
				return true
			}
		}
		return false
	})
}

// allowed reports whether a process runs one of these programs on the host. The name of a process in
// a container does not count, since a container can give itself any name.
func (p procs) allowed(pid int, names []string) bool {
	comm, err := os.ReadFile(p.file(pid, "comm"))
	named := func(name string) bool { return name[:min(len(name), commLength)] == string(bytes.TrimSpace(comm)) }
	if err != nil || !slices.ContainsFunc(names, named) {
		return false
	}
	own, err1 := os.Readlink(filepath.Join(p.dir, "self", "ns", "pid"))
	other, err2 := os.Readlink(p.file(pid, "ns/pid"))
	return err1 == nil && err2 == nil && own == other
}

// describe returns a process as text for operators: id, name, memory and start.
func (p procs) describe(x node.GPUProcess) string {
	text := fmt.Sprintf("process %d", x.PID)
	if comm, err := os.ReadFile(p.file(x.PID, "comm")); err == nil {
		text += fmt.Sprintf(" (%s)", strings.ToValidUTF8(string(bytes.TrimSpace(comm)), "?"))
	}
	if x.Bytes >= 0 {
		text += " with " + berth.BytesText(x.Bytes)
	}
	if at, ok := p.started(x.PID); ok {
		text += " since " + at.UTC().Format(time.RFC3339)
	}
	return text
}

// commLength is the number of bytes that the kernel keeps of a program's name.
const commLength = 15

// ticks is the number of units of /proc/PID/stat in a second, on every Linux architecture.
const ticks = 100

// started returns the time at which a process started.
func (p procs) started(pid int) (time.Time, bool) {
	stat, err1 := os.ReadFile(p.file(pid, "stat"))
	boot, err2 := os.ReadFile(filepath.Join(p.dir, "stat"))
	if err1 != nil || err2 != nil {
		return time.Time{}, false
	}
	// The name is in parentheses and may contain any character; 19 fields lie between it and the start.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	_, rest, ok := strings.Cut(string(boot), "btime ")
	if !ok || len(fields) < 20 {
		return time.Time{}, false
	}
	base, _, _ := strings.Cut(rest, "\n")
	seconds, err1 := strconv.ParseInt(base, 10, 64)
	units, err2 := strconv.ParseInt(fields[19], 10, 64)
	if err1 != nil || err2 != nil {
		return time.Time{}, false
	}
	return time.Unix(seconds+units/ticks, 0), true
}

// file returns the path of a process's file.
func (p procs) file(pid int, name string) string {
	return filepath.Join(p.dir, strconv.Itoa(pid), name)
}
