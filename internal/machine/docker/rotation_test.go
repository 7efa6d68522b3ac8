package docker_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"berth/activities/node"
	"berth/internal/machine/docker"
)

// A reader who keeps up loses nothing when the engine rotates the log, and one
// who comes late gets an unbroken tail. The container writes the next batch when
// the reader has the last one, however busy the machine is.
func TestFollowingSurvivesRotation(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "", docker.Options{LogFileMiB: 1, LogFiles: 3})
	const batches, each = 8, 500 // of 1,000 bytes: more than the three files hold
	var commands []string
	for range batches {
		commands = append(commands, fmt.Sprintf("spam %d 1000", each), "trap-term 0")
	}
	s := m.spec(append([]string{"do"}, commands...)...)
	m.run(s)
	var got []string
	err := m.Logs(t.Context(), s.Name, time.Time{}, true, func(l node.LogLine) error {
		switch l.Text {
		case "ready":
			return m.Signal(t.Context(), s.Name, "SIGTERM")
		case "term":
			return nil
		}
		n, _, _ := strings.Cut(l.Text, " ")
		got = append(got, n)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != batches*each {
		t.Errorf("followed %d lines, want %d", len(got), batches*each)
	}
	for i, n := range got {
		if want := fmt.Sprint(i%each + 1); n != want {
			t.Fatalf("line %d is %s, want %s", i, n, want)
		}
	}
	late := strings.Count(m.logs(s.Name), "\n")
	if late == 0 || late > len(got)+2*batches {
		t.Errorf("afterwards there are %d lines", late)
	}
}
