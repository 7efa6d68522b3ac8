package docker_test

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/volume"
	"github.com/docker/docker/client"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"berth/activities/node"
	"berth/activities/node/runtimetest"
	"berth/internal/machine/docker"
)

// machine is an engine with the test image, together with the raw client.
type machine struct {
	*docker.Engine
	t     *testing.T
	api   *client.Client
	image string
}

func newMachine(t *testing.T, host string, o docker.Options) *machine {
	t.Helper()
	if host == "" {
		host = runtimetest.DefaultHost
	}
	api, err := client.NewClientWithOpts(client.WithHost(host), client.WithAPIVersionNegotiation())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { api.Close() })
	return &machine{Engine: open(t, host, o), t: t, api: api, image: runtimetest.Image(t, host)}
}

// spec is a container with a name of its own, removed when the test ends.
func (m *machine) spec(command ...string) node.ContainerSpec {
	s := node.ContainerSpec{
		Name:      "berth-test-" + strings.ToLower(rand.Text()),
		Image:     m.image,
		Command:   command,
		CPUMilli:  500,
		MemoryMiB: 64,
	}
	m.t.Cleanup(func() {
		if err := m.Remove(context.Background(), s.Name); err != nil {
			m.t.Error(err)
		}
	})
	return s
}

func (m *machine) run(s node.ContainerSpec) node.Container {
	m.t.Helper()
	c, err := m.Create(m.t.Context(), s)
	if err != nil {
		m.t.Fatal(err)
	}
	if err := m.Start(m.t.Context(), s.Name); err != nil {
		m.t.Fatal(err)
	}
	return c
}

// output runs a container to its end and returns its output.
func (m *machine) output(s node.ContainerSpec) string {
	m.t.Helper()
	m.run(s)
	if _, err := m.Wait(m.t.Context(), s.Name); err != nil {
		m.t.Fatal(err)
	}
	return m.logs(s.Name)
}

func (m *machine) logs(name string) string {
	m.t.Helper()
	var all strings.Builder
	err := m.Logs(m.t.Context(), name, time.Time{}, false, func(l node.LogLine) error {
		all.WriteString(l.Text + "\n")
		return nil
	})
	if err != nil {
		m.t.Fatal(err)
	}
	return all.String()
}

var errSeen = errors.New("seen")

// await follows the log until the container has written the line.
func (m *machine) await(name, text string) {
	m.t.Helper()
	err := m.Logs(m.t.Context(), name, time.Time{}, true, func(l node.LogLine) error {
		if l.Text == text {
			return errSeen
		}
		return nil
	})
	if !errors.Is(err, errSeen) {
		m.t.Fatalf("container %s never wrote %q: %v", name, text, err)
	}
}

func TestContainerHasNoPrivileges(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "", docker.Options{})
	status := m.output(m.spec("read-file", "/proc/self/status"))
	for _, want := range []string{"CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"} {
		if !strings.Contains(status, want+"\n") {
			t.Errorf("the process's status lacks %q:\n%s", want, status)
		}
	}
	limits := m.output(m.spec("read-file", "/proc/self/limits"))
	if i := strings.Index(limits, "Max core file size"); i < 0 || strings.Fields(limits[i:])[4] != "0" {
		t.Errorf("core dumps are allowed:\n%s", limits)
	}
	if first := m.output(m.spec("read-file", "/proc/1/cmdline")); !strings.Contains(first, "docker-init") {
		t.Errorf("process 1 is %q, want an init process", first)
	}
}

func TestContainerHasItsLimits(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "", docker.Options{})
	s := m.spec("read-file", "/proc/mounts")
	s.ShmMiB, s.PidsLimit, s.MemoryMiB, s.CPUMilli = 5, 77, 96, 1_000_000
	mounts := m.output(s)
	if i := strings.Index(mounts, " /dev/shm "); i < 0 || !strings.Contains(strings.SplitN(mounts[i:], "\n", 2)[0], "size=5120k") {
		t.Errorf("/dev/shm is not 5 MiB:\n%s", mounts)
	}
	c, err := m.api.ContainerInspect(t.Context(), s.Name)
	if err != nil {
		t.Fatal(err)
	}
	info, err := m.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	h := c.HostConfig
	if h.Memory != 96<<20 || h.MemorySwap != h.Memory || *h.PidsLimit != 77 {
		t.Errorf("memory %d, with swap %d, pids %d", h.Memory, h.MemorySwap, *h.PidsLimit)
	}
	if want := info.CPUMilli * 1_000_000; h.NanoCPUs != want {
		t.Errorf("a quota above the machine's cores became %d, want %d", h.NanoCPUs, want)
	}
	if h.AutoRemove || h.RestartPolicy.Name != container.RestartPolicyDisabled || h.Privileged || len(h.Binds) > 0 || h.PublishAllPorts {
		t.Errorf("host config is %+v", h)
	}
	if h.LogConfig.Type != "json-file" || h.LogConfig.Config["max-size"] != "64m" || h.LogConfig.Config["max-file"] != "4" {
		t.Errorf("log config is %+v", h.LogConfig)
	}

	m.forksWithin(40)
	plain := m.spec("exit", "0")
	m.run(plain)
	if c, err = m.api.ContainerInspect(t.Context(), plain.Name); err != nil || *c.HostConfig.PidsLimit != 4096 || c.HostConfig.NanoCPUs != 500_000_000 {
		t.Errorf("by default: pids %d, cpus %d (error %v)", *c.HostConfig.PidsLimit, c.HostConfig.NanoCPUs, err)
	}
	if string(c.HostConfig.NetworkMode) != "bridge" {
		t.Errorf("network %q, want the engine's bridge", c.HostConfig.NetworkMode)
	}
}

