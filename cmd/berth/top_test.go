package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/wire"
)

// The use of 300 machines is readable in 80 columns, also with long names.
func TestTopFitsInEightyColumns(t *testing.T) {
	t.Parallel()
	a, b := onTerminal(80, false)
	var list []wire.Machine
	for i := range 300 {
		busy := 0.5
		list = append(list, wire.Machine{
			ID:       berth.MachineID(fmt.Sprintf("gpu-node-of-the-west-%d", i)),
			State:    berth.MachineDraining,
			Capacity: berth.Capacity{CPUMilli: 256_000, MemoryMiB: 2048 << 10, GPUMilli: 8000},
			Used:     berth.Capacity{CPUMilli: 255_500, MemoryMiB: 1000 << 10, GPUMilli: 7250},
			Measured: &wire.MeasuredUse{Use: wire.Use{CPUMilli: 123_456, MemoryMiB: 999 << 10,
				GPUs: []wire.GPUNow{{UUID: "GPU-1", Busy: &busy}}}},
		})
	}
	if err := showTop(a, wire.Page[wire.Machine]{Items: list}, topFlags{}); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	for _, line := range lines {
		if n := len([]rune(line)); n > 80 {
			t.Errorf("%d columns: %q", n, line)
		}
	}
	if want := "123.5/255.5/256"; len(lines) != 301 || !strings.Contains(lines[300], want) {
		t.Errorf("%d lines, and the last is %q", len(lines), lines[len(lines)-1])
	}
}

func TestHistoriesThatSpanDaysHaveDates(t *testing.T) {
	t.Parallel()
	a, b := onTerminal(120, false)
	show := func(times ...string) string {
		b.Reset()
		var page wire.Page[wire.Event]
		for _, text := range times {
			page.Items = append(page.Items, wire.Event{At: at(t, text), Kind: wire.EventState, To: berth.Queued})
		}
		if err := showEvents(a, page); err != nil {
			t.Fatal(err)
		}
		var shown []string
		for _, line := range strings.Split(strings.TrimSpace(b.String()), "\n")[1:] {
			first, _, _ := strings.Cut(line, "  ")
			shown = append(shown, first)
		}
		return strings.Join(shown, ", ")
	}
	// It is noon on 31 January.
	for want, times := range map[string][]string{
		"08:00:00.250, 09:00:00.000":               {"2026-01-31T08:00:00.25Z", "2026-01-31T09:00:00Z"},
		"2026-01-30 23:59:59, 2026-01-31 00:00:01": {"2026-01-30T23:59:59Z", "2026-01-31T00:00:01Z"},
		"2026-01-28 08:00:00, 2026-01-28 09:00:00": {"2026-01-28T08:00:00Z", "2026-01-28T09:00:00Z"},
	} {
		if got := show(times...); got != want {
			t.Errorf("times are %s, want %s", got, want)
		}
	}
	// A history that is followed has dates from its second day on.
	h, text := newHistory(a, false), ""
	for _, x := range []string{"2026-01-30T23:59:59Z", "2026-01-31T00:00:01Z"} {
		h.note(a, at(t, x))
		text += h.text(at(t, x)) + " "
	}
	if want := "23:59:59.000 2026-01-31 00:00:01 "; text != want {
		t.Errorf("followed: %q, want %q", text, want)
	}
}

func at(t *testing.T, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return at
}
