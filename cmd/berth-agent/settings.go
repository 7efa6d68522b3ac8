package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"berth"
	"berth/internal/flags"
	"berth/internal/publicnet"
	"berth/internal/source"
	"berth/internal/tracing"
	"berth/workers"
)

// settings is the agent's configuration as it is typed.
type settings struct {
	server    string
	joinToken string
	stateDir  string
	machine   string
	labels    map[string]string
	region    string
	site      string
	pool      string
	address   string
	cpus      string
	memory    string
	disk      string
	cacheSize string
	inputNets string
	folders   []string
	hostBoot  string

	gangNetwork string
	gangPorts   string

	fenceAfter time.Duration
	deadman    string

	runtime    string
	dockerHost string
	memlock    bool
	fakeGPUs   string
	noGPUs     bool

	temporalAddress   string
	temporalNamespace string
	otlp              string // endpoint, as typed
	syncWait          time.Duration

	capacity berth.Capacity
	ports    berth.PortRange
	cacheMiB int64
	networks publicnet.Policy
	volumes  source.Volumes
	traces   tracing.Options
	level    slog.Level
}

// Who runs the deadman.
const (
	deadmanStart   = "start"   // the agent, where none answers
	deadmanService = "service" // the service manager
	deadmanOff     = "off"     // nobody: no at_most_one work
)

// Kinds of container engines.
const (
	runtimeDocker = "docker"
	runtimeFake   = "fake"
)

func (s *settings) flags(f *pflag.FlagSet) {
	f.StringVar(&s.server, "server", "http://127.0.0.1:7070", "address of the control plane's API")
	f.StringVar(&s.joinToken, "join-token", "", "needed once; better given as BERTH_JOIN_TOKEN, which other users do not see")
	f.StringVar(&s.stateDir, "state-dir", "/var/lib/berth-agent", "folder for the machine's credential and its ranks' files")
	f.StringVar(&s.machine, "machine", "", "name to join under (default: the host's name)")
	f.StringToStringVar(&s.labels, "labels", nil, "labels of the machine: key=value,...")
	f.StringVar(&s.region, "region", "", "where the machine is, such as eu-west")
	f.StringVar(&s.site, "site", "on_prem", "on_prem or cloud")
	f.StringVar(&s.pool, "pool", "", "pool it belongs to, where its join token names none")
	f.StringVar(&s.address, "address", "", "address under which other machines reach it")
	f.StringVar(&s.address, "advertise", "", "the same as --address")
	f.StringVar(&s.gangNetwork, "gang-network", "", "where members of gangs reach each other: host (the hosts' own network), or the name of a network that spans machines, such as an overlay (default: one for each gang on the container engine, which spans no machines)")
	f.StringVar(&s.gangPorts, "gang-ports", berth.DefaultPorts.String(), "ports for members of gangs")
	f.StringVar(&s.cpus, "cpus", "", "cores to offer (default: all)")
	f.StringVar(&s.memory, "memory", "", "memory to offer, such as 64GiB (default: all)")
	f.StringVar(&s.disk, "disk", "", "disk to offer (default: what is free)")
	f.StringVar(&s.cacheSize, "cache-size", "20GiB", "how much to keep of the code and data of jobs, for others that need the same")
	f.StringVar(&s.inputNets, "input-networks", "", "networks that inputs may be fetched from beside public addresses, such as 10.0.0.0/8,fd00::/8")
	f.StringArrayVar(&s.folders, "file-inputs", nil, "folder that jobs may read as file:///NAME/…, where berthd allows it: /NAME, or /NAME=/FOLDER where it lies elsewhere on this machine (repeatable, or parted by ;)")
	f.StringVar(&s.hostBoot, "host-boot", "", "identity of the host's boot (default: the kernel's); two machines played on one host need two")
	f.DurationVar(&s.fenceAfter, "fence-after", berth.DefaultFence, "without contact to the control plane for this long, at_most_one work is ended")
	f.StringVar(&s.deadman, "deadman", deadmanStart, "who runs berth-deadman, without which the machine takes no at_most_one work: start (the agent), service (the service manager), off (nobody)")
	f.StringVar(&s.runtime, "runtime", runtimeDocker, "docker, or fake: an engine in memory, for tests")
	f.StringVar(&s.dockerHost, "docker-host", "", "socket of the Docker Engine, as unix:///path (default: the usual one)")
	f.BoolVar(&s.memlock, "unlimited-memlock", false, "let containers pin memory without limit, as RDMA wants")
	f.StringVar(&s.fakeGPUs, "fake-gpus", "", "file that declares an inventory of GPUs, for machines without any; shown as declared everywhere")
	f.BoolVar(&s.noGPUs, "no-gpus", false, "do not look for GPUs")
	s.temporalAddress, s.temporalNamespace = "127.0.0.1:7233", workers.DefaultNamespace
	flags.Temporal(f, &s.temporalAddress, &s.temporalNamespace)
	f.DurationVar(&s.syncWait, "sync-wait", berth.SyncWait, "how long a call for orders waits, at most "+berth.SyncWait.String()+"; each renews the machine's lease, so a short lost_after wants short ones")
	flags.Collector(f, &s.otlp)
	flags.LogLevel(f, &s.level)
}

