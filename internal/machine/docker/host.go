package docker

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/api/types/strslice"
	"github.com/docker/docker/api/types/system"
	"github.com/docker/go-units"

	"berth/activities/node"
)

// The engine's own bounds and the defaults of the specification.
const (
	defaultPids   = 4096
	minMemoryMiB  = 6  // below it the engine refuses to create
	minCPUMilli   = 10 // likewise
	visibleDevice = "NVIDIA_VISIBLE_DEVICES"
)

// noDevices is the value of visibleDevice for a container whose devices the NVIDIA runtime does not
// grant.
const noDevices = "void"

// hookEnv are variables of images that the NVIDIA runtime hook obeys, on the host as root: devices
// beyond the reservation, and a library to load (CVE-2025-23266). A name without a value removes
// the variable from the container. Jobs cannot set these variables; see spec.
var hookEnv = []string{
	"LD_PRELOAD", "NVIDIA_IMEX_CHANNELS", "NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES", "NVIDIA_NVSWITCH",
}

// containerConfig returns the container's configuration: the job's own settings only.
func containerConfig(s node.ContainerSpec, gpus string) *container.Config {
	c := &container.Config{
		Image:      canonical(s.Image),
		Entrypoint: strslice.StrSlice(s.Entrypoint),
		Cmd:        strslice.StrSlice(s.Command),
		WorkingDir: s.WorkingDir,
		User:       s.User,
		Labels:     s.Labels,
		StopSignal: "SIGTERM",
		// An image's health check runs commands of its own inside the container
		// for as long as it lives; a job has no use for it.
		Healthcheck: &container.HealthConfig{Test: []string{"NONE"}},
	}
	if s.Entrypoint != nil && len(s.Entrypoint) == 0 {
		c.Entrypoint = strslice.StrSlice{""} // how the API spells "no entry point"
	}
	env := maps.Clone(s.Env)
	if env == nil {
		env = make(map[string]string, 1)
	}
	// The NVIDIA runtime reads this variable from the image and from the job, and
	// grants the devices that it names. Only the reservation decides on them.
	env[visibleDevice] = gpus
	for _, name := range slices.Sorted(maps.Keys(env)) {
		c.Env = append(c.Env, name+"="+env[name])
	}
	if gpus != noDevices {
		c.Env = append(c.Env, hookEnv...)
	}
	return c
}

// hostConfig returns the container's limits and isolation. No part of it can be changed by a job.
func (e *Engine) hostConfig(s node.ContainerSpec, info system.Info, net string,
	gpus []container.DeviceRequest) *container.HostConfig {
	memory := max(s.MemoryMiB, minMemoryMiB) << 20
	pids := cmp.Or(s.PidsLimit, defaultPids)
	withInit := true
	h := &container.HostConfig{
		CapDrop:     strslice.StrSlice{"ALL"},
		SecurityOpt: []string{"no-new-privileges:true"}, // the default seccomp and AppArmor profiles stay in force
		NetworkMode: container.NetworkMode(net),
		IpcMode:     container.IPCModePrivate,
		Init:        &withInit, // reaps orphans and hands on signals
		AutoRemove:  false,     // the exit code and the log must outlive the container
		RestartPolicy: container.RestartPolicy{
			Name: container.RestartPolicyDisabled,
		},
		ShmSize: s.ShmMiB << 20,
		LogConfig: container.LogConfig{Type: "json-file", Config: map[string]string{
			"max-size": strconv.FormatInt(e.options.LogFileMiB, 10) + "m",
			"max-file": strconv.Itoa(e.options.LogFiles),
		}},
		Resources: container.Resources{
			Memory:         memory,
			MemorySwap:     memory, // equal means no swap at all
			NanoCPUs:       nanoCPUs(s.CPUMilli, info.NCPU),
			PidsLimit:      &pids,
			DeviceRequests: gpus,
			Ulimits: []*units.Ulimit{
				{Name: "core", Soft: 0, Hard: 0}, // a core dump holds the job's secrets
			},
		},
	}
	if s.ReadOnlyRoot {
		h.ReadonlyRootfs = true
		// Programs compile and load libraries there, so files may be executed.
		h.Tmpfs = map[string]string{"/tmp": fmt.Sprintf("rw,exec,nosuid,nodev,mode=1777,size=%dm", s.TmpMiB)}
	}
	for _, a := range s.Resolvers {
		h.DNS = append(h.DNS, a.String())
	}
	if n := e.options.OpenFiles; n > 0 {
		h.Ulimits = append(h.Ulimits, &units.Ulimit{Name: "nofile", Soft: n, Hard: n})
	}
	if e.options.UnlimitedMemlock {
		h.Ulimits = append(h.Ulimits, &units.Ulimit{Name: "memlock", Soft: -1, Hard: -1})
	}
	for _, m := range s.Mounts {
		h.Mounts = append(h.Mounts, mount.Mount{
			Type:        mount.TypeBind,
			Source:      filepath.Clean(m.Host),
			Target:      filepath.Clean(m.Target),
			ReadOnly:    m.ReadOnly,
			BindOptions: &mount.BindOptions{Propagation: mount.PropagationRPrivate},
		})
	}
	return h
}