// forksWithin fails unless a container with so many processes at most cannot
// have 60 children at a time. Children that end before the last is started are
// too few at a time to meet a limit: a busy machine has them live longer.
func (m *machine) forksWithin(limit int64) {
	m.t.Helper()
	for lives := 2 * time.Second; ; lives *= 4 {
		s := m.spec("fork", "60", lives.String())
		s.PidsLimit, s.CPUMilli = limit, 1_000_000
		switch out := m.output(s); {
		case strings.HasPrefix(out, "60 of 60") && lives < 2*time.Minute:
			continue
		// At the limit the test program may fail to get a thread of its own as well.
		case strings.HasPrefix(out, "60 of 60"), !strings.Contains(out, " of 60 children ran") && !strings.Contains(out, "failed to create new OS thread"):
			m.t.Errorf("the pids limit let through: %s", out)
		}
		return
	}
}

func TestImageCannotAddChecksOrKeepVolumes(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "", docker.Options{})
	img, err := mutate.Config(runtimetest.Build(t), v1.Config{
		Entrypoint:  []string{"/testprog"},
		Volumes:     map[string]struct{}{"/data": {}},
		Healthcheck: &v1.HealthConfig{Test: []string{"CMD", "/testprog", "exit", "1"}, Interval: time.Millisecond},
	})
	if err != nil {
		t.Fatal(err)
	}
	h := newHub(t)
	t.Cleanup(func() { removeImages(t, h.address) })
	ref := h.address + "/team/nosy:1"
	runtimetest.Load(t, "", ref, img)
	s := m.spec("exit", "0")
	s.Image = ref
	m.run(s)
	if _, err := m.Wait(t.Context(), s.Name); err != nil {
		t.Fatal(err)
	}
	c, err := m.api.ContainerInspect(t.Context(), s.Name)
	if err != nil {
		t.Fatal(err)
	}
	if c.State.Health != nil && c.State.Health.Status != container.NoHealthcheck {
		t.Errorf("the image's health check is in force: %+v", c.State.Health)
	}
	if len(c.Mounts) != 1 || c.Mounts[0].Name == "" {
		t.Fatalf("mounts are %+v, want the image's volume", c.Mounts)
	}
	if err := m.Remove(t.Context(), s.Name); err != nil {
		t.Fatal(err)
	}
	left, err := m.api.VolumeList(t.Context(), volume.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if slices.ContainsFunc(left.Volumes, func(v *volume.Volume) bool { return v.Name == c.Mounts[0].Name }) {
		t.Error("the image's volume outlived its container")
	}
}

func TestMissingHostFolderIsAnError(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "", docker.Options{})
	s := m.spec("exit", "0")
	s.Mounts = []node.Mount{{Host: t.TempDir() + "/absent", Target: "/x"}}
	if _, err := m.Create(t.Context(), s); err == nil || !strings.Contains(err.Error(), "absent") {
		t.Errorf("error is %v, want one that names the folder", err)
	}
}

func TestGPUWithoutDriverIsADeviceError(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "", docker.Options{})
	s := m.spec("exit", "0")
	s.GPUs = []string{"GPU-11111111-2222-3333-4444-555555555555"}
	if _, err := m.Create(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if err := m.Start(t.Context(), s.Name); !errors.Is(err, node.ErrDevice) {
		t.Errorf("error is %v, want %v", err, node.ErrDevice)
	}
	c, err := m.Inspect(t.Context(), s.Name)
	if err != nil || c.State != node.ContainerCreated || c.Error == "" {
		t.Errorf("after the refusal: %+v, %v", c, err)
	}
}

func TestFolderThatCannotBeIsABadCommand(t *testing.T) {
	t.Parallel()
	m := newMachine(t, "", docker.Options{})
	s := m.spec("exit", "0")
	s.WorkingDir = "/testprog/inside"
	_, err := m.Create(t.Context(), s)
	if err == nil {
		err = m.Start(t.Context(), s.Name)
	}
	if !errors.Is(err, node.ErrBadCommand) {
		t.Errorf("error is %v, want %v", err, node.ErrBadCommand)
	}
}

func TestOnlySocketsAreEngines(t *testing.T) {
	t.Parallel()
	for _, host := range []string{"tcp://127.0.0.1:2375", "http://engine", "ssh://root@engine"} {
		if _, err := docker.Open(host, docker.Options{}); err == nil {
			t.Errorf("%s was accepted", host)
		}
	}
}

// kill ends a container's first process from outside, behind the engine's back.
func kill(t *testing.T, pid int) {
	t.Helper()
	if pid <= 1 {
		t.Fatalf("process %d is no container's", pid)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}
