// Package cgroupstats reads a container's resource usage and processes from the
// kernel's files: control groups of either version, processes, and the network
// devices of the container's namespace. It does not call the container engine, so that a sample costs a few
// file reads.
package cgroupstats

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"berth/wire"
)

// Host names the folders with the kernel's files. The zero value stands for the usual ones.
type Host struct {
	Proc   string // "": /proc
	Cgroup string // "": /sys/fs/cgroup
}

// Gauge reads the resource use of one container. Its readings omit every metric that the host
// does not provide; the zero value has none. All methods may be called concurrently.
type Gauge struct {
	cpu, memory, cached, disk, network string // files; "" where there is none

	proc  string // the host's /proc
	group string // folder of the container's control group; "" without one of its own
}

// Open finds the control group files of the container in which the host's process pid lives. For
// a process that has ended, or a host without control groups, the Gauge has no files.
func (h Host) Open(pid int) Gauge {
	if h.Proc == "" {
		h.Proc = "/proc"
	}
	if h.Cgroup == "" {
		h.Cgroup = "/sys/fs/cgroup"
	}
	g := Gauge{proc: h.Proc}
	self := filepath.Join(h.Proc, strconv.Itoa(pid))
	b, err := os.ReadFile(filepath.Join(self, "cgroup"))
	if pid <= 0 || err != nil {
		return g
	}
	for line := range strings.Lines(string(b)) {
		if part := strings.SplitN(strings.TrimSpace(line), ":", 3); len(part) == 3 {
			g.take(h, part[1], part[2])
		}
	}
	g.network = h.network(self)
	return g
}

// take notes the files of one hierarchy: that of version 2 has no controllers'
// names.
func (g *Gauge) take(h Host, controllers, group string) {
	if controllers == "" {
		if dir := filepath.Join(h.Cgroup, group); exists(filepath.Join(dir, "cpu.stat")) {
			g.cpu, g.memory = filepath.Join(dir, "cpu.stat"), filepath.Join(dir, "memory.current")
			g.cached, g.disk = filepath.Join(dir, "memory.stat"), filepath.Join(dir, "io.stat")
			g.own(dir, group)
		}
		return
	}
	for name := range strings.SplitSeq(controllers, ",") {
		find := func(file string) string {
			for _, mount := range []string{controllers, name, "cpu,cpuacct"} {
				if f := filepath.Join(h.Cgroup, mount, group, file); exists(f) {
					g.own(filepath.Dir(f), group)
					return f
				}
			}
			return ""
		}
		switch name {
		case "cpuacct":
			g.cpu = find("cpuacct.usage")
		case "memory":
			g.memory, g.cached = find("memory.usage_in_bytes"), find("memory.stat")
		case "blkio":
			if g.disk = find("blkio.throttle.io_service_bytes_recursive"); g.disk == "" {
				g.disk = find("blkio.throttle.io_service_bytes")
			}
		}
	}
}

// own notes the folder of the container's group. The root group has processes of others, too.
func (g *Gauge) own(dir, group string) {
	if filepath.Clean(group) != "/" {
		g.group = dir
	}
}

// network returns the file of a process's network devices. It is "" in the host's own network
// namespace, whose counters cover all processes of the host.
func (h Host) network(self string) string {
	theirs, err1 := os.Readlink(filepath.Join(self, "ns/net"))
	ours, err2 := os.Readlink(filepath.Join(h.Proc, "self/ns/net"))
	if err1 != nil || err2 != nil || theirs == ours {
		return ""
	}
	return filepath.Join(self, "net/dev")
}

// exists reports whether a file can be found.
func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// CPU returns the processor time used so far, and false if the host does not report CPU use.
func (g Gauge) CPU() (time.Duration, bool) {
	b, err := read(g.cpu)
	if err != nil {
		return 0, false
	}
	if usec, ok := field(b, "usage_usec"); ok { // version 2
		return time.Duration(usec) * time.Microsecond, true
	}
	// Version 1 has the use as one number, in nanoseconds.
	n, err := strconv.ParseInt(string(bytes.TrimSpace(b)), 10, 64)
	return time.Duration(n), err == nil
}

// Reading holds the values of one moment by metric: CPU in seconds, disks and network in bytes,
// all three since the container's start; memory in bytes in use.
type Reading map[wire.Metric]float64

// Read returns the present values, and an empty Reading once the container has ended.
func (g Gauge) Read() Reading {
	r := Reading{}
	if cpu, ok := g.CPU(); ok {
		r[wire.MetricCPU] = cpu.Seconds()
	}
	if used, ok := g.memoryInUse(); ok {
		r[wire.MetricMemory] = float64(used)
	}
	if b, err := read(g.disk); err == nil {
		in, out := diskBytes(b)
		r[wire.MetricDiskRead] = float64(in)
		r[wire.MetricDiskWritten] = float64(out)
	}
	if b, err := read(g.network); err == nil {
		in, out := networkBytes(b)
		r[wire.MetricReceived] = float64(in)
		r[wire.MetricSent] = float64(out)
	}
	return r
}

// memoryInUse returns the memory without inactive file cache, which the kernel can reclaim: the
// same figure as docker stats shows.
func (g Gauge) memoryInUse() (int64, bool) {
	b, err := read(g.memory)
	if err != nil {
		return 0, false
	}
	used, err := strconv.ParseInt(string(bytes.TrimSpace(b)), 10, 64)
	if err != nil {
		return 0, false
	}
	if b, err = read(g.cached); err == nil {
		cached, ok := field(b, "total_inactive_file") // version 1
		if !ok {
			cached, _ = field(b, "inactive_file")
		}
		used = max(0, used-cached)
	}
	return used, true
}

// diskBytes reads lines such as "8:0 Read 4096" (version 1) and "8:0
// rbytes=4096 wbytes=0" (version 2).
func diskBytes(b []byte) (in, out int64) {
	for line := range strings.Lines(string(b)) {
		words := strings.Fields(line)
		if len(words) == 3 && (words[1] == "Read" || words[1] == "Write") {
			words = []string{words[0], map[string]string{"Read": "rbytes=", "Write": "wbytes="}[words[1]] + words[2]}
		}
		for _, w := range words {
			name, value, _ := strings.Cut(w, "=")
			n, err := strconv.ParseInt(value, 10, 64)
			switch {
			case err != nil:
			case name == "rbytes":
				in += n
			case name == "wbytes":
				out += n
			}
		}
	}
	return in, out
}

// networkBytes sums the counters in /proc/PID/net/dev: one line for each device, with the received
// bytes in the first column and the sent ones in the ninth. Loopback traffic does not count.
func networkBytes(b []byte) (in, out int64) {
	for line := range strings.Lines(string(b)) {
		name, rest, ok := strings.Cut(line, ":")
		words := strings.Fields(rest)
		if !ok || len(words) < 9 || strings.TrimSpace(name) == "lo" {
			continue
		}
		rx, err1 := strconv.ParseInt(words[0], 10, 64)
		tx, err2 := strconv.ParseInt(words[8], 10, 64)
		if err1 == nil && err2 == nil {
			in, out = in+rx, out+tx
		}
	}
	return in, out
}

// field returns the number in a line such as "usage_usec 123", and false without such a line.
func field(b []byte, name string) (int64, bool) {
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(rest), 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

// read reads a file, and fails with os.ErrNotExist for a file that Open did not find.
func read(file string) ([]byte, error) {
	if file == "" {
		return nil, fmt.Errorf("not known: %w", os.ErrNotExist)
	}
	return os.ReadFile(file)
}
