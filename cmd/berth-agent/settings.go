package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"berth"
	"berth/internal/lib/flags"
	"berth/internal/lib/publicnet"
	"berth/internal/lib/tracing"
	"berth/internal/machine/agent"
	"berth/internal/machine/docker"
	"berth/internal/machine/fetch"
	"berth/internal/machine/identity"
	"berth/internal/machine/notice"
	"berth/spec"
	"berth/wire"
)

// settings is the agent's configuration: the flags as typed, and the values that parse
// derives from the flags.
type settings struct {
	server     string // URL of the API
	plaintext  bool   // accept a server beyond this machine without TLS
	joinToken  string // a secret; needed only until the machine has joined
	stateDir   string // credential, caches and files of members
	machine    string // "": the first label of the host name
	labels     map[string]string
	region     string
	site       string
	pool       string
	address    string
	cpus       string // "": all
	memory     string // "": all
	disk       string // "": the free space, less the reserve
	inputFiles int
	reserve    int // percent of the disk
	imageMark  int // percent of the disk
	trusted    []string
	mirrorsOf  []string        // as typed
	mirrors    []docker.Mirror // from mirrorsOf
	certs      string
	cacheSize  string
	inputSize  string
	inputNets  string
	folders    []string // --file-inputs
	hostBoot   string   // boot id; "": the kernel's

	egress        string // auto, held or off
	jobNetworks   string
	privateEgress string
	egressDeny    string
	resolvers     string // "": the host decides
	filterNames   bool

	gangNetwork string // "": one network of the engine for each gang
	gangPorts   string // FIRST-LAST

	fenceAfter time.Duration // silence until at_most_one work is stopped
	deadman    string        // start, service or off

	runtime    string // docker or fake
	dockerHost string // "": the standard socket
	memlock    bool
	fakeGPUs   string // path of a declared inventory; "": none
	noGPUs     bool
	gpuAllow   []string // names of programs that may use any GPU
	checks     agent.Checks

	temporal [2]string     // address and namespace, ignored
	notices  string        // source of the cloud's notices, as typed
	identity string        // source of the machine's identity, as typed
	audience string        // of the identity token
	shutdown time.Duration // without use of the machine; 0: never
	poweroff string        // command that shuts the machine down, or none
	otlp     string        // endpoint, as typed
	metrics  string        // address that serves metrics; "": none
	syncWait time.Duration // longest wait of one sync call

	// Derived from the flags.
	capacity berth.Capacity // 0: as the engine reports
	ports    wire.PortRange
	cacheMiB int64 // 0: no cache
	inputMiB int64
	networks publicnet.Policy
	volumes  fetch.Volumes
	walls    egressSettings
	source   notice.Reader // nil: none
	proof    *identity.Reader
	traces   tracing.Options
	level    slog.Level
}

// Values of --deadman: the process that runs berth-deadman.
const (
	deadmanStart   = "start"   // the agent, where none answers
	deadmanService = "service" // the service manager
	deadmanOff     = "off"     // none runs: this machine takes no at_most_one work
)

// maxImageMark bounds --image-disk-mark: a mark that no sweep can reach would remove each image at once.
const maxImageMark = 80

// maxReserve bounds --disk-reserve: most of a disk is for jobs.
const maxReserve = 50

// temporalFlags are accepted and ignored in this version, so that an upgrade does not need
// new settings on every machine at once: agents of the version before called Temporal
// themselves.
var temporalFlags = [...]string{"temporal-address", "temporal-namespace"}

// ignored returns the given settings that have no effect in this version.
func (s *settings) ignored() []string {
	var given []string
	for i, name := range temporalFlags {
		if s.temporal[i] != "" {
			given = append(given, "--"+name)
		}
	}
	return given
}

// Values of --runtime: the kinds of container engines.
const (
	runtimeDocker = "docker"
	runtimeFake   = "fake"
)