// parse reads the settings that are words, and reports every fault.
func (s *settings) parse() error {
	var faults []error
	fault := func(flag string, err error) {
		if err != nil {
			faults = append(faults, fmt.Errorf("--%s: %w", flag, err))
		}
	}
	if s.machine == "" {
		name, err := os.Hostname()
		fault("machine", err)
		name, _, _ = strings.Cut(strings.ToLower(name), ".")
		s.machine = name
	}
	if s.runtime != runtimeDocker && s.runtime != runtimeFake {
		fault("runtime", fmt.Errorf("%q: allowed are %s, %s", s.runtime, runtimeDocker, runtimeFake))
	}
	if s.deadman != deadmanStart && s.deadman != deadmanService && s.deadman != deadmanOff {
		fault("deadman", fmt.Errorf("%q: allowed are %s, %s, %s", s.deadman, deadmanStart, deadmanService, deadmanOff))
	}
	if s.fenceAfter < time.Second || s.fenceAfter > 24*time.Hour {
		fault("fence-after", fmt.Errorf("%s: allowed are 1s to 24h", s.fenceAfter))
	}
	if s.syncWait <= 0 || s.syncWait > berth.SyncWait {
		fault("sync-wait", fmt.Errorf("%s: allowed are above 0 to %s", s.syncWait, berth.SyncWait))
	}
	if s.site != "on_prem" && s.site != "cloud" {
		fault("site", fmt.Errorf("%q: allowed are on_prem, cloud", s.site))
	}
	ports, err := berth.ParsePortRange(s.gangPorts)
	fault("gang-ports", err)
	s.ports = ports
	if strings.ContainsAny(s.gangNetwork, " /:") || s.gangNetwork == "none" || s.gangNetwork == "bridge" {
		fault("gang-network", fmt.Errorf("%q: allowed are host, and the name of a network on which containers reach each other by name", s.gangNetwork))
	}
	networks, err := publicnet.Parse(s.inputNets)
	fault("input-networks", err)
	s.networks = networks
	s.volumes, err = source.ParseVolumes(s.folders)
	fault("file-inputs", err)
	if s.cpus != "" {
		var cpus berth.MilliCPU
		fault("cpus", cpus.UnmarshalJSON([]byte(s.cpus)))
		s.capacity.CPUMilli = int64(cpus)
	}
	for _, m := range []struct {
		flag, text string
		to         *int64
	}{{"memory", s.memory, &s.capacity.MemoryMiB}, {"disk", s.disk, &s.capacity.DiskMiB}, {"cache-size", s.cacheSize, &s.cacheMiB}} {
		if m.text == "" {
			continue
		}
		amount, err := berth.ParseMiB(m.text)
		fault(m.flag, err)
		*m.to = int64(amount)
	}
	return errors.Join(faults...)
}

// attributes is the configuration for the log, without secrets.
func (s *settings) attributes() []any {
	token := ""
	if s.joinToken != "" {
		token = "(given)"
	}
	return []any{
		"server", s.server, "join_token", token, "state_dir", s.stateDir, "machine_id", s.machine, "labels", s.labels,
		"region", s.region, "site", s.site, "pool", s.pool, "address", s.address, "gang_network", s.gangNetwork, "gang_ports", s.ports, "cpus", s.cpus, "memory", s.memory, "disk", s.disk, "cache_size", s.cacheSize, "input_networks", s.inputNets, "file_inputs", s.folders, "host_boot", s.hostBoot,
		"fence_after", s.fenceAfter, "deadman", s.deadman, "runtime", s.runtime, "docker_host", s.dockerHost, "fake_gpus", s.fakeGPUs, "no_gpus", s.noGPUs,
		"temporal_address", s.temporalAddress, "temporal_namespace", s.temporalNamespace, "sync_wait", s.syncWait, "otlp", s.traces,
	}
}
