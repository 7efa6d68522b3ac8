// The number of cores of a host does not change while its agent runs. Without this
// the runtime reads the control group's limit each time an idle agent wakes.
//
//go:debug updatemaxprocs=0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"berth"
	"berth/activities/node"
	"berth/activities/node/fakeruntime"
	"berth/internal/lib/archive"
	"berth/internal/lib/buildinfo"
	"berth/internal/lib/flags"
	"berth/internal/lib/tracing"
	"berth/internal/machine/agent"
	"berth/internal/machine/docker"
	"berth/internal/machine/gpu"
	"berth/internal/machine/kernellog"
	"berth/internal/machine/unfinished"
)

func main() {
	unfinished.Main() // this process may be the reader of a container's unfinished line
	// The first signal stops the agent in order; a second one ends the process at once,
	// since stop restores the default handling of signals.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	if err := command(os.LookupEnv).ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "berth-agent:", err)
		os.Exit(1)
	}
}

// command returns the command of berth-agent; lookup reads the environment, so that tests
// can pass their own.
func command(lookup func(string) (string, bool)) *cobra.Command {
	var s settings
	cmd := &cobra.Command{
		Use:           "berth-agent",
		Short:         "Berth's agent, one on every machine",
		Version:       buildinfo.Version(),
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			// After cobra has parsed the command line: only flags that it lacks are read
			// from the environment and the file.
			if err := flags.Load(cmd.Flags(), cmd.Flags(), lookup); err != nil {
				return err
			}
			if err := s.parse(); err != nil {
				return err
			}
			var err error
			if s.traces, err = tracing.FromEnvironment(lookup, s.otlp); err != nil {
				return err
			}
			return run(cmd.Context(), s)
		},
	}
	s.flags(cmd.Flags())
	return cmd
}

// run opens the container engine and the GPUs and runs the agent until ctx ends. Both are
// closed after the agent has stopped using them. An error ends the process with exit status
// 1.
func run(ctx context.Context, s settings) error {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: s.level}))
	// Settings first, so that the log of a start that fails shows them.
	log.Info("agent starting", append([]any{"version", buildinfo.Version()}, s.attributes()...)...)
	if given := s.ignored(); len(given) > 0 {
		log.Warn("settings are ignored and will be refused by the next version: agents do not speak to Temporal, "+
			"remove them", "settings", given)
	}
	walls, err := s.openEgress(ctx, log)
	if err != nil {
		return err
	}
	if walls.Table != nil {
		defer walls.Table.Close()
	}
	if walls.Names != nil { // until the end, since containers outlive the agent
		defer walls.Names.Close()
	}
	engine, err := s.openRuntime(log)
	if err != nil {
		return err
	}
	defer engine.Close()
	gpus, err := s.openGPUs(log)
	if err != nil {
		return err
	}
	// watchGPUs takes over gpus, and closing the result closes both.
	if gpus, err = s.watchGPUs(gpus, log); err != nil {
		return err
	}
	defer gpus.Close()
	s.traces.Service, s.traces.Version, s.traces.Instance, s.traces.Logger = "berth-agent",
		buildinfo.Version(), s.machine, log
	traces, err := tracing.Open(ctx, s.traces)
	if err != nil {
		return err
	}
	defer traces.Close()
	metrics := agent.NewMetrics(berth.MachineID(s.machine), buildinfo.Version())
	defer s.serveMetrics(ctx, metrics, log)()
	err = agent.Run(ctx, agent.Config{
		Server: s.server, AllowPlaintext: s.plaintext, JoinToken: s.joinToken, StateDir: s.stateDir,
		Machine: berth.MachineID(s.machine),
		Region:  s.region, Site: s.site, Pool: s.pool, Address: s.address, Labels: s.labels, Capacity: s.capacity,
		CacheBytes: cacheBytes(s.cacheMiB), InputNetworks: s.networks, Volumes: s.volumes,
		InputLimits: archive.Limits{Bytes: s.inputMiB << 20, Files: s.inputFiles},
		HostBoot:    s.hostBoot, Version: buildinfo.Version(), Fence: s.fence(log),
		Egress: walls, GangNetwork: s.gangNetwork, GangPorts: s.ports, GPUAllow: s.gpuAllow, DiskReserve: s.reserve,
		ImageMark: s.imageMark, TrustedImages: s.trusted, RegistryCerts: s.certs,
		Checks: s.checks, Notices: s.source, Identity: s.proof, ShutdownAfter: s.shutdown,
		Runtime: engine, GPUs: gpus, Logger: log, Traces: traces, Metrics: metrics,
		Timing: agent.Timing{PollWait: s.syncWait},
	})
	return s.ended(ctx, err, log)
}

