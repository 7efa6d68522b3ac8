package agent

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"berth/activities/node"
)

// process writes the kernel's files of a process.
func process(t *testing.T, dir, pid, comm, cgroup, namespace string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(dir, pid, "ns"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"comm": comm + "\n", "cgroup": cgroup,
		"stat": pid + " (a) b) S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4200 1 1\n"} {
		if err := os.WriteFile(filepath.Join(dir, pid, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(namespace, filepath.Join(dir, pid, "ns", "pid")); err != nil {
		t.Fatal(err)
	}
}

func TestProcessesOfContainersAreToldFromOthers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := procs{dir}
	process(t, dir, "self", "berth-agent", "0::/system.slice/agent\n", "pid:[1]")
	process(t, dir, "10", "init", "0::/docker/abc\n", "pid:[10]")
	process(t, dir, "11", "python", "0::/docker/abc/train\n", "pid:[10]")
	process(t, dir, "12", "python", "0::/docker/abcd\n", "pid:[12]")
	process(t, dir, "13", "Xorg", "0::/docker/abcd\n", "pid:[12]")
	process(t, dir, "14", "Xorg", "0::/user.slice\n", "pid:[1]")
	process(t, dir, "15", "nvidia-persiste", "0::/\n", "pid:[1]")
	process(t, dir, "20", "init", "5:pids:/docker/old\n4:memory:/\n", "pid:[20]")
	process(t, dir, "21", "python", "5:pids:/docker/old\n4:memory:/other\n", "pid:[20]")
	if err := os.WriteFile(filepath.Join(dir, "stat"), []byte("cpu 1\nbtime 1000\nprocesses 5\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	own := []cgroup{p.group(10), p.group(20)}
	allow := []string{"Xorg", "nvidia-persistenced"}
	for pid, want := range map[int][2]bool{10: {true, false}, 11: {true, false}, 12: {false, false}, 13: {false, false},
		14: {false, true}, 15: {false, true}, 21: {true, false}, 99: {false, false}} {
		if got := [2]bool{p.inGroup(pid, own), p.allowed(pid, allow)}; got != want {
			t.Errorf("process %d: of a container, allowed: %v, want %v", pid, got, want)
		}
	}
	want := "process 12 (python) with 3.0 GiB since " + time.Unix(1042, 0).UTC().Format(time.RFC3339)
	if got := p.describe(node.GPUProcess{PID: 12, Bytes: 3 << 30}); got != want {
		t.Errorf("described as %q, want %q", got, want)
	}
}
