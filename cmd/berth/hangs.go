package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"berth/failure"
	"berth/wire"
)

// shownLines is the number of log lines that show prints for a member, the last ones; wide prints all.
const shownLines = 5

// showHangs prints the evidence of the attempts that hung, in order: the odd member, a table of
// the members, and the last log lines of the odd member or, if no member is named, of the first
// one. Wide prints the lines and the kernel stacks of all members.
func showHangs(a *app, list []failure.Hang, wide bool) error {
	for _, h := range list {
		fmt.Fprintf(a.out, "\nhang of attempt %d", h.Attempt)
		if h.Odd != nil {
			fmt.Fprintf(a.out, ": %s", oneLine(h.Odd.Text()))
		}
		fmt.Fprintln(a.out)
		t := hangTable(a, h, wide)
		if err := t.write(a.out); err != nil {
			return err
		}
		if h.More > 0 {
			a.say("%s of attempt %d not shown", plural(h.More, "member", "members"), h.Attempt)
		}
		for _, m := range h.Members {
			if wide || m.Rank == spokesman(h) {
				showHungMember(a, m, wide)
			}
		}
	}
	return nil
}

// spokesman returns the member whose log lines are shown.
func spokesman(h failure.Hang) int {
	if h.Odd != nil && h.Odd.Rank != nil {
		return *h.Odd.Rank
	}
	if len(h.Members) > 0 {
		return h.Members[0].Rank
	}
	return -1
}

// hangTable returns the table of the members of a hang; the odd one stands out.
func hangTable(a *app, h failure.Hang, wide bool) *table {
	t := &table{screen: a.outTerm, head: []string{"MEMBER", "MACHINE", "QUIET", "STEP", "CPU", "GPU BUSY",
		"GPU MEMORY", "GPU POWER", "PROCESSES", "WAITS IN"}}
	for _, m := range h.Members {
		as := plain
		// Without one odd member, all candidates stand out.
		if h.Odd != nil && (h.Odd.Rank != nil && *h.Odd.Rank == m.Rank || slices.Contains(h.Odd.Candidates, m.Rank)) {
			as = warn
		}
		step, cpu, wait := "-", "-", "-"
		if m.Step != nil {
			step = fmt.Sprint(*m.Step)
			if m.StepSeconds != nil {
				step += " (" + hangTime(*m.StepSeconds) + ")"
			}
		}
		if m.CPU != nil {
			cpu = valueOf(*m.CPU, wire.UnitCores)
		}
		// The first process is the one with the most CPU time.
		if len(m.Processes) > 0 && m.Processes[0].Wait != "" {
			wait = m.Processes[0].Wait
		}
		busy, memory, power := gpuCells(m.GPUs, wide)
		t.add(cell{fmt.Sprint(m.Rank), as}, string(m.Machine), hangTime(m.QuietSeconds), step, cpu, busy, memory, power,
			processCell(m), wait)
	}
	return t
}

// gpuCells formats the devices of a member: the lowest and the highest value, or with wide each.
func gpuCells(gpus []failure.HangGPU, wide bool) (busy, memory, power string) {
	column := func(value func(failure.HangGPU) *float64, format func(float64) string) string {
		var texts []string
		var values []float64
		for _, g := range gpus {
			if v := value(g); v != nil {
				values, texts = append(values, *v), append(texts, format(*v))
			}
		}
		switch {
		case len(values) == 0:
			return "-"
		case wide:
			return strings.Join(texts, ",")
		}
		low, high := format(slices.Min(values)), format(slices.Max(values))
		if low == high {
			return low
		}
		return low + "-" + high
	}
	percent := func(v float64) string { return fmt.Sprintf("%.0f%%", v*100) }
	watts := func(v float64) string { return fmt.Sprintf("%.0fW", v) }
	return column(func(g failure.HangGPU) *float64 { return g.Busy }, percent),
		column(func(g failure.HangGPU) *float64 { return g.MemoryBusy }, percent),
		column(func(g failure.HangGPU) *float64 { return g.Watts }, watts)
}

// processCell formats the states of a member's processes: "R python, S docker-init, 3 more".
func processCell(m failure.HangEvidence) string {
	const shown = 2
	var parts []string
	for i, p := range m.Processes {
		if i == shown {
			break
		}
		parts = append(parts, p.State+" "+p.Name)
	}
	if more := len(m.Processes) + m.More - len(parts); more > 0 {
		parts = append(parts, fmt.Sprintf("%d more", more))
	}
	return orDash(strings.Join(parts, ", "))
}

// showHungMember prints the last log lines of a member and, with wide, the kernel stacks of its
// processes.
func showHungMember(a *app, m failure.HangEvidence, wide bool) {
	lines := m.Lines
	if !wide {
		lines = lines[max(0, len(lines)-shownLines):]
	}
	if len(lines) > 0 {
		fmt.Fprintf(a.out, "last lines of member %d:\n", m.Rank)
	}
	for _, l := range lines {
		fmt.Fprintf(a.out, "  %s\n", oneLine(l))
	}
	if !wide {
		return
	}
	for _, p := range m.Processes {
		if len(p.Stack) > 0 {
			fmt.Fprintf(a.out, "kernel stack of process %d (%s) of member %d: %s\n", p.PID, oneLine(p.Name), m.Rank,
				oneLine(strings.Join(p.Stack, " < ")))
		}
	}
}

// hangTime formats seconds as a duration without fractions.
func hangTime(seconds float64) string {
	return (time.Duration(seconds) * time.Second).String()
}