// openRuntime opens the container engine: Docker, or for tests a fake that needs no engine
// and has the capacity of the flags.
func (s settings) openRuntime(log *slog.Logger) (node.Runtime, error) {
	if s.runtime == runtimeFake {
		log.Warn("the container engine is a fake: containers run the test program only, and end with this process")
		return fakeruntime.New(fakeruntime.Options{CPUMilli: s.capacity.CPUMilli, MemoryMiB: s.capacity.MemoryMiB,
			DiskMiB: s.capacity.DiskMiB}), nil
	}
	return docker.Open(s.dockerHost, docker.Options{
		Logger: log, UnlimitedMemlock: s.memlock, Subnets: s.walls.jobs, Mirrors: s.mirrors,
		Owner: s.machine + " " + s.stateDir,
	})
}

// fence returns the configuration for the fencing of at_most_one work. The zero Fence means
// that this machine takes no such work; a machine without a deadman must not take it. The
// containers of a fake engine are no processes that a deadman could see.
func (s settings) fence(log *slog.Logger) agent.Fence {
	switch {
	case s.deadman == deadmanOff, s.runtime == runtimeFake:
		return agent.Fence{}
	case s.deadman == deadmanService:
		return agent.Fence{After: s.fenceAfter}
	}
	program, err := beside("berth-deadman")
	if err != nil {
		log.Warn("at_most_one jobs refused: berth-deadman is neither in berth-agent's folder nor in PATH",
			"err", err)
		return agent.Fence{}
	}
	return agent.Fence{After: s.fenceAfter, Program: program}
}

// beside returns the path of a program in the folder of this executable, else in PATH. The
// folder comes first, so that the two programs are of one release.
func beside(name string) (string, error) {
	if self, err := os.Executable(); err == nil {
		if path, err := exec.LookPath(filepath.Join(filepath.Dir(self), name)); err == nil {
			return path, nil
		}
	}
	return exec.LookPath(name)
}

// openGPUs opens the inventory of GPUs: a declared one, none, or the NVIDIA library. A
// machine without that library has no GPUs; a library without a working driver is an error,
// since starting without the GPUs of the machine would hide the fault.
func (s settings) openGPUs(log *slog.Logger) (node.GPUs, error) {
	switch {
	case s.fakeGPUs != "":
		return gpu.OpenDeclared(s.fakeGPUs, berth.MachineID(s.machine), log)
	case s.noGPUs, s.runtime == runtimeFake:
		return noGPUs{}, nil
	}
	found, err := gpu.OpenNVML(gpu.NVMLOptions{Logger: log})
	if errors.Is(err, gpu.ErrNoNVML) {
		log.Info("no NVIDIA driver, machine offers no GPUs")
		return noGPUs{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%w (--no-gpus goes on without)", err)
	}
	return found, nil
}

// watchGPUs wraps the inventory of real devices in a watch that receives device errors
// (XIDs). The watch keeps fatal errors in a file, so that a faulty GPU stays unhealthy
// across restarts of the agent, until the host boots again or an operator removes the file
// after a reset of the GPU. Declared and empty inventories have no errors to watch.
func (s settings) watchGPUs(gpus node.GPUs, log *slog.Logger) (node.GPUs, error) {
	if _, none := gpus.(noGPUs); none || gpus.Declared() {
		return gpus, nil
	}
	// Kept errors count only for the boot in which they occurred.
	boot := s.hostBoot
	if boot == "" {
		b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
		if err != nil {
			return nil, fmt.Errorf("read boot id: %w", err)
		}
		boot = strings.TrimSpace(string(b))
	}
	return gpu.OpenWatch(gpus, gpu.WatchOptions{
		File: filepath.Join(s.stateDir, "gpu-faults.json"), Boot: boot, Kernel: kernellog.Kmsg{}, Logger: log,
	})
}

// noGPUs is the inventory of a machine without GPUs.
type noGPUs struct{}

// Devices returns no devices. Declared returns false, and Close does nothing.
func (noGPUs) Devices(context.Context) ([]berth.GPU, error) { return nil, nil }
func (noGPUs) Declared() bool                               { return false }
func (noGPUs) Close() error                                 { return nil }

// cacheBytes converts the cache's limit from MiB to bytes. agent.Config takes 0 for the
// default, so a limit of 0, no cache, becomes a negative number.
func cacheBytes(mib int64) int64 {
	if mib == 0 {
		return -1
	}
	return mib << 20
}
