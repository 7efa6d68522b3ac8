package docker_test

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	"berth/activities/node"
	"berth/activities/node/runtimetest"
	"berth/internal/machine/docker"
)

// A command that a user runs in a container must not have more rights than the container's own.
func TestExecHasTheRightsOfItsContainer(t *testing.T) {
	t.Parallel()
	e := open(t, runtimetest.DefaultHost, docker.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	name := "berth-test-exec-rights-" + strings.ToLower(t.Name()[:4]) + time.Now().Format("150405.000000")
	_, err := e.Create(ctx, node.ContainerSpec{
		Name: name, Image: runtimetest.Image(t, runtimetest.DefaultHost), CPUMilli: 1000, MemoryMiB: 64,
		Command: []string{"do", "read-file /proc/self/status", "sleep 1h"}, Labels: map[string]string{},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Remove(context.Background(), name) })
	if err := e.Start(ctx, name); err != nil {
		t.Fatal(err)
	}
	rights := func(status string) string {
		var kept []string
		for line := range strings.Lines(status) {
			for _, field := range []string{"Uid:", "Gid:", "Groups:", "NoNewPrivs:", "Seccomp:", "CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"} {
				if strings.HasPrefix(line, field) {
					kept = append(kept, strings.TrimSpace(line))
				}
			}
		}
		return strings.Join(kept, "\n")
	}
	var own strings.Builder
	following, stop := context.WithCancel(ctx)
	_ = e.Logs(following, name, time.Time{}, true, func(l node.LogLine) error {
		own.WriteString(l.Text + "\n")
		if strings.HasPrefix(l.Text, "nonvoluntary_ctxt_switches") { // the last line
			stop()
		}
		return nil
	})
	stop()
	x, err := e.Exec(ctx, name, node.ExecSpec{Command: []string{"/testprog", "read-file", "/proc/self/status"}})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	entered, err := io.ReadAll(x.Stdout())
	if err != nil {
		t.Fatal(err)
	}
	want, got := rights(own.String()), rights(string(entered))
	if want == "" || got != want || !strings.Contains(got, "NoNewPrivs:\t1") {
		t.Errorf("the container has the rights\n%s\nand the command\n%s", want, got)
	}
}
