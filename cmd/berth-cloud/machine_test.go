package main

import (
	"archive/tar"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth/e2e/commands"
	"berth/internal/control/cloud"
	"berth/internal/control/cloud/cloudexec"
	"berth/internal/control/cloud/offers"
)

// engineHost is a folder of local instances with container engines of their own.
type engineHost struct {
	dir     string
	program string // berth-cloud
	*cloudexec.Provider
}

// openEngineHost returns a provider whose engines have the image pause:1. Its instances run machine.sh.
func openEngineHost(t *testing.T) engineHost {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("private Docker engines need root: run the tests of this package as root")
	}
	bin := t.TempDir()
	if err := commands.Build(bin, commands.Shipped, "berth-cloud"); err != nil {
		t.Fatal(err)
	}
	h := engineHost{dir: filepath.Join(t.TempDir(), "machines"), program: filepath.Join(bin, "berth-cloud")}
	prices := file(t, "offers.csv", offers.Header+"\nlocal,here,,small,on_demand,2,512,0,,1,example value,2026-11-26\n")
	command := []string{h.program, "local", "--dir", h.dir, "--agent", absolute(t, "testdata/machine.sh"), "--offers",
		prices, "--engines=private", "--image=pause:1=" + pauseImage(t)}
	var err error
	if h.Provider, err = cloudexec.New(cloudexec.Options{Name: "local", Command: command}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if out, err := exec.Command(h.program, "reclaim", "--dir", h.dir, "--all").CombinedOutput(); err != nil {
			t.Errorf("machines live on: %v: %s", err, out)
		}
	})
	return h
}