// egressFlags defines the flags about networks and names of containers.
func (s *settings) egressFlags(f *pflag.FlagSet) {
	f.StringVar(&s.egress, "egress", egressAuto,
		"enforcement of network.egress of jobs: auto (if nftables works), held (no start without nftables), or off")
	f.StringVar(&s.jobNetworks, "job-networks", defaultJobNetworks,
		"private ranges for the networks of jobs; the agent skips subnets that overlap a route of this machine")
	f.StringVar(&s.privateEgress, "private-egress", "",
		"private networks that jobs may list in network.allow, such as 10.20.0.0/16")
	f.StringVar(&s.egressDeny, "egress-deny", "", "networks that no job may reach, such as 198.51.100.0/24")
	f.StringVar(&s.resolvers, "resolvers", "",
		"name servers that answer the questions of containers, such as 10.0.0.2 (default: the name servers of the "+
			"host)")
	f.BoolVar(&s.filterNames, "filter-names", true,
		"answer the questions of containers by a resolver in the agent, which removes addresses out of their reach; "+
			"false: containers ask the name servers directly, and jobs with names in network.allow do not run here")
}

// flags registers all flags with their defaults. FromEnvironment reads the same names from
// the environment.
func (s *settings) flags(f *pflag.FlagSet) {
	flags.File(f, "/etc/berth/agent.yaml")
	f.StringVar(&s.server, "server", "http://127.0.0.1:7070", "URL of the control plane's API")
	f.BoolVar(&s.plaintext, "allow-plaintext", false,
		"start although --server is reached beyond this machine without TLS; the object store, too, may be reached "+
			"so, and other machines may reach --metrics-listen")
	f.StringVar(&s.joinToken, "join-token", "",
		"join token, needed once; prefer BERTH_JOIN_TOKEN, which other users of the machine cannot read")
	f.StringVar(&s.stateDir, "state-dir", "/var/lib/berth-agent",
		"folder of the machine's credential and of its members' files")
	f.StringVar(&s.machine, "machine", "", "machine name (default: the host name)")
	f.StringToStringVar(&s.labels, "labels", nil, "labels of the machine: key=value,...")
	f.StringVar(&s.region, "region", "", "region of the machine, such as eu-west")
	f.StringVar(&s.site, "site", "on_prem", "site of the machine: on_prem or cloud")
	f.StringVar(&s.pool, "pool", "", "pool of the machine, where its join token names none")
	f.StringVar(&s.address, "address", "", "address at which other machines reach this one")
	f.StringVar(&s.address, "advertise", "", "alias of --address")
	s.egressFlags(f)
	f.StringVar(&s.gangNetwork, "gang-network", "",
		"network between gang members: host, or the name of a container network that spans machines, such as an "+
			"overlay (default: one network per gang, which does not span machines)")
	f.StringVar(&s.gangPorts, "gang-ports", wire.DefaultPorts.String(), "port range of gang members")
	f.StringVar(&s.cpus, "cpus", "", "CPU cores to offer (default: all)")
	f.StringVar(&s.memory, "memory", "", "memory to offer, such as 64GiB (default: all)")
	f.StringVar(&s.disk, "disk", "", "disk to offer (default: the free space, less the reserve)")
	f.IntVar(&s.reserve, "disk-reserve", 5,
		"percentage of the bytes and inodes of the disk to keep free, by ending the job with the most use beyond its "+
			"resources.disk; 0: none")
	f.IntVar(&s.imageMark, "image-disk-mark", 15,
		"free percentage of the engine's disk below which the agent removes images that it has pulled, the least "+
			"recently used first, until 5 more percent are free; at least 5 above --disk-reserve; 0: never")
	f.StringVar(&s.cacheSize, "cache-size", "20GiB", "size limit of the cache of code and input data")
	f.StringVar(&s.inputSize, "input-size", spec.MiB(spec.MaxInputBytes>>20).String(),
		"largest size of one fetched input of a job; set it alike on all machines")
	f.IntVar(&s.inputFiles, "input-files", spec.MaxInputFiles,
		"largest number of files and folders of one fetched input of a job; set it alike on all machines")
	f.StringVar(&s.inputNets, "input-networks", "",
		"non-public networks that inputs may come from, such as 10.0.0.0/8,fd00::/8")
	f.StringArrayVar(&s.folders, "file-inputs", nil,
		"folder that jobs may read as file:///NAME/…, where berthd allows it: /NAME, or /NAME=/FOLDER "+
			"if its path differs on this machine (repeatable, or separated by ;)")
	f.StringVar(&s.hostBoot, "host-boot", "",
		"boot id of the machine (default: the kernel's); agents that share a host need different ones")
	f.DurationVar(&s.fenceAfter, "fence-after", berth.DefaultFence,
		"stop at_most_one work after this long without contact to the control plane")
	f.StringVar(&s.deadman, "deadman", deadmanStart,
		"who runs berth-deadman: start (the agent), service (the service manager), off (no at_most_one "+
			"work on this machine)")
	s.engineFlags(f)
	f.StringVar(&s.checks.Before, "check-before", "",
		"program to run before each member of a job, as Slurm's prolog; a failure drains the machine, and the job "+
			"moves")
	f.StringVar(&s.checks.After, "check-after", "",
		"program to run after each member of a job, as Slurm's epilog; a failure drains the machine")
	f.DurationVar(&s.checks.Timeout, "check-timeout", agent.DefaultCheckTimeout,
		"time limit of a check; a check that runs longer is stopped and has failed")
	f.StringVar(&s.notices, "notices", notice.Off,
		"source of the cloud's notices that it ends this machine: ec2 or gce (the metadata service of this cloud), "+
			"file=PATH (a JSON file with action and time), or off")
	f.StringVar(&s.identity, "identity", identity.Off,
		"prove the identity of this machine at the join with a document of the metadata service: ec2, gce or off")
	f.StringVar(&s.audience, "identity-audience", "", "audience of the identity token of gce")
	s.shutdownFlags(f)
	for i, name := range temporalFlags { // flags of the version before; the next version refuses them
		f.StringVar(&s.temporal[i], name, "", "ignored: agents call the control plane alone")
		_ = f.MarkHidden(name) // the error is for unknown flags
	}
	f.DurationVar(&s.syncWait, "sync-wait", berth.SyncWait,
		"how long a sync call waits for orders, at most "+berth.SyncWait.String()+
			"; each call renews the machine's lease, so a short lost_after requires a short wait")
	s.watchFlags(f)
}