// nanoCPUs is the quota of so many millicores. The engine refuses a quota above
// the machine's cores, where it would limit nothing anyway.
func nanoCPUs(milli int64, cores int) int64 {
	if most := int64(cores) * 1000; cores > 0 && milli > most {
		milli = most
	}
	return max(milli, minCPUMilli) * 1_000_000
}

// defaultNetwork returns the engine's bridge, or no network on an engine without a bridge
// (dockerd --bridge=none), which fails every start on a named bridge.
func (e *Engine) defaultNetwork(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, e.bounds.call)
	defer cancel()
	_, err := e.api.NetworkInspect(ctx, network.NetworkBridge, network.InspectOptions{})
	switch {
	case err == nil:
		return network.NetworkBridge, nil
	case cerrdefs.IsNotFound(err):
		return network.NetworkNone, nil
	default:
		return "", fmt.Errorf("look for a bridge network: %w", err)
	}
}

// deviceRequests returns the engine's request for exactly these GPUs, and the matching value of
// NVIDIA_VISIBLE_DEVICES. An engine with CDI specifications, from Docker 25 on, receives CDI
// names; any other receives a request to the NVIDIA runtime hook. Under CDI, and without GPUs,
// the variable is void, so that a machine whose default runtime is NVIDIA's adds nothing.
func deviceRequests(info system.Info, gpus []string) ([]container.DeviceRequest, string) {
	if len(gpus) == 0 {
		return nil, noDevices
	}
	if usesCDI(info, gpus) {
		names := make([]string, len(gpus))
		for i, uuid := range gpus {
			names[i] = cdiName(uuid)
		}
		return []container.DeviceRequest{{Driver: "cdi", DeviceIDs: names}}, noDevices
	}
	return []container.DeviceRequest{{
		Driver:       "nvidia",
		DeviceIDs:    gpus,
		Capabilities: [][]string{{"gpu"}},
	}}, strings.Join(gpus, ",")
}

// cdiName returns the CDI name of a GPU.
func cdiName(uuid string) string { return "nvidia.com/gpu=" + uuid }

// usesCDI reports whether the engine can resolve these GPUs through CDI. From 28.2
// on, an engine lists the discovered devices; a specification that names devices by
// index only cannot be used. From 25 on, it at least reports that CDI is enabled.
func usesCDI(info system.Info, gpus []string) bool {
	var major, minor int
	if _, err := fmt.Sscanf(info.ServerVersion, "%d.%d", &major, &minor); err != nil {
		return false
	}
	if major < 28 || major == 28 && minor < 2 {
		return major >= 25 && len(info.CDISpecDirs) > 0
	}
	for _, uuid := range gpus {
		if !slices.ContainsFunc(info.DiscoveredDevices,
			func(d system.DeviceInfo) bool { return d.ID == cdiName(uuid) }) {
			return false
		}
	}
	return true
}
