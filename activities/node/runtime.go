package node

import (
	"context"
	"errors"
	"io"
	"time"
)

// Runtime is the container engine of one machine, as narrow as the agent needs
// it. Two implementations exist: internal/machine/docker (the Docker Engine) and
// fakeruntime.Fake; both pass runtimetest.Suite. Every method may be called
// concurrently and is safe to repeat: "already so" is success. Containers are
// addressed by name, because the name is the local fence: an engine refuses a
// second container of the same name.
type Runtime interface {
	// Info reports the engine and what the machine has.
	Info(ctx context.Context) (RuntimeInfo, error)
	// EnsureImage makes the image usable, without a pull if it is already here.
	// It returns the digest under which a registry serves it, "" for an image that
	// was put here without one.
	// Errors wrap ErrImageNotFound, ErrImageMismatch or ErrImageUnavailable.
	EnsureImage(ctx context.Context, ref string, auth *RegistryAuth) (digest string, err error)
	// ImageBytes is the size of an image that EnsureImage would not have to pull, as
	// the engine reckons it; ErrNoImage if it is not here.
	ImageBytes(ctx context.Context, ref string) (int64, error)
	// Create makes the container but does not start it. If one of this name
	// exists it is returned unchanged with ErrExists, for the caller to adopt
	// after comparing labels. An engine that was asked makes the container even
	// if ctx ends before it answers: whoever must leave none behind waits.
	Create(ctx context.Context, spec ContainerSpec) (Container, error)
	// Start starts a created container; starting a running or exited one is no
	// error and changes nothing.
	Start(ctx context.Context, name string) error
	// Wait blocks until the container has exited and returns its final state.
	// ErrNoContainer if it does not exist (any more).
	Wait(ctx context.Context, name string) (Container, error)
	// Inspect returns the container's present state, ErrNoContainer if absent.
	Inspect(ctx context.Context, name string) (Container, error)
	// List returns all containers, running or not, that carry every given label.
	List(ctx context.Context, labels map[string]string) ([]Container, error)
	// Unstarted lists the containers that were created and never started, of those
	// that carry every given label. It costs little, however many others there are.
	Unstarted(ctx context.Context, labels map[string]string) ([]Container, error)
	// Probe asks the engine for its networks and for a few of the containers that
	// carry every given label: it costs little, and takes locks that the start and
	// the end of every container need. It returns an error if the engine fails, or
	// ctx ends first.
	Probe(ctx context.Context, labels map[string]string) error
	// Signal sends a signal such as "SIGUSR1" to the container's process;
	// no error if it has already exited.
	Signal(ctx context.Context, name, signal string) error
	// Stop sends SIGTERM and, if the container still runs after grace, SIGKILL,
	// and returns once it has exited.
	Stop(ctx context.Context, name string, grace time.Duration) error
	// Logs calls emit for every line the container wrote at or after since (zero:
	// from the start), in order, until the container has exited and its last
	// line was delivered (follow) or until the lines written so far were
	// delivered. It stops early if emit returns an error, and returns that error.
	// The engine's own time stamps are kept, so a second read gives the same lines.
	Logs(ctx context.Context, name string, since time.Time, follow bool, emit func(LogLine) error) error
	// CopyOut returns a tar of what lies at an absolute path in a container that
	// has ended: of a folder the folder itself first and then what is in it, each
	// name beginning with the path's last part. ErrNoPath if nothing is there,
	// or the path leads nowhere. The caller closes it.
	CopyOut(ctx context.Context, name, path string) (io.ReadCloser, error)
	// Remove deletes a container and its writable layer, running or not; an
	// absent one is no error.
	Remove(ctx context.Context, name string) error
	// EnsureNetwork makes a network that containers can be created on, unless it
	// is there; several callers at once make one. On it a container is reached
	// by its name.
	EnsureNetwork(ctx context.Context, n Network) error
	// RemoveNetwork removes a network on which no container is, in whatever
	// state, and returns ErrNetworkInUse where one is, as far as containers carry
	// the network's labels; an absent one is no error.
	RemoveNetwork(ctx context.Context, name string) error
	// Networks lists the networks that carry every given label.
	Networks(ctx context.Context, labels map[string]string) ([]Network, error)
	// Close releases the client's connections. Containers are untouched.
	io.Closer
}