// engineFlags registers the flags of the container engine, of images and of GPUs.
func (s *settings) engineFlags(f *pflag.FlagSet) {
	f.StringVar(&s.runtime, "runtime", runtimeDocker, "container runtime: docker, or fake (in memory, for tests)")
	f.StringVar(&s.dockerHost, "docker-host", "",
		"socket of the Docker Engine, such as unix:///path (default: the standard socket)")
	f.BoolVar(&s.memlock, "unlimited-memlock", false, "lift the memlock limit of containers, as RDMA requires")
	f.StringVar(&s.fakeGPUs, "fake-gpus", "",
		"file with a declared inventory of GPUs, for machines without any; marked as declared in every listing")
	f.BoolVar(&s.noGPUs, "no-gpus", false, "ignore the machine's GPUs")
	f.StringSliceVar(&s.gpuAllow, "gpu-allow",
		[]string{"Xorg", "Xwayland", "gnome-shell", "nv-hostengine", "nvidia-cuda-mps-control",
			"nvidia-cuda-mps-server", "nvidia-persistenced"},
		"programs of this host that may use any GPU; a GPU gets no jobs while another program outside of jobs uses it")
	f.StringSliceVar(&s.trusted, "trusted-images", nil,
		"registries and repositories whose images on this machine serve all tenants, such as docker.io/library; "+
			"other images serve a tenant after a check at their registry")
	f.StringArrayVar(&s.mirrorsOf, "registry-mirror", nil,
		"mirror that gives the content of a registry's images, such as docker.io=https://mirror.example; may be "+
			"repeated; the registry still decides about tags, digests and access")
	f.StringVar(&s.certs, "registry-certs", "/etc/docker/certs.d",
		"folder with certificates of registries, as the Docker Engine reads them, for signatures of images")
}

