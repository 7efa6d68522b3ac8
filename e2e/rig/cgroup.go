package rig

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// cgroups creates control groups for the CPU, all in one folder of the kernel. Every group has the
// kernel's default weight, which systemd gives to a unit as well.
type cgroups struct {
	root   string // folder in which the groups are created
	weight string // name of the file with a group's weight
	equal  string // weight of every group
	quota  string // name of the file with a group's quota
	format string // of a quota in microseconds for each cpuPeriod

	mkdir, rmdir func(path string) error
}

// cpuPeriod is the period of the kernel's CPU quotas, in microseconds.
const cpuPeriod = 100_000

// groupPrefix begins the name of every group. The process ID of the creator follows.
const groupPrefix = "berth-rig-"

// hostCgroups returns the control groups of this host; nil where this process cannot create any.
var hostCgroups = sync.OnceValue(func() *cgroups {
	return findCgroups("/sys/fs/cgroup", func(path string) error { return os.Mkdir(path, 0o755) }, os.Remove)
})

// findCgroups looks below base for a folder in which groups with a weight and a quota can be created. It removes the
// groups that killed processes have left there.
func findCgroups(base string, mkdir, rmdir func(path string) error) *cgroups {
	v1 := cgroups{weight: "cpu.shares", equal: "1024", quota: "cpu.cfs_quota_us", format: "%d"}
	v2 := cgroups{weight: "cpu.weight", equal: "100", quota: "cpu.max", format: "%d " + strconv.Itoa(cpuPeriod)}
	for _, way := range []struct {
		folder  string
		version cgroups
	}{
		{"cpu", v1},
		{"", v2},
		{"unified", v2}, // both versions are mounted
	} {
		c := way.version
		c.root, c.mkdir, c.rmdir = filepath.Join(base, way.folder), mkdir, rmdir
		g, err := c.create("trial")
		if err != nil {
			continue
		}
		err = g.limit(1)
		g.remove()
		if err == nil {
			c.removeLeft()
			return &c
		}
	}
	return nil
}

// create creates an empty group. name must be unique among the groups of this process.
func (c *cgroups) create(name string) (*cgroup, error) {
	g := &cgroup{of: c, dir: filepath.Join(c.root, fmt.Sprintf("%s%d-%s", groupPrefix, os.Getpid(), name))}
	if err := c.mkdir(g.dir); err != nil {
		return nil, err
	}
	if err := writeExisting(filepath.Join(g.dir, c.weight), c.equal); err != nil {
		g.remove()
		return nil, err
	}
	return g, nil
}

// removeLeft removes the groups of processes that have ended. The kernel keeps a group that is not empty.
func (c *cgroups) removeLeft() {
	left, _ := filepath.Glob(filepath.Join(c.root, groupPrefix+"*")) // the pattern is valid
	for _, dir := range left {
		word, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), groupPrefix), "-")
		pid, err := strconv.Atoi(word)
		if err == nil && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			_ = c.rmdir(dir)
		}
	}
}

// cgroup is a control group that this process has created.
type cgroup struct {
	of  *cgroups
	dir string
}

// limit sets how many cores the group may use at most.
func (g *cgroup) limit(cores float64) error {
	return writeExisting(filepath.Join(g.dir, g.of.quota), fmt.Sprintf(g.of.format, int(cores*cpuPeriod)))
}

// add moves processes into the group, with all their threads. Later children of a process start in its group.
// Processes that have ended are left out.
func (g *cgroup) add(pids ...int) error {
	for _, pid := range pids {
		err := writeExisting(filepath.Join(g.dir, "cgroup.procs"), strconv.Itoa(pid))
		if err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
	}
	return nil
}

// members returns the processes in the group.
func (g *cgroup) members() ([]int, error) {
	b, err := os.ReadFile(filepath.Join(g.dir, "cgroup.procs"))
	var list []int
	for word := range strings.FieldsSeq(string(b)) {
		if pid, err := strconv.Atoi(word); err == nil {
			list = append(list, pid)
		}
	}
	return list, err
}

// remove removes the group. A group that still has processes stays, and a later run removes it.
func (g *cgroup) remove() { _ = g.of.rmdir(g.dir) }

// missing returns the first of the processes that lives and is in another group; 0 if there is none.
func (g *cgroup) missing(pids []int) (int, error) {
	have, err := g.members()
	for _, pid := range pids {
		if err == nil && !slices.Contains(have, pid) && syscall.Kill(pid, 0) == nil {
			return pid, nil
		}
	}
	return 0, err
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
