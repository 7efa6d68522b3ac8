package rig

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// kernel is a folder that behaves like the kernel's control groups: a new group has its files at once.
type kernel struct {
	base  string
	files map[string][]string // by the folder that is mounted below base: files of each of its groups
}

func (k kernel) mkdir(path string) error {
	if err := os.Mkdir(path, 0o700); err != nil {
		return err
	}
	folder, err := filepath.Rel(k.base, filepath.Dir(path))
	for _, name := range k.files[folder] {
		err = errors.Join(err, os.WriteFile(filepath.Join(path, name), nil, 0o600))
	}
	return err
}

func newKernel(t *testing.T, files map[string][]string) kernel {
	t.Helper()
	k := kernel{base: t.TempDir(), files: files}
	for folder := range files {
		if err := os.MkdirAll(filepath.Join(k.base, folder), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return k
}

func (k kernel) find() *cgroups { return findCgroups(k.base, k.mkdir, os.RemoveAll) }

// Files of a group under each version.
var (
	v1Files = []string{"cgroup.procs", "cpu.shares", "cpu.cfs_quota_us"}
	v2Files = []string{"cgroup.procs", "cpu.weight", "cpu.max"}
)

func TestGroupsHaveTheFilesOfTheirVersion(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		files                      map[string][]string
		folder, weight, quota, set string
		equal                      string
	}{
		"version 1": {map[string][]string{"cpu": v1Files}, "cpu", "cpu.shares", "cpu.cfs_quota_us", "50000", "1024"},
		"version 2": {map[string][]string{".": v2Files}, "", "cpu.weight", "cpu.max", "50000 100000", "100"},
		"both, the CPU in version 1": {map[string][]string{"cpu": v1Files, "unified": {"cgroup.procs"}},
			"cpu", "cpu.shares", "cpu.cfs_quota_us", "50000", "1024"},
		"both, the CPU in version 2": {map[string][]string{"memory": {"cgroup.procs"}, "unified": v2Files},
			"unified", "cpu.weight", "cpu.max", "50000 100000", "100"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newKernel(t, c.files)
			tree := k.find()
			if tree == nil {
				t.Fatal("no groups were found")
			}
			g, err := tree.create("service")
			if err == nil {
				err = errors.Join(g.limit(0.5), g.add(os.Getpid()))
			}
			if err != nil {
				t.Fatal(err)
			}
			if want := filepath.Join(k.base, c.folder); filepath.Dir(g.dir) != want {
				t.Errorf("the group is %s, want a group in %s", g.dir, want)
			}
			for file, want := range map[string]string{
				c.weight: c.equal, c.quota: c.set, "cgroup.procs": fmt.Sprint(os.Getpid()),
			} {
				if got, err := os.ReadFile(filepath.Join(g.dir, file)); err != nil || string(got) != want {
					t.Errorf("%s holds %q, %v; want %q", file, got, err, want)
				}
			}
			g.remove()
			if left, _ := filepath.Glob(filepath.Join(filepath.Dir(g.dir), groupPrefix+"*")); len(left) > 0 {
				t.Errorf("groups are left: %v", left)
			}
		})
	}
}

func TestHostsWithoutAWeightOrAQuotaHaveNoGroups(t *testing.T) {
	t.Parallel()
	for name, files := range map[string]map[string][]string{
		"nothing is mounted":          {},
		"a group cannot be limited":   {"cpu": {"cgroup.procs", "cpu.shares"}},
		"the controller is elsewhere": {".": {"cgroup.procs"}, "unified": {"cgroup.procs"}},
	} {
		k := newKernel(t, files)
		if k.find() != nil {
			t.Errorf("%s: groups were found", name)
		}
		s := newServices(nil, "stack")
		s.add("berthd", os.Getpid())
		if err := s.apart(map[string][]int{"berthd": {os.Getpid()}}); err == nil {
			t.Errorf("%s: services are said to be in groups of their own", name)
		}
	}
}

func TestGroupsOfEndedProcessesAreRemoved(t *testing.T) {
	t.Parallel()
	k := newKernel(t, map[string][]string{"cpu": v1Files})
	ended := exec.Command("true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	left := filepath.Join(k.base, "cpu", fmt.Sprintf("%s%d-s-1-agents", groupPrefix, ended.Process.Pid))
	mine := filepath.Join(k.base, "cpu", fmt.Sprintf("%s%d-s-1-agents", groupPrefix, os.Getpid()))
	if err := errors.Join(k.mkdir(left), k.mkdir(mine)); err != nil {
		t.Fatal(err)
	}
	if k.find() == nil {
		t.Fatal("no groups were found")
	}
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the group of an ended process is left: %v", err)
	}
	if _, err := os.Stat(mine); err != nil {
		t.Errorf("the group of a live process: %v", err)
	}
}

func TestAServiceOutsideItsGroupIsSeen(t *testing.T) {
	t.Parallel()
	k := newKernel(t, map[string][]string{"cpu": v1Files})
	s := newServices(k.find(), "stack")
	me, parent := os.Getpid(), os.Getppid()
	s.add("berthd", me)
	s.add("agents", parent)
	if err := s.apart(map[string][]int{"berthd": {me}, "agents": {parent}, "none": nil}); err != nil {
		t.Errorf("each service has its group: %v", err)
	}
	if err := s.apart(map[string][]int{"berthd": {me, parent}}); err == nil {
		t.Error("a process in the group of another service is not seen")
	}
	if err := s.apart(map[string][]int{"temporal": {me}}); err == nil {
		t.Error("a service without a group is not seen")
	}
	s.close()
	var none *services
	none.add("berthd", me)
	if none.apart(nil) == nil {
		t.Error("services that nothing moved are said to be in groups of their own")
	}
}

// On a host with writable groups the kernel itself says where a process and its children run; elsewhere the answer
// must be no.
func TestAProcessAndItsChildrenRunInTheGroupOfTheirService(t *testing.T) {
	t.Parallel()
	s := newServices(hostCgroups(), filepath.Base(t.TempDir())+fmt.Sprint(os.Getpid()))
	defer s.close()
	// The shell waits for a line, so that its child starts after the move.
	shell := exec.Command("sh", "-c", "read line; cat /proc/self/cgroup")
	in, err := shell.StdinPipe()
	var out strings.Builder
	shell.Stdout = &out
	if err == nil {
		err = shell.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	s.add("service", shell.Process.Pid)
	apart := s.apart(map[string][]int{"service": {shell.Process.Pid}})
	if _, err := in.Write([]byte("go\n")); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(in.Close(), shell.Wait()); err != nil {
		t.Fatal(err)
	}
	inside := slices.ContainsFunc(strings.Split(out.String(), "\n"), func(line string) bool {
		return strings.Contains(line, groupPrefix) && strings.HasSuffix(line, "-service")
	})
	if inside != (apart == nil) {
		t.Errorf("the child runs in\n%s, and the answer is: %v", out.String(), apart)
	}
	if (hostCgroups() != nil) != inside {
		t.Errorf("the host has groups: %v; the child is in one: %v", hostCgroups() != nil, inside)
	}
}