// parse validates the settings that flags cannot validate themselves and sets the fields
// that are derived. The error has every fault, so that one start shows all.
func (s *settings) parse() error {
	var faults []error
	fault := func(flag string, err error) {
		if err != nil {
			faults = append(faults, fmt.Errorf("--%s: %w", flag, err))
		}
	}
	fault("server", s.checkServer())
	if s.machine == "" {
		name, err := os.Hostname()
		fault("machine", err)
		// Machine names are lower case and have no dots.
		name, _, _ = strings.Cut(strings.ToLower(name), ".")
		s.machine = name
	}
	if s.runtime != runtimeDocker && s.runtime != runtimeFake {
		fault("runtime", fmt.Errorf("%q: allowed are %s, %s", s.runtime, runtimeDocker, runtimeFake))
	}
	if s.deadman != deadmanStart && s.deadman != deadmanService && s.deadman != deadmanOff {
		fault("deadman", fmt.Errorf("%q: allowed are %s, %s, %s", s.deadman, deadmanStart, deadmanService, deadmanOff))
	}
	s.checkLimits(fault)
	ports, err := wire.ParsePortRange(s.gangPorts)
	fault("gang-ports", err)
	s.ports = ports
	// On the network none members reach no one, and on Docker's default bridge not by name.
	if strings.ContainsAny(s.gangNetwork, " /:") || s.gangNetwork == "none" || s.gangNetwork == "bridge" {
		fault("gang-network", fmt.Errorf("%q: allowed are host, and the name of a network on which containers "+
			"reach each other by name", s.gangNetwork))
	}
	for _, f := range spec.CheckImageEntries("entry", s.trusted) {
		fault("trusted-images", fmt.Errorf("%s %s; allowed: %s", f.Field, f.Detail, f.Allowed))
	}
	for _, text := range s.mirrorsOf {
		mirror, err := docker.ParseMirror(text)
		fault("registry-mirror", err)
		s.mirrors = append(s.mirrors, mirror)
	}
	s.checkShutdown(fault)
	fault("metrics-listen", s.checkMetrics())
	s.source, err = notice.Open(s.notices)
	fault("notices", err)
	s.proof, err = identity.Open(s.identity, s.audience)
	fault("identity", err)
	s.parseEgress(fault)
	networks, err := publicnet.Parse(s.inputNets)
	fault("input-networks", err)
	s.networks = networks
	s.volumes, err = fetch.ParseVolumes(s.folders)
	fault("file-inputs", err)
	s.parseCapacity(fault)
	return errors.Join(faults...)
}

