package docker_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/activities/node"
	"berth/activities/node/runtimetest"
	"berth/internal/machine/docker"
)

func TestEngineWithoutBridgeRunsContainers(t *testing.T) {
	t.Parallel()
	d := runtimetest.StartDockerd(t)
	m := newMachine(t, d.Host(), docker.Options{})
	s := m.spec("read-file", "/proc/net/dev")
	if out := m.output(s); strings.Count(out, ":") != 1 || !strings.Contains(out, "lo:") {
		t.Errorf("interfaces are\n%s\nwant loopback alone", out)
	}
	first, err := m.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if first.LiveRestore {
		t.Error("live restore is on")
	}
	if entries, err := os.ReadDir(filepath.Join(first.DataRoot, "containers")); err != nil || first.DataRoot == "/var/lib/docker" {
		t.Errorf("the engine's data root is %q: %v, %v", first.DataRoot, entries, err)
	}
	d.Stop()
	if _, err := m.Info(t.Context()); err == nil {
		t.Error("an engine that is down answers")
	}
	d.Start()
	second, err := m.Info(t.Context())
	if err != nil || second.EngineID != first.EngineID {
		t.Errorf("after a restart the engine is %q (error %v), was %q", second.EngineID, err, first.EngineID)
	}
	host, err := open(t, "", docker.Options{}).Info(t.Context())
	if err != nil || host.EngineID == first.EngineID {
		t.Errorf("two engines of one machine have the id %q (error %v)", host.EngineID, err)
	}
}

func TestContainersOutliveAKilledEngine(t *testing.T) {
	t.Parallel()
	d := runtimetest.StartDockerd(t, "--live-restore")
	m := newMachine(t, d.Host(), docker.Options{})
	if info, err := m.Info(t.Context()); err != nil || !info.LiveRestore {
		t.Errorf("info is %+v, %v; want live restore", info, err)
	}
	stays, ends := m.spec("trap-term", "5"), m.spec("do", "echo ready", "trap-term 0")
	m.run(stays)
	m.run(ends)
	m.await(stays.Name, "ready")
	m.await(ends.Name, "ready")
	before, err := m.Inspect(t.Context(), ends.Name)
	if err != nil {
		t.Fatal(err)
	}

	waiting := make(chan error, 2)
	go func() {
		_, err := m.Wait(t.Context(), stays.Name)
		waiting <- err
	}()
	followed := make(chan struct{})
	go func() {
		var once bool
		waiting <- m.Logs(t.Context(), stays.Name, time.Time{}, true, func(node.LogLine) error {
			if !once {
				once = true
				close(followed)
			}
			return nil
		})
	}()
	<-followed
	d.Kill()
	for range 2 {
		if err := <-waiting; err == nil || errors.Is(err, node.ErrNoContainer) {
			t.Errorf("the wait or follower of a living container returned %v", err)
		}
	}

	// One container ends without an observer.
	kill(t, before.PID)
	d.Start()
	c, err := m.Wait(t.Context(), ends.Name)
	if err != nil || c.State != node.ContainerExited || c.ID != before.ID {
		t.Errorf("the one that ended meanwhile: %+v, %v", c, err)
	}
	t.Logf("exit code seen after the restart: %d", c.ExitCode)
	if c, err := m.Inspect(t.Context(), stays.Name); err != nil || c.State != node.ContainerRunning {
		t.Fatalf("the one that stayed: %+v, %v", c, err)
	}
	if err := m.Stop(t.Context(), stays.Name, time.Minute); err != nil {
		t.Fatal(err)
	}
	if c, err := m.Inspect(t.Context(), stays.Name); err != nil || c.ExitCode != 5 {
		t.Errorf("the one that stayed ended as %+v, %v", c, err)
	}
	if out := m.logs(stays.Name); out != "ready\nterm\n" {
		t.Errorf("its log is %q", out)
	}
}

func TestFrozenEngineDoesNotHoldCallersBeyondTheirContext(t *testing.T) {
	t.Parallel()
	d := runtimetest.StartDockerd(t)
	m := newMachine(t, d.Host(), docker.Options{})
	s := m.spec("sleep", "1h")
	m.run(s)
	d.Freeze()
	defer d.Thaw()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := m.Wait(ctx, s.Name)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("wait: error is %v, want %v", err, context.DeadlineExceeded)
	}
	if err := m.Stop(ctx, s.Name, 0); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("stop: error is %v, want %v", err, context.DeadlineExceeded)
	}
}