// pauseImage returns the path of a tarball with a program that waits.
func pauseImage(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "pause")
	build := exec.Command("go", "build", "-o", program, "../../internal/devstack/dockerd/testdata/pause")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the test image: %v: %s", err, out)
	}
	text, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(program + ".tar")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := tar.NewWriter(f)
	if err := w.WriteHeader(&tar.Header{Name: "pause", Mode: 0o755, Size: int64(len(text))}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

// launch creates the instance of localLaunch, and starts a container on its engine.
func (h engineHost) launch(t *testing.T) (l cloud.Launch, i cloud.Instance, container int) {
	t.Helper()
	l = localLaunch("http://127.0.0.1:1")
	err := answered(func() (err error) {
		i, err = h.Create(t.Context(), l)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(h.dir, l.Token, "log")
	engine := ""
	await(t, "the agent to start on its engine, with its join token", func() bool {
		text, _ := os.ReadFile(log)
		_, after, found := strings.Cut(string(text), "--docker-host=")
		engine, _, _ = strings.Cut(strings.SplitN(after, "\n", 2)[0], " ") // other flags follow
		return found && strings.Contains(after, "BERTH_JOIN_TOKEN=berth_JOIN_SECRET\n")
	})
	docker := func(args ...string) string {
		out, err := exec.Command("docker", append([]string{"--host", engine}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("docker %s: %v: %s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	id := docker("run", "--detach", "--network=none", "pause:1", "/pause")
	if container, err = strconv.Atoi(docker("inspect", "--format={{.State.Pid}}", id)); err != nil || !living(container) {
		t.Fatalf("the container does not run: %d, %v", container, err)
	}
	return l, i, container
}

// holders returns all processes that have the lock of an instance open: the agent, its host and the engine.
func (h engineHost) holders(l cloud.Launch) (pids []int) {
	alive := filepath.Join(h.dir, l.Token, "alive")
	links, _ := filepath.Glob("/proc/[0-9]*/fd/3")
	for _, link := range links {
		if to, err := os.Readlink(link); err != nil || to != alive {
			continue
		}
		if pid, err := strconv.Atoi(strings.Split(link, "/")[2]); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// living reports whether a process exists and is no zombie.
func living(pid int) bool {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

// assertGone checks that an instance is terminated, and that nothing of its engine is left.
func (h engineHost) assertGone(t *testing.T, l cloud.Launch, container int) {
	t.Helper()
	var i cloud.Instance
	err := answered(func() (err error) {
		i, err = h.Find(t.Context(), l)
		return err
	})
	if err != nil || i.State != cloud.Terminated {
		t.Errorf("the instance is %+v, %v", i, err)
	}
	if living(container) {
		t.Error("the container lives on")
	}
	folder := filepath.Join(h.dir, l.Token, engineFolder)
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range lines {
		if text, _ := os.ReadFile(path); strings.Contains(string(text), folder) {
			t.Errorf("a process of the engine is left: %s %q", path, text)
		}
	}
	if _, err := os.Stat(filepath.Join(folder, "data")); !os.IsNotExist(err) {
		t.Errorf("the disk of the machine is left: %v", err)
	}
}

const engineFolder = "engine"

func TestTerminateEndsContainersOfAnInstance(t *testing.T) {
	t.Parallel()
	h := openEngineHost(t)
	l, i, container := h.launch(t)
	if err := answered(func() error { return h.Terminate(t.Context(), i) }); err != nil {
		t.Fatal(err)
	}
	h.assertGone(t, l, container)
}

// The instance is shown as terminated only once its containers are gone, whatever ended its process.
func TestContainersEndWithTheProcessOfTheirInstance(t *testing.T) {
	t.Parallel()
	h := openEngineHost(t)
	l, _, container := h.launch(t)
	// They are stopped first: an engine that sees the end of another process would end the container in order.
	holders, killed := h.holders(l), 0
	for _, pid := range holders {
		_ = syscall.Kill(pid, syscall.SIGSTOP) // ESRCH: it has just ended
	}
	for _, pid := range holders {
		if syscall.Kill(pid, syscall.SIGKILL) == nil {
			killed++
		}
	}
	if killed < 3 || !living(container) {
		t.Fatalf("%d processes hold the lock, and the container lives: %v", killed, living(container))
	}
	await(t, "the end of the instance", func() bool {
		found, err := h.Find(t.Context(), l)
		return err == nil && found.State == cloud.Terminated
	})
	h.assertGone(t, l, container)
}

// A reclaimed machine gets its notice, and ends at the announced time with an agent that ignores it.
func TestReclaimWritesTheNoticeAndKills(t *testing.T) {
	t.Parallel()
	h := openEngineHost(t)
	l, _, container := h.launch(t)
	out, err := exec.Command(h.program, "reclaim", "--dir", h.dir, "--lead", "1s", "burst-1").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "machine burst-1 killed") {
		t.Fatalf("%v: %s", err, out)
	}
	h.assertGone(t, l, container)
	text, err := os.ReadFile(filepath.Join(h.dir, l.Token, "notice.json"))
	_, at, _ := strings.Cut(strings.TrimSuffix(string(text), `"}`), `"time":"`)
	if _, parsed := time.Parse(time.RFC3339, at); err != nil || parsed != nil {
		t.Errorf("the notice is %s, %v, %v", text, err, parsed)
	}
	if out, err := exec.Command(h.program, "reclaim", "--dir", h.dir, "burst-1").CombinedOutput(); err == nil ||
		!strings.Contains(string(out), "no instance of this machine exists") {
		t.Errorf("a machine that is gone: %v: %s", err, out)
	}
}

// A call without private engines must not report a machine as terminated whose containers may live.
func TestCallWithoutEnginesReportsNoEnd(t *testing.T) {
	t.Parallel()
	h := openHost(t, "/bin/true")
	l := localLaunch("http://127.0.0.1:1")
	engine := filepath.Join(h.dir, l.Token, engineFolder)
	if err := os.MkdirAll(engine, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Create(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	await(t, "an error that names the setting", func() bool {
		_, err := h.Find(t.Context(), l)
		return err != nil && strings.Contains(err.Error(), "--engines=host")
	})
	if err := os.RemoveAll(engine); err != nil {
		t.Fatal(err)
	}
}
