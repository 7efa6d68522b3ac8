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
	maxPIDs    = 4096 // processes of which the state is read
	maxThreads = 256  // of a process
	tickHertz  = 100  // of the times in /proc: the same on all Linux systems
)

// Processes returns the state of the container's processes, the one with the most CPU time first:
// at most failure.MaxHangProcesses. more is the number of the others. Wait channel and kernel
// stack are absent where the kernel hides them. A process with a parent outside of the container
// comes last, if there are others: the init process, and a shell that a user has opened.
func (g Gauge) Processes() (list []failure.HangProcess, more int) {
	parent := map[int]int{}
	for _, pid := range g.pids() {
		if p, of, ok := g.process(pid); ok {
			list = append(list, p)
			parent[pid] = of
		}
	}
	entered := func(p failure.HangProcess) int {
		if _, inside := parent[parent[p.PID]]; inside {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(list, func(a, b failure.HangProcess) int {
		return cmp.Or(entered(a)-entered(b), cmp.Compare(b.CPUSeconds, a.CPUSeconds), cmp.Compare(a.PID, b.PID))
	})
	if n := len(list) - failure.MaxHangProcesses; n > 0 {
		list, more = list[:failure.MaxHangProcesses], n
	}
	for i := range list {
		g.describe(&list[i])
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

// process reads the state of a process, and its parent; false if the process has ended.
func (g Gauge) process(pid int) (p failure.HangProcess, parent int, ok bool) {
	dir := filepath.Join(g.proc, strconv.Itoa(pid))
	main, ok := readStat(filepath.Join(dir, "stat"))
	if !ok || main.state == "Z" { // a zombie has ended
		return p, 0, false
	}
	return failure.HangProcess{
		PID: pid, Name: main.name, State: main.state, Threads: main.threads,
		CPUSeconds: float64(main.ticks) / tickHertz,
	}, main.parent, true
}

// describe fills in the state of a process: R if a thread runs, else D if one cannot be
// interrupted, else the main thread's. If the main thread is stopped, all are. It adds the kernel
// function and the stack in which the thread in state D waits, or else the main thread. A thread
// that runs has no such stack, only one of some moment before.
func (g Gauge) describe(p *failure.HangProcess) {
	main := filepath.Join(g.proc, strconv.Itoa(p.PID))
	waiting := main
	if p.State == "R" {
		waiting = ""
	}
	tasks, _ := os.ReadDir(filepath.Join(main, "task"))
	for _, task := range tasks[:min(len(tasks), maxThreads)] {
		thread := filepath.Join(main, "task", task.Name())
		s, ok := readStat(filepath.Join(thread, "stat"))
		if !ok || strings.EqualFold(p.State, "T") || p.State == "R" {
			continue
		}
		switch {
		case s.state == "R":
			p.State, waiting = "R", main
		case s.state == "D" && p.State != "D":
			p.State, waiting = "D", thread
		}
	}
	if waiting != "" {
		p.Wait, p.Stack = waits(waiting)
	}
}

// kernelStat is the state of a process or a thread from its stat file.
type kernelStat struct {
	name, state string
	parent      int
	threads     int
	ticks       int // CPU time
}

// readStat reads a stat file, which has the form "42 (name) S 1 ...". The name may contain blanks
// and parentheses.
func readStat(file string) (s kernelStat, ok bool) {
	b, err := os.ReadFile(file)
	if err != nil {
		return s, false
	}
	from, to := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if from < 0 || to < from {
		return s, false
	}
	// The fields after the name, which proc(5) numbers from 3.
	fields := strings.Fields(string(b[to+1:]))
	const first = 3
	const state, parent, user, system, threads = 3 - first, 4 - first, 14 - first, 15 - first, 20 - first
	if len(fields) <= threads {
		return s, false
	}
	number := func(field int) int {
		n, _ := strconv.Atoi(fields[field])
		return n
	}
	return kernelStat{
		name: word(string(b[from+1 : to])), state: word(fields[state]), parent: number(parent),
		threads: number(threads), ticks: number(user) + number(system),
	}, true
}

// waits returns the kernel function in which a process or thread waits, and its kernel stack. Both
// are for privileged readers only, and may be hidden even from them.
func waits(dir string) (wait string, stack []string) {
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