// checkLimits refuses programs, times and sizes that are outside of their limits.
func (s *settings) checkLimits(fault func(flag string, err error)) {
	for name, check := range map[string]string{"check-before": s.checks.Before, "check-after": s.checks.After} {
		if check != "" && !filepath.IsAbs(check) {
			fault(name, fmt.Errorf("%q: allowed is the absolute path of a program, such as /etc/berth/check", check))
		}
	}
	if s.checks.Timeout < time.Second || s.checks.Timeout > time.Hour {
		fault("check-timeout", fmt.Errorf("%s: allowed are 1s to 1h", s.checks.Timeout))
	}
	if s.reserve < 0 || s.reserve > maxReserve {
		fault("disk-reserve", fmt.Errorf("%d: allowed are 0 to %d", s.reserve, maxReserve))
	}
	if s.imageMark < 0 || s.imageMark > maxImageMark {
		fault("image-disk-mark", fmt.Errorf("%d: allowed are 0 to %d", s.imageMark, maxImageMark))
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
}

// maxInputFiles is the largest value of --input-files. A list takes about 700 bytes of memory for each file.
const maxInputFiles = 10_000_000

// parseCapacity reads the flags that limit the capacity of the machine.
func (s *settings) parseCapacity(fault func(flag string, err error)) {
	if s.cpus != "" {
		var cpus spec.MilliCPU
		// A number of cores is a JSON number, which this parser reads as in a job file.
		fault("cpus", cpus.UnmarshalJSON([]byte(s.cpus)))
		s.capacity.CPUMilli = int64(cpus)
	}
	for _, m := range []struct {
		flag, text string
		to         *int64
	}{{"memory", s.memory, &s.capacity.MemoryMiB}, {"disk", s.disk, &s.capacity.DiskMiB},
		{"cache-size", s.cacheSize, &s.cacheMiB}, {"input-size", s.inputSize, &s.inputMiB}} {
		if m.text == "" {
			continue
		}
		amount, err := spec.ParseMiB(m.text)
		fault(m.flag, err)
		// After a fault the amount is of no use, and the error keeps the agent from
		// starting.
		*m.to = int64(amount)
	}
	if s.inputMiB < 1 {
		fault("input-size", fmt.Errorf("%q: allowed is at least 1MiB", s.inputSize))
	}
	if s.inputFiles < 1 || s.inputFiles > maxInputFiles {
		fault("input-files", fmt.Errorf("%d: allowed are 1 to %d", s.inputFiles, maxInputFiles))
	}
}

// checkServer returns an error if --server is not the URL of a control plane, or if the machine's
// token, secrets and orders would travel to another machine without encryption (adr/0058).
func (s *settings) checkServer() error {
	u, err := url.Parse(s.server)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return fmt.Errorf("%q is not the URL of a control plane: write https://HOST:PORT", s.server)
	case u.Scheme == "http" && !s.plaintext && !publicnet.Loopback(u.Hostname()):
		return fmt.Errorf("%q: the control plane is on another machine, and plain HTTP shows the machine's token and "+
			"the secrets of jobs to the network: write https://HOST:PORT, or accept the risk with --allow-plaintext",
			s.server)
	}
	return nil
}

// attributes returns the configuration as attributes for the log. The join token is a
// secret and is only shown as given.
func (s *settings) attributes() []any {
	token := ""
	if s.joinToken != "" {
		token = "(given)"
	}
	return []any{
		"server", s.server, "allow_plaintext", s.plaintext,
		"join_token", token, "state_dir", s.stateDir, "machine_id", s.machine, "labels", s.labels,
		"region", s.region, "site", s.site, "pool", s.pool, "address", s.address, "gang_network", s.gangNetwork,
		"egress", s.egress, "job_networks", s.jobNetworks, "private_egress", s.privateEgress,
		"egress_deny", s.egressDeny, "resolvers", s.walls.resolvers, "filter_names", s.filterNames,
		"gang_ports", s.ports, "cpus", s.cpus, "memory", s.memory, "disk", s.disk, "disk_reserve", s.reserve,
		"image_disk_mark", s.imageMark,
		"trusted_images", s.trusted, "registry_certs", s.certs,
		"cache_size", s.cacheSize, "input_size", s.inputSize, "input_files", s.inputFiles,
		"input_networks", s.inputNets, "file_inputs", s.folders, "host_boot", s.hostBoot,
		"fence_after", s.fenceAfter, "deadman", s.deadman, "runtime", s.runtime, "docker_host", s.dockerHost,
		"fake_gpus", s.fakeGPUs, "no_gpus", s.noGPUs, "gpu_allow", s.gpuAllow,
		"check_before", s.checks.Before, "check_after", s.checks.After, "check_timeout", s.checks.Timeout,
		"notices", s.notices, "identity", s.identity, "shutdown_after", s.shutdown, "shutdown_command", s.poweroff,
		"sync_wait", s.syncWait, "metrics_listen", s.metrics, "otlp", s.traces,
	}
}
