package docker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/api/types/system"
	"github.com/docker/docker/client"

	"berth/activities/node"
	"berth/internal/machine/kernellog"
)

// Options tunes an Engine. The zero value is right for a machine that Berth
// has to itself.
type Options struct {
	Logger *slog.Logger // nil: discard
	// UnlimitedMemlock lets containers pin memory without limit, which RDMA and
	// NCCL want. It is off because some hosts refuse to start such containers.
	UnlimitedMemlock bool
	// OpenFiles is the limit of open files per process; 0 leaves the engine's
	// own. A host that was itself given fewer refuses to start containers.
	OpenFiles int64
	// LogFileMiB and LogFiles bound a container's log on disk; 0 means 64 MiB
	// times 4. Rotation discards lines that have not been read, so the product is
	// how far a reader may fall behind: with 256 MiB, an agent that is down for
	// a minute loses nothing of a job that writes 4 MiB/s, while a job that
	// floods its log still cannot fill the disk.
	LogFileMiB int64
	LogFiles   int
	// Subnets are the ranges from which walled networks take their subnets; see node.Network.
	Subnets []netip.Prefix
	// Mirrors are asked for content before its registry, in this order.
	Mirrors []Mirror
	// Owner distinguishes the containers that this process creates for its own questions from containers of other
	// agents on the same engine. It is the same after a restart, and no two running processes have the same.
	// "": a random one.
	Owner string
	// NetNS is the path of the network namespace of the engine; "": this process's own.
	NetNS string
}

// callTimeout bounds the calls that an engine in good health answers at once,
// so that a frozen engine is noticed as an error instead of a hang.
const callTimeout = 30 * time.Second

// bounds limits how long the engine may take to answer: for the list of containers, and for the calls during which a
// member occupies one of the few turns that the agent grants at a time. Without limits, an engine that never answers
// these calls would keep all other members from starting. With them, the other members only wait longer.
type bounds struct {
	// search is for the folders of outputs. A usual job takes some milliseconds for each mount and output.
	search time.Duration
	// accounts is for reading the accounts of one image, once there is a container for it.
	accounts time.Duration
	// create is for a container. The engine copies the image's files into its volumes.
	create time.Duration
	// network is for the creation of a network. The engine runs programs for the rules of each network, one network
	// after the other: many jobs that start at once on a busy machine wait for each other.
	network time.Duration
	// start is for a container, with its networks and devices.
	start time.Duration
	// look is for the state of one container of a list; all looks of a list end within twice that time. A restarted
	// agent lists before it registers. This bounds the looks alone: an engine that is slow to describe itself or to
	// give the list, before the looks, may still delay a registration beyond the end of the lease.
	look time.Duration
	// call is for each other call.
	call time.Duration
}

// usualBounds leave a busy machine the time that it needs.
var usualBounds = bounds{search: 10 * time.Second, accounts: 2 * time.Minute, create: 10 * time.Minute,
	network: 5 * time.Minute, start: 5 * time.Minute, look: 5 * time.Second, call: callTimeout}

// Engine is one Docker Engine. It may be used concurrently.
type Engine struct {
	*images
	*execs
	*lineReaders
	*hostReader
	api     *client.Client
	socket  string // path of the engine's socket
	log     *slog.Logger
	options Options
	starts  keyedMutex
	kernel  kernelLog

	accounts *accounts
	bounds   bounds
	warned   sync.Map     // warnings of the engine that were logged already
	cores    atomic.Int64 // of the machine, as the engine said last; 0: not asked yet

	unanswered unanswered
}

var _ node.Runtime = (*Engine)(nil)

