package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"berth"
)

// The list of checkpoints shows the new bytes of each once any of them shares content.
func TestCheckpointsShowTheirNewBytes(t *testing.T) {
	t.Parallel()
	list := []berth.Checkpoint{
		{Step: 2, Attempt: 1, State: berth.CheckpointVerified, Bytes: 3 << 30, Stored: new(int64(5 << 20)), CreatedAt: time.Unix(0, 0)},
		{Step: 1, Attempt: 1, State: berth.CheckpointVerified, Bytes: 3 << 30, CreatedAt: time.Unix(0, 0)},
	}
	show := func(list []berth.Checkpoint) string {
		var out bytes.Buffer
		a := &app{out: &out, now: time.Now}
		if err := checkpointTable(a, list, false).write(&out); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	lines := strings.Split(show(list), "\n")
	if !strings.Contains(lines[0], "SIZE") || !strings.Contains(lines[0], "NEW") || !strings.Contains(lines[1], "5.0 MiB") ||
		strings.Count(lines[2], "3.0 GiB") != 2 {
		t.Errorf("the table is\n%s", strings.Join(lines, "\n"))
	}
	if got := show(list[1:]); strings.Contains(got, "NEW") {
		t.Errorf("without shared content the table is\n%s", got)
	}
}
