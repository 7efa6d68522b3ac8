package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/system"

	"berth/internal/lib/subprocess"
	"berth/wire"
)

// versionPatience bounds a program that prints its version.
const versionPatience = 10 * time.Second

// hostReader describes how an engine separates containers from the host.
type hostReader struct{ engine *Engine }

// Host returns the versions and the settings of the engine that separate containers from the host. A component whose
// version cannot be read is listed without a version. withGPUs states that the machine has GPUs of NVIDIA, which
// containers reach through the NVIDIA Container Toolkit.
func (r *hostReader) Host(ctx context.Context, withGPUs bool) (wire.HostFacts, error) {
	asking, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	info, err := r.engine.api.Info(asking)
	if err != nil {
		return wire.HostFacts{}, fmt.Errorf("describe docker engine: %w", err)
	}
	version, err := r.engine.api.ServerVersion(asking)
	if err != nil {
		return wire.HostFacts{}, fmt.Errorf("ask docker engine for its versions: %w", err)
	}
	return hostFacts(ctx, info, version, withGPUs, printVersion), nil
}

// hostFacts assembles the facts. ask runs a program of a machine with --version and returns its output.
func hostFacts(ctx context.Context, info system.Info, version types.Version, withGPUs bool,
	ask func(ctx context.Context, path string) (string, error)) wire.HostFacts {
	// A setting that cannot be read counts as absent.
	options, _ := system.DecodeSecurityOptions(info.SecurityOptions)
	f := wire.HostFacts{Runtime: info.DefaultRuntime, Cgroup: info.CgroupVersion}
	for _, o := range options {
		switch o.Name {
		case "seccomp":
			f.Seccomp = "default"
			for _, kv := range o.Options {
				if kv.Key == "profile" {
					f.Seccomp = kv.Value
				}
			}
		case "apparmor", "selinux":
			f.LSM = strings.TrimPrefix(f.LSM+","+o.Name, ",")
		case "userns":
			f.UserNS = true
		case "rootless":
			f.Rootless = true
		}
	}
	add := func(name, version string) {
		f.Components = append(f.Components, wire.HostComponent{Name: name, Version: version})
	}
	add(wire.ComponentEngine, info.ServerVersion)
	add(wire.ComponentContainerd, componentVersion(version, wire.ComponentContainerd))
	nvidia := info.DefaultRuntime == "nvidia"
	switch runtime := info.DefaultRuntime; {
	case nvidia: // it starts containers by runc, and the engine reads the version of either
		add(wire.ComponentRunc, programVersion(ctx, ask, "runc"))
	case runtime != "":
		add(runtime, cmp.Or(componentVersion(version, runtime), programVersion(ctx, ask, runtime)))
	}
	if toolkit, found := toolkitVersion(ctx, info, ask); found || withGPUs || nvidia {
		add(wire.ComponentToolkit, toolkit)
	}
	add(wire.ComponentKernel, info.KernelVersion)
	return f
}

// componentVersion returns the version of a component as the engine reports it, "" if it does not.
func componentVersion(v types.Version, name string) string {
	for _, c := range v.Components {
		if strings.EqualFold(c.Name, name) {
			return c.Version
		}
	}
	return ""
}

// toolkitVersion returns the version of the NVIDIA Container Toolkit. Its programs are looked for in PATH, and next to
// the runtime of the engine. found is false if there are none.
func toolkitVersion(ctx context.Context, info system.Info,
	ask func(context.Context, string) (string, error)) (version string, found bool) {
	folders := []string{""}
	if r, ok := info.Runtimes["nvidia"]; ok {
		found = true
		if filepath.IsAbs(r.Path) {
			folders = append(folders, filepath.Dir(r.Path))
		}
	}
	for _, name := range []string{"nvidia-ctk", "nvidia-container-cli"} {
		for _, folder := range folders {
			out, err := ask(ctx, filepath.Join(folder, name))
			if errors.Is(err, exec.ErrNotFound) {
				continue
			}
			found = true
			if v := versionIn(out); err == nil && v != "" {
				return v, true
			}
		}
	}
	return "", found
}

// programVersion returns the version that a program in PATH prints, "" if it prints none.
func programVersion(ctx context.Context, ask func(context.Context, string) (string, error), name string) string {
	out, err := ask(ctx, name)
	if err != nil {
		return ""
	}
	return versionIn(out)
}

// versionPattern matches the first version of a text, such as "NVIDIA Container Toolkit CLI version 1.17.8".
var versionPattern = regexp.MustCompile(`\d+\.\d+(\.\d+)?[-+~.0-9A-Za-z]*`)

// versionIn returns the first version in the output of a program.
func versionIn(out string) string { return versionPattern.FindString(out) }

// printVersion runs a program with --version. A program that does not exist is exec.ErrNotFound.
func printVersion(ctx context.Context, name string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return "", exec.ErrNotFound
	}
	if path, err = filepath.Abs(path); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, versionPatience)
	defer cancel()
	out := &subprocess.Tail{Limit: 4096}
	err = subprocess.Run(ctx, subprocess.Program{Path: path, Args: []string{"--version"}, Stdout: out, Stderr: out})
	return out.Text(), err
}