// Open returns the engine behind host, a unix:// address; empty means Docker's
// usual socket. It does not connect: an engine that is down fails the first
// call, and serves later ones once it is up.
func Open(host string, o Options) (*Engine, error) {
	if host == "" {
		host = client.DefaultDockerHost
	}
	if !strings.HasPrefix(host, "unix://") {
		return nil, fmt.Errorf("docker host %q: allowed are unix:// sockets only, because the socket is as good "+
			"as root", host)
	}
	api, err := client.NewClientWithOpts(client.WithHost(host), client.WithAPIVersionNegotiation())
	if err != nil {
		return nil, fmt.Errorf("open docker engine %s: %w", host, err)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.LogFileMiB == 0 {
		o.LogFileMiB = 64
	}
	if o.LogFiles == 0 {
		o.LogFiles = 4
	}
	if o.Owner == "" {
		o.Owner = rand.Text()
	}
	e := &Engine{
		images: &images{api: api, log: o.Logger, mirrors: o.Mirrors},
		api:    api, socket: strings.TrimPrefix(host, "unix://"), log: o.Logger, options: o, kernel: kernellog.Kmsg{},
		accounts: newAccounts(api, o.Owner), bounds: usualBounds,
	}
	e.execs, e.lineReaders, e.hostReader = &execs{e}, &lineReaders{e}, &hostReader{e}
	return e, nil
}

// Info reports the engine's version and the machine's size.
func (e *Engine) Info(ctx context.Context) (node.RuntimeInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	info, err := e.api.Info(ctx)
	if err != nil {
		return node.RuntimeInfo{}, fmt.Errorf("describe docker engine: %w", err)
	}
	e.cores.Store(int64(info.NCPU))
	id, err := e.engineID(ctx, info)
	if err != nil {
		return node.RuntimeInfo{}, err
	}
	return node.RuntimeInfo{
		Name:        "docker",
		Version:     info.ServerVersion,
		CPUMilli:    int64(info.NCPU) * 1000,
		MemoryMiB:   info.MemTotal >> 20,
		DiskMiB:     freeMiB(info.DockerRootDir),
		LiveRestore: info.LiveRestoreEnabled,
		EngineID:    id,
		DataRoot:    info.DockerRootDir,
		StartedAt:   processStart(e.socket),
	}, nil
}

// engineID names the engine's data root. Up to 20.10 the engine's own id comes
// from a key in /etc/docker, which all engines of a machine share and which
// outlives the data root; the id of the network "none" is made at random with
// each new data root and stays with it.
func (e *Engine) engineID(ctx context.Context, info system.Info) (string, error) {
	none, err := e.api.NetworkInspect(ctx, "none", network.InspectOptions{})
	if err != nil {
		return "", fmt.Errorf("identify docker engine: %w", err)
	}
	return info.ID + "/" + none.ID[:min(12, len(none.ID))], nil
}

// freeMiB returns the space that unprivileged writers may still use below a folder, 0 if the
// folder's file system does not answer.
func freeMiB(folder string) int64 {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(folder, &fs); err != nil {
		return 0
	}
	return int64(fs.Bavail) * fs.Bsize >> 20
}

// Close abandons pulls in progress, waits for their goroutines and releases the
// connections. It may be called more than once.
func (e *Engine) Close() error {
	e.pulls.close()
	if err := e.api.Close(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("close docker engine: %w", err)
	}
	return nil
}

// keyedMutex is a mutex per key.
type keyedMutex struct {
	mu    sync.Mutex
	locks map[string]*keyLock
}

// keyLock is the lock of one key. It is dropped with its last user.
type keyLock struct {
	sync.Mutex
	users int
}

// lock returns the function that unlocks.
func (k *keyedMutex) lock(key string) func() {
	k.mu.Lock()
	if k.locks == nil {
		k.locks = make(map[string]*keyLock)
	}
	l := k.locks[key]
	if l == nil {
		l = &keyLock{}
		k.locks[key] = l
	}
	l.users++
	k.mu.Unlock()
	l.Lock()
	return func() {
		l.Unlock()
		k.mu.Lock()
		defer k.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(k.locks, key)
		}
	}
}
