package rig

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Group is a set of processes whose cost is counted together.
type Group string

// The groups.
const (
	ControlPlane Group = "control plane"
	Temporal     Group = "temporal"
	PostgreSQL   Group = "postgresql"
	Agents       Group = "agents"
	Harness      Group = "harness" // this process, without its helpers
)

// Groups lists all groups.
var Groups = []Group{ControlPlane, Temporal, PostgreSQL, Agents, Harness}

// Servers are the groups that a control plane consists of.
var Servers = []Group{ControlPlane, Temporal, PostgreSQL}

// Reading is the CPU time used up to a moment.
type Reading struct {
	At   time.Time
	CPU  map[Group]time.Duration
	Host time.Duration // of the whole host
}

// Read reads the CPU time of all groups.
func (s *Stack) Read() Reading {
	r := Reading{At: time.Now(), CPU: map[Group]time.Duration{}, Host: hostCPU()}
	for _, g := range Groups {
		for _, pid := range s.pids(g) {
			r.CPU[g] += processCPU(pid)
		}
	}
	return r
}

// Cores returns the mean number of cores that a group used since an earlier
// reading.
func (r Reading) Cores(g Group, since Reading) float64 {
	return (r.CPU[g] - since.CPU[g]).Seconds() / r.At.Sub(since.At).Seconds()
}

// Others returns the mean number of cores that the rest of the host used since
// an earlier reading.
func (r Reading) Others(since Reading) float64 {
	d := r.Host - since.Host
	for _, g := range Groups {
		d -= r.CPU[g] - since.CPU[g]
	}
	return d.Seconds() / r.At.Sub(since.At).Seconds()
}

// pids returns the present processes of a group. Processes that have ended are left out.
func (s *Stack) pids(g Group) []int {
	var list []int
	switch g {
	case ControlPlane:
		for _, r := range s.replicas {
			list = append(list, r.process.PID)
		}
	case Temporal:
		list = append(list, s.dev.PID)
	case PostgreSQL:
		list = s.postgresPIDs()
	case Agents:
		for _, p := range s.agents {
			list = append(list, p.PID)
		}
	case Harness:
		list = append(list, os.Getpid())
	}
	return list
}

// postgresPIDs returns the postmaster and its present children. The CPU time of ended children is
// counted as the postmaster's.
func (s *Stack) postgresPIDs() []int {
	b, err := os.ReadFile(filepath.Join(s.Dir, "postgres", "data", "postmaster.pid"))
	if err != nil {
		return nil
	}
	first, _, _ := strings.Cut(string(b), "\n")
	master, err := strconv.Atoi(strings.TrimSpace(first))
	if err != nil {
		return nil
	}
	list := []int{master}
	b, _ = os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", master, master))
	for _, word := range strings.Fields(string(b)) {
		if pid, err := strconv.Atoi(word); err == nil {
			list = append(list, pid)
		}
	}
	return list
}

// clockTick is USER_HZ, which is 100 on every Linux that Go runs on.
const clockTick = time.Second / 100

// processCPU returns the CPU time of a process and of its reaped children; 0 of
// one that has ended.
func processCPU(pid int) time.Duration {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The fields after the command, which may itself hold blanks: state, ppid, ...
	field := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(field) < 15 {
		return 0
	}
	var sum time.Duration
	for _, i := range []int{11, 12, 13, 14} { // utime, stime, cutime, cstime
		n, _ := strconv.Atoi(field[i])
		sum += time.Duration(n) * clockTick
	}
	return sum
}

// hostCPU returns the CPU time of the whole host.
func hostCPU() time.Duration {
	b, _ := os.ReadFile("/proc/stat")
	line, _, _ := strings.Cut(string(b), "\n")
	var sum time.Duration
	for i, word := range strings.Fields(line) {
		if n, err := strconv.Atoi(word); err == nil && i != 4 && i != 5 && i < 9 { // not idle, iowait, guests
			sum += time.Duration(n) * clockTick
		}
	}
	return sum
}

// LoadAverage returns the host's load over one, five and fifteen minutes. A busy host makes figures worth less: other
// work has its own share of the CPU next to the groups of the services.
func LoadAverage() string {
	b, _ := os.ReadFile("/proc/loadavg")
	field := strings.Fields(string(b))
	return strings.Join(field[:min(3, len(field))], " ")
}

// Resident returns the resident memory of a process in MiB; 0 of one that has
// ended.
func Resident(pid int) float64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	field := strings.Fields(string(b))
	if err != nil || len(field) < 2 {
		return 0
	}
	pages, _ := strconv.ParseFloat(field[1], 64)
	return pages * float64(os.Getpagesize()) / (1 << 20)
}

// Memory returns the resident memory of the processes of a group in MiB. Pages
// that PostgreSQL's processes share are counted once for each.
func (s *Stack) Memory(g Group) []float64 {
	var list []float64
	for _, pid := range s.pids(g) {
		list = append(list, Resident(pid))
	}
	return list
}
