package agent

import (
	"cmp"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"berth"
	"berth/activities/node"
	"berth/internal/lib/archive"
	"berth/internal/lib/framed"
	"berth/internal/lib/publicnet"
	"berth/internal/lib/timeseries"
	"berth/internal/lib/tracing"
	"berth/internal/machine/fetch"
	machineidentity "berth/internal/machine/identity"
	"berth/internal/machine/notice"
	"berth/spec"
	"berth/wire"
)

// Config configures an agent. Server, StateDir, Machine, Runtime and GPUs are required.
type Config struct {
	Server    string // the API's address, such as http://127.0.0.1:7070
	JoinToken string // needed once; later the machine's own token is in StateDir
	// AllowPlaintext lets signed addresses of the object store lead to other machines without TLS, as the operator
	// has accepted it for Server.
	AllowPlaintext bool
	StateDir       string          // absolute after Run has begun; belongs to this agent alone
	Machine        berth.MachineID // the name it joins under

	Region, Site, Pool, Address string
	Labels                      map[string]string
	Capacity                    berth.Capacity // fields above 0 override the engine's report

	// HostBoot identifies the boot of the host; "" reads the kernel's. Two
	// machines played on one host need different ones.
	HostBoot string
	Version  string

	// CacheBytes limits the cache of code and inputs. 0: DefaultCache; negative: no
	// cache.
	CacheBytes int64

	// InputLimits bound one fetched input; zero: spec.MaxInputBytes and spec.MaxInputFiles.
	InputLimits archive.Limits

	// InputNetworks are the networks that inputs may come from, in addition to public
	// addresses. InputRoots verify the servers' certificates; nil: the system's.
	InputNetworks publicnet.Policy
	InputRoots    *x509.CertPool

	// InputResolver asks for the addresses of inputs' servers; nil: the system's resolver.
	InputResolver *net.Resolver

	// TrustedImages lists registries and repositories, as spec.CheckImageEntries takes them. Every
	// tenant may run their images that are on this machine; no registry is asked.
	TrustedImages []string

	// RegistryCerts is the folder with the certificates of registries, see signature.Verifier.
	RegistryCerts string

	// Volumes are folders that jobs may read, and where they lie here.
	Volumes fetch.Volumes

	Fence Fence // of at_most_one work; the zero value takes none

	Egress Egress // enforcement of egress policies; the zero value has none

	// GangNetwork is the network on which members of gangs reach each other. "" stands
	// for a network that the container engine creates for each gang, which connects only
	// machines that share the engine; node.HostNetwork for the host's own network, under
	// Address; any other value names a network of the operator's, such as an overlay.
	GangNetwork string
	GangPorts   wire.PortRange // zero: wire.DefaultPorts

	// DiskReserve is the percentage of bytes and inodes of the file systems of jobs below which the
	// agent ends the job with the most use beyond its request. 0: no reserve.
	DiskReserve int

	// ImageMark is the free percentage of the engine's disk below which the agent removes images that it
	// has pulled. It counts as at least 5 above DiskReserve. 0: the agent removes no images.
	ImageMark int

	Checks Checks // the operator's own, before and after each member

	// GPUAllow lists names of programs that may use any GPU from outside of Berth, such as a display
	// server.
	GPUAllow []string

	Notices notice.Reader // of the cloud, about the end of this machine; nil: none

	// Identity reads the identity that the join of a launched machine proves; nil: none.
	Identity *machineidentity.Reader

	// ShutdownAfter ends Run with ErrUnneeded once the machine has had neither a lease nor work for this long; see
	// belt. 0: never.
	ShutdownAfter time.Duration

	Runtime node.Runtime
	GPUs    node.GPUs
	Logger  *slog.Logger     // nil: discard
	Traces  *tracing.Tracing // nil: none
	Metrics *Metrics         // of this process, which runs one agent at a time; nil: none are read

	Timing Timing
}

