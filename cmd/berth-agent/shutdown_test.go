package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A command that hangs, or leaves a child with its output, must not keep the agent from being started again.
func TestShutdownCommandIsLimited(t *testing.T) {
	t.Parallel()
	leaves := filepath.Join(t.TempDir(), "leaves.sh")
	pid := leaves + ".pid"
	if err := os.WriteFile(leaves, fmt.Appendf(nil, "sleep 60 &\necho $! >%s\n", pid), 0o600); err != nil {
		t.Fatal(err)
	}
	defer func() {
		text, err := os.ReadFile(pid)
		if err != nil {
			t.Fatal(err)
		}
		if err := shutDown(t.Context(), "kill "+strings.TrimSpace(string(text)), time.Minute); err != nil {
			t.Error(err)
		}
	}()
	for command, says := range map[string]string{
		"sleep 3600": "it ran for 50ms, which is the limit", "true": "", "false": "exit status 1",
		"/nowhere/poweroff now": "no such file",
	} {
		limit := time.Minute
		if command == "sleep 3600" {
			limit = 50 * time.Millisecond
		}
		err := shutDown(t.Context(), command, limit)
		if (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", command, err)
		}
	}
	if err := shutDown(t.Context(), "/bin/sh "+leaves, time.Minute); err != nil {
		t.Errorf("a command whose child runs on: %v", err)
	}
}