// Errors a Runtime wraps; callers branch on them with errors.Is.
var (
	// ErrImageNotFound: the registry answered that there is no such image, or
	// that this caller may not have it (404, 401, 403). Trying again is useless.
	ErrImageNotFound = errors.New("image not found")
	// ErrImageUnavailable: the registry could not be reached, or answered 429 or
	// 5xx, or the machine could not store the image. Trying again may help.
	ErrImageUnavailable = errors.New("image unavailable")
	// ErrImageMismatch: what arrived is not what the digest says. Somebody has
	// changed the image, or what lies between.
	ErrImageMismatch = errors.New("image does not match its digest")
	// ErrNoImage: the image is not on this machine.
	ErrNoImage = errors.New("no such image here")
	// ErrNoContainer: no container of this name exists.
	ErrNoContainer = errors.New("no such container")
	// ErrNoPath: nothing lies at that path in the container.
	ErrNoPath = errors.New("no such path")
	// ErrExists: a container of this name exists already.
	ErrExists = errors.New("container exists")
	// ErrBadCommand: the container cannot start because of its own spec, such as
	// an executable that is not in the image (exit codes 126 and 127).
	ErrBadCommand = errors.New("command cannot start")
	// ErrNetworkInUse: a container is on the network.
	ErrNetworkInUse = errors.New("network is in use")
	// ErrDevice: the engine could not give the container its GPUs. The machine is
	// to blame, and must not be tried again for GPU work.
	ErrDevice = errors.New("device request refused")
)

// RuntimeInfo describes an engine and its machine.
type RuntimeInfo struct {
	Name        string // "docker" or "fake"
	Version     string // engine version
	CPUMilli    int64  // cores x 1000
	MemoryMiB   int64
	DiskMiB     int64 // free bytes of the folder that holds the containers
	LiveRestore bool
	EngineID    string // changes when the engine's data root changes
	DataRoot    string // folder of the machine where the engine keeps all it has; "": not known
	// StartedAt is when the engine's process began; zero if that cannot be told.
	// Without LiveRestore a container that began before it ended with the engine,
	// or earlier.
	StartedAt time.Time
}

// ContainerSpec is everything the engine is told about a container. The
// security defaults (capabilities dropped, no new privileges, memory without
// swap, init process, no restart) are the Runtime's own and cannot be changed
// from here.
type ContainerSpec struct {
	Name       string
	Labels     map[string]string
	Image      string
	Entrypoint []string // nil: the image's own
	Command    []string // nil: the image's own
	Env        map[string]string
	WorkingDir string // "": the image's own
	CPUMilli   int64
	MemoryMiB  int64
	ShmMiB     int64    // 0: the engine's default of 64 MiB
	PidsLimit  int64    // 0: 4096
	GPUs       []string // device UUIDs; only these are visible inside
	Mounts     []Mount
	Network    string // "": the engine's own; HostNetwork; else one by name
}

// HostNetwork puts a container on its host's own network.
const HostNetwork = "host"

// Network is a network between containers of one engine.
type Network struct {
	Name      string
	Labels    map[string]string
	CreatedAt time.Time // as found
}

// Mount binds a folder that the agent owns into a container. Users cannot name
// host paths, so Host always lies in the agent's own state folder.
type Mount struct {
	Host     string
	Target   string
	ReadOnly bool
}

// RegistryAuth is a registry login, used only to pull.
type RegistryAuth struct{ Username, Password string }

// ContainerState is where a container stands.
type ContainerState string

// The states of a container.
const (
	ContainerCreated ContainerState = "created"
	ContainerRunning ContainerState = "running"
	ContainerExited  ContainerState = "exited"
)

// Container is what the engine knows about one container.
type Container struct {
	ID        string
	Name      string
	Labels    map[string]string
	State     ContainerState
	ExitCode  int
	OOMKilled bool   // the kernel killed a process of it for memory
	Error     string // the engine's own word on a failed start
	// Signaled: a signal that ends processes (HUP, INT, QUIT, TERM, KILL) reached
	// it through the engine: somebody's call, or the engine's own shutdown. False
	// if the engine does not remember.
	Signaled   bool
	PID        int // of its first process on the host, while running
	StartedAt  time.Time
	FinishedAt time.Time
}

// LogLine is one line a container wrote.
type LogLine struct {
	At     time.Time // the engine's stamp, nanoseconds
	Stderr bool
	Text   string // without the newline
}
