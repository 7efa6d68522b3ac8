package docker_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"berth/activities/node"
	"berth/activities/node/runtimetest"
	"berth/internal/machine/docker"
)

// neighbor starts a container that uses its own processes and its own /dev/shm after the test has
// called goOn, and checks that both are whole.
func (m *machine) neighbor() (c node.Container, goOn func()) {
	m.t.Helper()
	dir := m.t.TempDir()
	s := m.spec("do", "echo ready", "await-file /shared/go", "fill /dev/shm/mine 2", "fork 4 1ms")
	s.ShmMiB, s.Mounts = 4, []node.Mount{{Host: dir, Target: "/shared"}}
	m.run(s)
	m.await(s.Name, "ready")
	c, err := m.Inspect(m.t.Context(), s.Name)
	if err != nil || c.PID == 0 {
		m.t.Fatalf("neighbor is %+v, %v", c, err)
	}
	return c, func() {
		m.t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o644); err != nil {
			m.t.Fatal(err)
		}
		ended, err := m.Wait(m.t.Context(), s.Name)
		if out := m.logs(s.Name); err != nil || ended.ExitCode != 0 || !strings.HasSuffix(out, "filled 2 MiB\n4 of 4 children ran\n") {
			m.t.Errorf("the neighbor ended as %+v, %v, with %q", ended, err, out)
		}
	}
}

// Each attempt of a program to leave its container is refused, by the
// error of the layer that refuses it.
func TestContainerCannotBeLeft(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "", docker.Options{})
	other, goOn := m.neighbor()
	refused := map[string][]syscall.Errno{
		"setuid": {syscall.EPERM}, "chroot": {syscall.EPERM}, "mknod": {syscall.EPERM},
		"unshare": {syscall.EPERM}, "userns": {syscall.EPERM},
		"mount": {syscall.EPERM}, "remount": {syscall.EPERM}, "pivot": {syscall.EPERM},
		"keyctl": {syscall.EPERM, syscall.ENOSYS}, "bpf": {syscall.EPERM}, "perf": {syscall.EPERM, syscall.EACCES},
		"module": {syscall.EPERM}, "sysctl": {syscall.EROFS, syscall.EACCES}, "sysrq": {syscall.EROFS, syscall.EACCES, syscall.ENOENT},
		// The processes of another container have no number in this one.
		"ptrace": {syscall.ESRCH}, "kill": {syscall.ESRCH}, "memory": {syscall.ENOENT},
	}
	var names []string
	for name := range refused {
		names = append(names, name)
	}
	slices.Sort(names)
	out := m.output(m.spec(append([]string{"attack", fmt.Sprint(other.PID)}, names...)...))
	answers := map[string]syscall.Errno{}
	for line := range strings.Lines(out) {
		var name string
		var number syscall.Errno
		if _, err := fmt.Sscanf(line, "%s %d", &name, &number); err == nil {
			answers[name] = number
		}
	}
	for _, name := range names {
		if number, tried := answers[name]; !tried || !slices.Contains(refused[name], number) {
			t.Errorf("%s: tried %v, answer %q (%d), want one of %v", name, tried, number, number, refused[name])
		}
	}
	if t.Failed() {
		t.Logf("output:\n%s", out)
	}
	goOn()
}

// The limits on processes and on /dev/shm stop the container that meets them, and no other one.
func TestContainerThatUsesUpItsLimitsStandsAlone(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "", docker.Options{})
	_, goOn := m.neighbor()
	m.forksWithin(40)
	s := m.spec("fill", "/dev/shm/all", "8")
	s.ShmMiB = 4
	if out := m.output(s); !strings.Contains(out, "no space left on device") {
		t.Errorf("/dev/shm of 4 MiB took 8: %s", out)
	}
	goOn()
}

// An image must not steer the hook that gives a container its GPUs.
func TestImageCannotSteerTheGPUHook(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "", docker.Options{})
	names := []string{"LD_PRELOAD", "NVIDIA_IMEX_CHANNELS", "NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES", "NVIDIA_NVSWITCH"}
	config := v1.Config{Entrypoint: []string{"/testprog"}}
	for _, name := range append(names, "NVIDIA_VISIBLE_DEVICES", "OTHER") {
		config.Env = append(config.Env, name+"=all")
	}
	img, err := mutate.Config(runtimetest.Build(t), config)
	if err != nil {
		t.Fatal(err)
	}
	h := newHub(t)
	t.Cleanup(func() { removeImages(t, h.address) })
	ref := h.address + "/team/steers:1"
	runtimetest.Load(t, "", ref, img)
	// This machine may have no hook, so its entries are tried in a container without GPUs.
	for _, c := range []struct {
		env  []string
		want string
	}{
		{docker.HookEnv(), strings.Join(names, " is unset\n") + " is unset\nNVIDIA_VISIBLE_DEVICES=GPU-1\nOTHER=all\n"},
		{docker.PlainEnv(), strings.Join(names, "=all\n") + "=all\nNVIDIA_VISIBLE_DEVICES=void\nOTHER=all\n"},
	} {
		s := m.spec()
		_, err := m.api.ContainerCreate(t.Context(), &container.Config{
			Image: ref, Env: c.env, Cmd: append(append([]string{"env"}, names...), "NVIDIA_VISIBLE_DEVICES", "OTHER"),
		}, &container.HostConfig{}, nil, nil, s.Name)
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Start(t.Context(), s.Name); err != nil {
			t.Fatal(err)
		}
		if _, err := m.Wait(t.Context(), s.Name); err != nil {
			t.Fatal(err)
		}
		if out := m.logs(s.Name); out != c.want {
			t.Errorf("environment is %q, want %q", out, c.want)
		}
	}
}

// The folder of the layer is known to engines with graph drivers; with the image store of
// containerd the list of mounts names it. Other storage drivers than overlay have none, so that the
// engine measures, and inodes are unknown: -1.
func TestLayerUseIsMeasured(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "", docker.Options{})
	s := m.spec("do", "fill /filled 3", "sleep 1h")
	m.run(s)
	m.await(s.Name, "filled 3 MiB")
	// A file system that allocates late counts a block when it writes the block back, so that the
	// use of a file just written may still grow.
	var bytes, inodes int64
	for end := time.Now().Add(time.Minute); bytes < 3<<20 && time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		var err error
		if bytes, inodes, err = m.LayerUse(t.Context(), s.Name, 0); err != nil {
			t.Fatal(err)
		}
	}
	if bytes < 3<<20 || bytes > 5<<20 || inodes < 1 && inodes != -1 {
		t.Errorf("layer has %d bytes in %d inodes", bytes, inodes)
	}
	c, err := m.Inspect(t.Context(), s.Name)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{c.ID, c.ID[:12], s.Name + "-none"} {
		if _, _, err := m.LayerUse(t.Context(), name, 0); err == nil || !strings.Contains(err.Error(), node.ErrNoContainer.Error()) {
			t.Errorf("layer of %s: %v", name, err)
		}
	}
}
