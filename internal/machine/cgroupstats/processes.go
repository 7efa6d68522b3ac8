package cgroupstats

import (
	"bytes"
	"cmp"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"berth/failure"
)

const (
	maxPIDs   = 4096 // processes of which the state is read
	tickHertz = 100  // of the times in /proc: the same on all Linux systems
)

// Processes returns the state of the container's processes, the one with the most CPU time first:
// at most failure.MaxHangProcesses. more is the number of the others. Wait channel and kernel
// stack are absent where the kernel hides them. A process of exec counts like any other.
func (g Gauge) Processes() (list []failure.HangProcess, more int) {
	for _, pid := range g.pids() {
		if p, ok := g.process(pid); ok {
			list = append(list, p)
		}
	}
	slices.SortStableFunc(list, func(a, b failure.HangProcess) int {
		return cmp.Or(cmp.Compare(b.CPUSeconds, a.CPUSeconds), cmp.Compare(a.PID, b.PID))
	})
	if n := len(list) - failure.MaxHangProcesses; n > 0 {
		list, more = list[:failure.MaxHangProcesses], n
	}
	for i := range list {
		list[i].Wait, list[i].Stack = g.waits(list[i].PID)
	}
	return list, more
}

// pids lists the processes of the container's group and of the groups below.
func (g Gauge) pids() []int {
	var list []int
	if g.group == "" {
		return nil
	}
	_ = filepath.WalkDir(g.group, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "cgroup.procs" {
			return nil // a group may end at any time
		}
		b, _ := os.ReadFile(path)
		for line := range strings.Lines(string(b)) {
			if pid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil && pid > 0 && len(list) < maxPIDs {
				list = append(list, pid)
			}
		}
		return nil
	})
	return list
}

// process reads the state of a process; false if the process has ended. The file has the form
// "42 (name) S 1 ...", and the name may contain blanks and parentheses.
func (g Gauge) process(pid int) (p failure.HangProcess, ok bool) {
	b, err := os.ReadFile(filepath.Join(g.proc, strconv.Itoa(pid), "stat"))
	if err != nil {
		return p, false
	}
	from, to := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if from < 0 || to < from {
		return p, false
	}
	// The fields after the name, which proc(5) numbers from 3.
	fields := strings.Fields(string(b[to+1:]))
	const state, user, system, threads = 3 - 3, 14 - 3, 15 - 3, 20 - 3
	if len(fields) <= threads || fields[state] == "Z" { // a zombie has ended
		return p, false
	}
	number := func(field int) int {
		n, _ := strconv.Atoi(fields[field])
		return n
	}
	return failure.HangProcess{
		PID: pid, Name: word(string(b[from+1 : to])), State: fields[state], Threads: number(threads),
		CPUSeconds: float64(number(user)+number(system)) / tickHertz,
	}, true
}

// waits returns the kernel function in which the main thread of a process waits, and its kernel
// stack. Both are for privileged readers only, and may be hidden even from them.
func (g Gauge) waits(pid int) (wait string, stack []string) {
	dir := filepath.Join(g.proc, strconv.Itoa(pid))
	if b, err := os.ReadFile(filepath.Join(dir, "wchan")); err == nil && string(b) != "0" {
		wait = word(string(b))
	}
	b, err := os.ReadFile(filepath.Join(dir, "stack"))
	if err != nil {
		return wait, nil
	}
	for line := range strings.Lines(string(b)) { // "[<0>] futex_wait_queue+0x66/0xa0"
		_, frame, _ := strings.Cut(strings.TrimSpace(line), "] ")
		frame, _, _ = strings.Cut(frame, "+")
		if frame != "" && len(stack) < failure.MaxHangFrames {
			stack = append(stack, word(frame))
		}
	}
	if wait == "" && len(stack) > 0 {
		wait = stack[0]
	}
	return wait, stack
}

// word returns a text of the kernel, or of a program, as valid UTF-8 within the bound.
func word(s string) string {
	s = strings.TrimSpace(strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", ""), "?"))
	return strings.ToValidUTF8(s[:min(len(s), failure.MaxHangWord)], "")
}