// Timing are the agent's intervals; zero fields mean the defaults. Tests shorten
// them.
type Timing struct {
	Beats framed.Beats // of sessions of users

	PollWait        time.Duration // long poll for orders
	RetryMin        time.Duration // first wait after a failed call
	RetryMax        time.Duration
	LogFirst        time.Duration // after silence, how long a line waits for others
	LogEvery        time.Duration // then, how often a log is sent
	CheckpointPoll  time.Duration
	ProgressPoll    time.Duration
	UseStep         time.Duration // between two samples of a member's resource usage, at first
	UseFirst        time.Duration // how long it runs before they are stored
	UseEvery        time.Duration // then, how often
	UseReport       time.Duration // between two reports of the use of the machine
	HostEvery       time.Duration // between two reports about the container engine
	HostRetry       time.Duration // before the first repetition of a report without a version
	HealthPoll      time.Duration // of the GPUs
	EngineProbe     time.Duration // between two probes of the container engine
	ProbePatience   time.Duration // with an engine that does not answer a probe
	SealTogether    time.Duration // how long an exit waits to be reported together with its seal
	RestorePatience time.Duration // with a store that does not answer, before a restore fails
	UploadPatience  time.Duration // with a store that refuses, before a seal goes without
	EnginePatience  time.Duration // with an engine that does not create or start
	NamePatience    time.Duration // with a host that does not exist by the name servers, before a fetch fails
	StageEvery      time.Duration // between two reports of the stages of members that are being prepared
	PullPause       time.Duration // before an image is asked for again, the first time; then doubled
	PreparePatience time.Duration // with an image and a checkpoint, before the member goes elsewhere
	RefusedPause    time.Duration // before a report that the server could not store is sent again
	CachePause      time.Duration // between two reports of the holdings
	CacheRefused    time.Duration // after one that the server did not take: it may be upgraded meanwhile
	ImagePoll       time.Duration // between two looks for images that have left the engine
	ImageSweep      time.Duration // between two looks whether images must be removed
	AccessFresh     time.Duration // how long a registry's answer to a login counts
	ClaimFresh      time.Duration // age of a claim that still starts a member: less than a machine's lease
	DiskPoll        time.Duration // between two looks at the disk space
	DiskRecheck     time.Duration // longest time between two measurements of a member with resources.disk
	NetworkSweep    time.Duration // between two looks for networks that gangs have left
	NetworkAge      time.Duration // before a network without containers counts as left
	StraySweep      time.Duration // between two looks for containers that no member is for
	LatePatience    time.Duration // for the creation of a container that is no longer needed
	QuietRepeat     time.Duration // between reports that a member is quiet; the server forgets one after 30 s
	ProofPatience   time.Duration // with a GPU that is not free, before a start fails or after an end
	ProofEvery      time.Duration // between two proofs of a GPU that is not free
	NoticePoll      time.Duration // between two looks for notices of the cloud
	NoticeRepeat    time.Duration // between two reports of a notice that the server does not confirm
	NoticeHold      time.Duration // longest wait of a notice's report for the signals of containers
	BeltEvery       time.Duration // between two looks whether the machine is of use, with ShutdownAfter
	RerunMin        time.Duration // pause after an error of the agent, with ShutdownAfter: at first,
	RerunMax        time.Duration // and at most
	HangPause       time.Duration // between the evidence about a member of a hung gang and its end
	DeafAfter       time.Duration // after SIGKILL, before a container counts as stuck
	DirectPolicy    time.Duration // how long the server's answer counts which objects go straight to the store
	DirectPause     time.Duration // of transfers straight to the store after the path failed, at first; then doubled
	DirectPauseMax  time.Duration // and at most
	DirectStall     time.Duration // without a byte, after which a transfer to or from the store is given up
	RenewPause      time.Duration // after a renewal of the credential that failed, before the next one
	LineEvery       time.Duration // between two reports of unfinished lines that somebody follows
	LinePause       time.Duration // after the reader of an unfinished line has ended, before the next one
	LineRepeat      time.Duration // between two reports of an unfinished line that does not change
	KeptPatience    time.Duration // of a debug job with the folder of a failed member that is not here
	KeptLimit       time.Duration // of its whole wait, also while the failed member is here
}

