package main

import (
	"strings"
	"testing"

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
