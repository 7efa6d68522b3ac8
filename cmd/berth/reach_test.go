package main

import (
	"strings"
	"testing"

	"berth"
	"berth/spec"
	"berth/wire"
)

func TestShowNamesTheUserAndTheRoot(t *testing.T) {
	t.Parallel()
	shown := func(s spec.Job) string {
		a, b := onTerminal(120, false)
		if err := describeJob(a, wire.Job{ID: "01900000-0000-7000-8000-00000000000a", Spec: &s}, false); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	s := spec.Job{Image: "busybox"}.WithDefaults()
	if text := shown(s); strings.Contains(text, "user") || strings.Contains(text, "root") {
		t.Errorf("without a choice:\n%s", text)
	}
	s.User, s.ReadOnlyRoot = "image", true
	if text := shown(s); !strings.Contains(text, "image") || !strings.Contains(text, "read-only, with a /tmp of 64MiB") {
		t.Errorf("with both:\n%s", text)
	}
}

// The server computes the user by the rules of now, and a container that has started keeps its own.
func TestTheUserOfAStartedJobIsThatOfANewContainer(t *testing.T) {
	t.Parallel()
	for status, want := range map[berth.State]bool{berth.Queued: false, berth.Retrying: false, berth.Running: true,
		berth.Scheduled: true, "": false} {
		s := sheet{}
		addUser(&s, spec.Job{}.WithDefaults(), "tenant", status)
		if got := strings.Contains(s.rows[0][1], "for containers that start now"); got != want {
			t.Errorf("%q: %q", status, s.rows)
		}
	}
}

func TestUsersAreDescribed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ chosen, runsAs, want string }{
		{"", "", ""}, // an ended job
		{"tenant", "", "tenant"},
		{"", "image", "the one that the image names, often root"},
		{"", "tenant", "one of the tenant, not root; its number comes with the first container"},
		{"", "2010000000:2010000000", "2010000000:2010000000, of the tenant, not root"},
		{"tenant", "2010000000:2010000000", "2010000000:2010000000, of the tenant, not root"},
		{"0", "0:0", "0:0"},
	} {
		if got := userText(c.chosen, c.runsAs); got != c.want {
			t.Errorf("user %q that runs as %q is shown as %q, want %q", c.chosen, c.runsAs, got, c.want)
		}
	}
}
