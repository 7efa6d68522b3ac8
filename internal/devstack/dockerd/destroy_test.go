package dockerd_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth/internal/devstack/dockerd"
)

// A machine whose manager is gone, with a container that runs, ends with everything but its log.
func TestDestroyEndsAMachineOfAnotherProcess(t *testing.T) {
	t.Parallel()
	m := boot(t, dockerd.Options{})
	tarball, err := pauseImage()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "pause.tar")
	if err := os.WriteFile(path, tarball, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, want := range []bool{true, false} { // the engine keeps an image of the name
		if got, err := dockerd.ImportImage(t.Context(), m.Host(), "pause:1", path); err != nil || got != want {
			t.Fatalf("imported %v, want %v: %v", got, want, err)
		}
	}
	if _, err := dockerd.ImportImage(t.Context(), m.Host(), "bad:1", "/none"); err == nil {
		t.Error("a file that is missing is no error")
	}
	id := m.run(t)
	state, err := m.api.ContainerInspect(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := dockerd.Destroy(ended, m.dir); err == nil {
		t.Error("a machine that another process holds is destroyed")
	}
	if err := m.Release(); err != nil {
		t.Fatal(err)
	}
	if err := dockerd.Destroy(t.Context(), m.dir); err != nil {
		t.Fatal(err)
	}
	// A process that has ended may stay as a zombie for a while: its parent has ended, too.
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", state.State.Pid))
	if err == nil && !strings.Contains(string(stat), ") Z ") {
		t.Errorf("the container's process lives on: %s", stat)
	}
	if _, err := os.Stat(filepath.Join(m.dir, "data")); !os.IsNotExist(err) {
		t.Errorf("images and containers are left: %v", err)
	}
	if _, err := os.Stat(filepath.Join(m.dir, "dockerd.log")); err != nil {
		t.Errorf("the log is gone: %v", err)
	}
	if err := dockerd.Destroy(t.Context(), m.dir); err != nil {
		t.Errorf("a repetition fails: %v", err)
	}
	if err := dockerd.Destroy(t.Context(), filepath.Join(m.dir, "none")); err != nil {
		t.Errorf("a folder that is missing: %v", err)
	}
}

// A fault that waiting does not cure is returned at once.
func TestDestroyReturnsAFaultOfTheLock(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "lock"), 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if err := dockerd.Destroy(ctx, dir); !errors.Is(err, syscall.EISDIR) || ctx.Err() != nil {
		t.Errorf("error %v, with the context %v", err, ctx.Err())
	}
}
