package docker

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/system"
	"github.com/google/go-cmp/cmp"

	"berth/wire"
)

// programs are the outputs of programs with --version, by path.
type programs map[string]string

func (p programs) print(_ context.Context, path string) (string, error) {
	out, ok := p[path]
	switch {
	case !ok:
		return "", exec.ErrNotFound
	case out == "":
		return "", errors.New("exit status 1")
	}
	return out, nil
}

func debian() (system.Info, types.Version) {
	return system.Info{ServerVersion: "20.10.24+dfsg1", DefaultRuntime: "runc", CgroupVersion: "2",
			KernelVersion: "6.1.0-18-amd64", SecurityOptions: []string{"name=seccomp,profile=default"}},
		types.Version{Components: []types.ComponentVersion{{Name: "Engine", Version: "20.10.24+dfsg1"},
			{Name: "containerd", Version: "1.6.20~ds1"}, {Name: "runc", Version: "1.1.5+ds1"}}}
}

func TestFactsOfAnEngine(t *testing.T) {
	t.Parallel()
	info, version := debian()
	got := hostFacts(t.Context(), info, version, false, programs{}.print)
	want := wire.HostFacts{Runtime: "runc", Seccomp: "default", Cgroup: "2", Components: []wire.HostComponent{
		{Name: "engine", Version: "20.10.24+dfsg1"}, {Name: "containerd", Version: "1.6.20~ds1"},
		{Name: "runc", Version: "1.1.5+ds1"}, {Name: "kernel", Version: "6.1.0-18-amd64"}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Debian 12 (-want +got):\n%s", diff)
	}
	info.SecurityOptions = []string{"name=apparmor", "name=seccomp,profile=unconfined", "name=selinux", "name=userns",
		"name=rootless", "name=cgroupns"}
	got = hostFacts(t.Context(), info, version, false, programs{}.print)
	if got.Seccomp != "unconfined" || got.LSM != "apparmor,selinux" || !got.UserNS || !got.Rootless {
		t.Errorf("settings: %+v", got)
	}
	info.SecurityOptions = []string{"name=seccomp,profile"}
	if got := hostFacts(t.Context(), info, version, false, programs{}.print); got.Seccomp != "" {
		t.Errorf("settings that cannot be read: %+v", got)
	}
	version.Components = nil
	got = hostFacts(t.Context(), info, version, false, programs{"runc": "runc version 1.3.6\nspec: 1.2.1"}.print)
	if v, ok := got.Version("containerd"); v != "" || !ok {
		t.Errorf("containerd without a version: %+v", got)
	}
	if v, _ := got.Version("runc"); v != "1.3.6" {
		t.Errorf("runc by its own output: %+v", got)
	}
}

func TestFactsOfTheNVIDIAToolkit(t *testing.T) {
	t.Parallel()
	const ctk = "NVIDIA Container Toolkit CLI version 1.17.8\ncommit: f202b80a9b9d0db00d9b1d73c0128c8962c55f4d\n"
	const cli = "cli-version: 1.17.7\nlib-version: 1.17.7\nbuild date: 2025-05-16T12:44+00:00\n"
	for _, x := range []struct {
		what     string
		programs programs
		runtime  string
		withGPUs bool
		want     []string // version, or none
	}{
		{"absent", nil, "", false, nil},
		{"a GPU without a toolkit", nil, "", true, []string{""}},
		{"in PATH", programs{"nvidia-ctk": ctk, "nvidia-container-cli": cli}, "", false, []string{"1.17.8"}},
		{"nvidia-container-cli alone", programs{"nvidia-container-cli": cli}, "", true, []string{"1.17.7"}},
		{"next to the runtime", programs{"/opt/nvidia/nvidia-ctk": ctk}, "/opt/nvidia/nvidia-container-runtime", true,
			[]string{"1.17.8"}},
		{"a runtime without programs", nil, "nvidia-container-runtime", false, []string{""}},
		{"a program that fails", programs{"nvidia-ctk": ""}, "", false, []string{""}},
	} {
		info, version := debian()
		if x.runtime != "" {
			info.Runtimes = map[string]system.RuntimeWithStatus{"nvidia": {Runtime: system.Runtime{Path: x.runtime}}}
		}
		got := hostFacts(t.Context(), info, version, x.withGPUs, x.programs.print)
		var list []string
		if v, ok := got.Version(wire.ComponentToolkit); ok {
			list = []string{v}
		}
		if !slices.Equal(list, x.want) {
			t.Errorf("%s: %q, want %q", x.what, list, x.want)
		}
	}
	info, version := debian()
	info.DefaultRuntime = "nvidia"
	got := hostFacts(t.Context(), info, version, false, programs{"nvidia-ctk": ctk, "runc": "runc version 1.3.6"}.print)
	if v, _ := got.Version("runc"); got.Runtime != "nvidia" || v != "1.3.6" {
		t.Errorf("the default runtime nvidia: %+v", got)
	}
}

func TestAProgramPrintsItsVersion(t *testing.T) {
	t.Parallel()
	if out, err := printVersion(t.Context(), "cp"); err != nil || versionIn(out) == "" {
		t.Errorf("cp: %q, %v", out, err)
	}
	for _, name := range []string{"berth-has-no-such-program", filepath.Join(t.TempDir(), "none")} {
		if _, err := printVersion(t.Context(), name); !errors.Is(err, exec.ErrNotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