// withDefaults returns the timing with the defaults in place of zero fields.
func (t Timing) withDefaults() Timing {
	set := func(d *time.Duration, v time.Duration) { *d = cmp.Or(*d, v) }
	set(&t.PollWait, berth.SyncWait)
	set(&t.RetryMin, 100*time.Millisecond)
	set(&t.RetryMax, 5*time.Second)
	set(&t.LogFirst, 150*time.Millisecond)
	set(&t.LogEvery, time.Second)
	set(&t.CheckpointPoll, 500*time.Millisecond)
	set(&t.ProgressPoll, time.Second)
	set(&t.UseStep, timeseries.Step)
	set(&t.UseFirst, 10*time.Second)
	set(&t.UseEvery, time.Minute)
	set(&t.UseReport, 10*time.Second) // as HealthPoll: one wake for both
	set(&t.HostEvery, 10*time.Minute)
	set(&t.HostRetry, 10*time.Second)
	set(&t.HealthPoll, 10*time.Second)
	set(&t.EngineProbe, 10*time.Second) // as HealthPoll: one wake for both
	set(&t.ProbePatience, 20*time.Second)
	set(&t.SealTogether, 50*time.Millisecond)
	set(&t.RestorePatience, 2*time.Minute)
	set(&t.UploadPatience, 10*time.Minute)
	set(&t.EnginePatience, 30*time.Second)
	set(&t.DeafAfter, time.Minute)
	set(&t.NamePatience, 10*time.Second)
	set(&t.StageEvery, stageEvery)
	set(&t.PullPause, time.Second)
	set(&t.PreparePatience, time.Hour)
	set(&t.RefusedPause, time.Minute)
	set(&t.CachePause, 10*time.Second)
	set(&t.CacheRefused, time.Hour)
	set(&t.ImagePoll, 5*time.Minute)
	set(&t.ImageSweep, time.Minute)
	set(&t.AccessFresh, time.Hour)
	set(&t.ClaimFresh, berth.MachineLeaseTTL/2)
	set(&t.DiskPoll, time.Second)
	set(&t.DiskRecheck, 30*time.Second)
	set(&t.NetworkSweep, time.Minute)
	set(&t.NetworkAge, 10*time.Minute)
	set(&t.StraySweep, 15*time.Second)
	set(&t.LatePatience, 10*time.Minute)
	set(&t.ProofPatience, 3*time.Second)
	set(&t.ProofEvery, 2*time.Second)
	set(&t.NoticePoll, time.Second)
	set(&t.NoticeRepeat, 5*time.Second)
	set(&t.NoticeHold, 500*time.Millisecond)
	set(&t.BeltEvery, 10*time.Second)
	set(&t.RerunMin, 10*time.Second)
	set(&t.RerunMax, time.Minute)
	set(&t.HangPause, 3*time.Second)
	set(&t.QuietRepeat, 5*time.Second)
	set(&t.DirectPolicy, time.Minute)
	set(&t.DirectPause, time.Minute)
	set(&t.DirectPauseMax, time.Hour)
	set(&t.DirectStall, time.Minute)
	set(&t.RenewPause, time.Minute)
	set(&t.LineEvery, time.Second)
	set(&t.LinePause, 30*time.Second)
	set(&t.LineRepeat, 5*time.Second)
	set(&t.KeptPatience, 30*time.Second)
	set(&t.KeptLimit, 5*time.Minute)
	return t
}

// bootIDFile holds the id of the present boot of Linux.
const bootIDFile = "/proc/sys/kernel/random/boot_id"

// complete checks the configuration and fills in defaults.
func (c Config) complete() (Config, error) {
	u, err := url.Parse(c.Server)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return c, fmt.Errorf("server %q: want an address such as http://127.0.0.1:7070", c.Server)
	}
	c.Server = strings.TrimSuffix(c.Server, "/")
	if _, err := berth.ParseMachineID(string(c.Machine)); err != nil {
		return c, err
	}
	if c.Runtime == nil || c.GPUs == nil {
		return c, errors.New("agent: Runtime and GPUs are required")
	}
	if c.StateDir == "" {
		return c, errors.New("agent: a state folder is required")
	}
	if c.StateDir, err = filepath.Abs(c.StateDir); err != nil {
		return c, err
	}
	// Each registration reports missing folders. The agent starts without them, since the
	// containers here need an agent.
	if _, err := c.Volumes.Check(c.StateDir); err != nil {
		return c, fmt.Errorf("folders that jobs may read: %w", err)
	}
	for _, check := range []string{c.Checks.Before, c.Checks.After} {
		if check != "" && !filepath.IsAbs(check) {
			return c, fmt.Errorf("check %q: allowed is the absolute path of a program, such as /etc/berth/check", check)
		}
	}
	if err := checkTrustedImages(c.TrustedImages); err != nil {
		return c, err
	}
	for key := range c.Labels {
		if spec.IsVolumeLabel(key) {
			return c, fmt.Errorf("label %s: the agent sets it, by what folders jobs may read; other keys are allowed",
				key)
		}
	}
	for key := range c.Labels {
		if spec.IsEgressLabel(key) {
			return c, fmt.Errorf("label %s: the agent sets it, by whether it can enforce egress policies; other keys "+
				"are allowed", key)
		}
	}
	if c.GangNetwork == node.HostNetwork && c.Address == "" {
		if c.Address, err = addressToward(u); err != nil {
			return c, fmt.Errorf("gangs on the host's network need the machine's address: %w", err)
		}
	}
	if c.HostBoot == "" {
		b, err := os.ReadFile(bootIDFile)
		if err != nil {
			return c, fmt.Errorf("read boot id: %w", err)
		}
		c.HostBoot = strings.TrimSpace(string(b))
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Metrics == nil {
		c.Metrics = NewMetrics(c.Machine, c.Version)
	}
	c.Runtime = meteredRuntime{c.Runtime, c.Metrics}
	c.CacheBytes = max(0, cmp.Or(c.CacheBytes, DefaultCache))
	c.Timing = c.Timing.withDefaults()
	return c, nil
}
