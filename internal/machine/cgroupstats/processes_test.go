package cgroupstats_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/failure"
)

// stat is the kernel's line about a process.
func stat(pid int, name, state string, user, system, threads int) string {
	return fmt.Sprintf("%d (%s) %s 1 1 1 0 -1 4194304 0 0 0 0 %d %d 0 0 20 0 %d 0 100 0 0\n", pid, name, state, user, system, threads)
}

func TestProcessesOfAContainerAreRead(t *testing.T) {
	t.Parallel()
	h := host(t, "net:[2]", map[string]string{
		"proc/42/cgroup":                       "0::/docker/abc\n",
		"cgroup/docker/abc/cpu.stat":           "usage_usec 1\n",
		"cgroup/docker/abc/cgroup.procs":       "42\n43\n44\n45\n46\n",
		"cgroup/docker/abc/below/cgroup.procs": "47\n",
		"cgroup/docker/other/cgroup.procs":     "48\n",
		"proc/42/stat":                         stat(42, "docker-init", "S", 0, 1, 1),
		"proc/42/wchan":                        "do_sigtimedwait",
		"proc/43/stat":                         stat(43, "a (strange) name", "D", 250, 50, 12),
		"proc/43/wchan":                        "0",
		"proc/43/stack":                        "[<0>] rpc_wait_bit_killable+0x1e/0xa0\n[<0>] nfs_wait+0x2/0x3\n",
		"proc/44/stat":                         stat(44, "zombie", "Z", 900, 0, 1),
		"proc/45/stat":                         "45 (half a li",
		"proc/47/stat":                         stat(47, "python", "T", 1000, 0, 3),
		"proc/48/stat":                         stat(48, "of another container", "R", 5000, 0, 3),
	})
	want := []failure.HangProcess{
		{PID: 47, Name: "python", State: "T", Threads: 3, CPUSeconds: 10},
		{PID: 43, Name: "a (strange) name", State: "D", Threads: 12, CPUSeconds: 3, Wait: "rpc_wait_bit_killable", Stack: []string{"rpc_wait_bit_killable", "nfs_wait"}},
		{PID: 42, Name: "docker-init", State: "S", Threads: 1, CPUSeconds: 0.01, Wait: "do_sigtimedwait"},
	}
	got, more := h.Open(42).Processes()
	if diff := cmp.Diff(want, got); diff != "" || more != 0 {
		t.Errorf("%d more (-want +got):\n%s", more, diff)
	}
}

// A process is as its threads are: a running thread shows more than a main thread that waits for it.
func TestAThreadTellsTheStateOfItsProcess(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ main, first, second, state, wait string }{
		"all sleep":                {"S", "S", "S", "S", "main_waits"},
		"one runs":                 {"S", "S", "R", "R", "main_waits"},
		"one is blocked":           {"S", "D", "S", "D", "disk"},
		"one is blocked, one runs": {"S", "D", "R", "R", "main_waits"},
		"the main thread runs":     {"R", "S", "D", "R", ""},
		"it is stopped":            {"T", "R", "T", "T", "main_waits"},
	} {
		h := host(t, "net:[2]", map[string]string{
			"proc/42/cgroup": "0::/c\n", "cgroup/c/cpu.stat": "usage_usec 1\n", "cgroup/c/cgroup.procs": "42\n",
			"proc/42/stat": stat(42, "python", c.main, 5, 0, 3), "proc/42/wchan": "main_waits",
			"proc/42/task/42/stat": stat(42, "python", c.main, 1, 0, 3), "proc/42/task/42/wchan": "main_waits",
			"proc/42/task/43/stat": stat(43, "python", c.first, 1, 0, 3), "proc/42/task/43/wchan": "disk",
			"proc/42/task/44/stat": stat(44, "python", c.second, 3, 0, 3), "proc/42/task/44/wchan": "0",
		})
		got, _ := h.Open(42).Processes()
		if len(got) != 1 || got[0].State != c.state || got[0].Wait != c.wait {
			t.Errorf("%s: %+v, want %s in %q", name, got, c.state, c.wait)
		}
	}
}

// The init process of a container, and a shell of a user, say nothing about the program.
func TestTheProgramComesBeforeItsInit(t *testing.T) {
	t.Parallel()
	h := host(t, "net:[2]", map[string]string{
		"proc/42/cgroup": "0::/c\n", "cgroup/c/cpu.stat": "usage_usec 1\n", "cgroup/c/cgroup.procs": "42\n43\n44\n",
		"proc/42/stat": stat(42, "docker-init", "S", 3, 0, 1),
		"proc/43/stat": strings.Replace(stat(43, "python", "S", 0, 0, 3), "S 1 ", "S 42 ", 1),
		"proc/44/stat": stat(44, "bash", "R", 900, 0, 1),
	})
	got, _ := h.Open(42).Processes()
	if len(got) != 3 || got[0].Name != "python" || got[1].Name != "bash" || got[2].Name != "docker-init" {
		t.Errorf("processes are %+v", got)
	}
}

// A container that shares the root group has no list: it would have the processes of others.
func TestProcessesOfTheRootGroupAreNotRead(t *testing.T) {
	t.Parallel()
	h := host(t, "net:[2]", map[string]string{
		"proc/42/cgroup": "0::/\n", "cgroup/cpu.stat": "usage_usec 1\n", "cgroup/cgroup.procs": "42\n",
		"proc/42/stat": stat(42, "init", "S", 0, 1, 1),
	})
	if got, _ := h.Open(42).Processes(); got != nil {
		t.Errorf("processes are %+v", got)
	}
}

func TestProcessesAreBounded(t *testing.T) {
	t.Parallel()
	files := map[string]string{"proc/42/cgroup": "0::/c\n", "cgroup/c/cpu.stat": "usage_usec 1\n"}
	const all = failure.MaxHangProcesses + 5
	for pid := 1; pid <= all; pid++ {
		files["cgroup/c/cgroup.procs"] += fmt.Sprintln(pid)
		dir := fmt.Sprintf("proc/%d/", pid)
		files[dir+"stat"] = stat(pid, strings.Repeat("é", 200), "S", pid, 0, 1)
		files[dir+"wchan"] = strings.Repeat("w", 500)
		files[dir+"stack"] = strings.Repeat("[<0>] "+strings.Repeat("f", 500)+"+0x1/0x2\n", 50)
	}
	got, more := host(t, "net:[2]", files).Open(42).Processes()
	if err := (failure.HangEvidence{Processes: got}).Valid(); err != nil || more != 5 || got[0].PID != all || len(got) != failure.MaxHangProcesses {
		t.Errorf("%d processes and %d more, the first %+v, %v", len(got), more, got[0], err)
	}
}
