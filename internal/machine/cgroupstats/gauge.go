// Package cgroupstats reads a container's resource usage from the kernel's files:
// control groups of either version, and the network devices of the container's
// namespace. It does not call the container engine, so that a sample costs a few
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

// Host is where the kernel's files are. The zero value is the usual places.
type Host struct {
	Proc   string // "": /proc
	Cgroup string // "": /sys/fs/cgroup
}

// Gauge reads one container. What its host does not tell is left out of the
// readings; the zero value knows nothing. It may be used concurrently.
type Gauge struct {
	cpu, memory, cached, disk, network string // files; "" where there is none
}

// Open finds the files of the container that a process of the host lives in.
// Without control groups, or for a process that is gone, it finds none.
func (h Host) Open(pid int) Gauge {
	if h.Proc == "" {
		h.Proc = "/proc"
	}
	if h.Cgroup == "" {
		h.Cgroup = "/sys/fs/cgroup"
	}
	var g Gauge
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
		}
		return
	}
	for name := range strings.SplitSeq(controllers, ",") {
		find := func(file string) string {
			for _, mount := range []string{controllers, name, "cpu,cpuacct"} {
				if f := filepath.Join(h.Cgroup, mount, group, file); exists(f) {
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

// network is the file of a process's network devices, "" if they are the host's
// own, of which nobody can say what the container used.
func (h Host) network(self string) string {
	theirs, err1 := os.Readlink(filepath.Join(self, "ns/net"))
	ours, err2 := os.Readlink(filepath.Join(h.Proc, "self/ns/net"))
	if err1 != nil || err2 != nil || theirs == ours {
		return ""
	}
	return filepath.Join(self, "net/dev")
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// CPU is the processor time used so far; false if it is not known.
func (g Gauge) CPU() (time.Duration, bool) {
	b, err := read(g.cpu)
	if err != nil {
		return 0, false
	}
	if usec, ok := field(b, "usage_usec"); ok { // version 2
		return time.Duration(usec) * time.Microsecond, true
	}
	n, err := strconv.ParseInt(string(bytes.TrimSpace(b)), 10, 64)
	return time.Duration(n), err == nil
}

// Reading is what was read at a moment: of the CPU the seconds, of disks and
// network the bytes, since the container began; of memory the bytes in use.
type Reading map[wire.Metric]float64

// Read returns all that is known now; nothing once the container has ended.
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

// memoryInUse is what the kernel could not take back by forgetting files that
// nobody has read for a while: what docker stats shows.
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

// networkBytes reads /proc/PID/net/dev: a device a line, received bytes first,
// sent ones ninth.
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

// field finds a line "name 123".
func field(b []byte, name string) (int64, bool) {
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(rest), 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

func read(file string) ([]byte, error) {
	if file == "" {
		return nil, fmt.Errorf("not known: %w", os.ErrNotExist)
	}
	return os.ReadFile(file)
}
