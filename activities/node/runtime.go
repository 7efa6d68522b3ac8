package node

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"time"

	"berth/wire"
)

// Runtime is the container engine of one machine, as narrow as the agent needs. Two
// implementations exist: internal/machine/docker (the Docker Engine) and fakeruntime.Fake;
// both pass runtimetest.Suite. Every method may be called concurrently and is safe to
// repeat: "already so" is success. Containers are addressed by name, because the name is
// the local fence: an engine refuses a second container of the same name.
type Runtime interface {
	// Info returns the engine's identity and the machine's capacity.
	Info(ctx context.Context) (RuntimeInfo, error)
	// EnsureImage makes the image usable, without a pull if the machine has it already: then
	// nobody has checked the login. With fresh it pulls in any case, which takes the image that
	// the name has at the registry now. Errors wrap ErrImageNotFound, ErrImageMismatch or
	// ErrImageUnavailable.
	EnsureImage(ctx context.Context, ref string, auth *RegistryAuth, fresh bool) (Image, error)
	// CheckImage asks the registry of ref for the manifest with this digest, and returns nil if
	// the registry serves the manifest to this login (nil: anonymous). It pulls nothing. Errors
	// are as of a pull: a refusal wraps ErrImageNotFound, a silent registry ErrImageUnavailable.
	CheckImage(ctx context.Context, ref, digest string, auth *RegistryAuth) error
	// ResolveTag asks the registry of ref, a reference without a digest, for the digest that the
	// tag has there now. It pulls nothing, and returns the errors of CheckImage.
	ResolveTag(ctx context.Context, ref string, auth *RegistryAuth) (digest string, err error)
	// PullPercent returns the completed share of a pull under way, from 0 to 100. known is
	// false if the image is not being pulled, or the engine has not reported its size yet.
	PullPercent(ref string) (percent int, known bool)
	// ImageBytes returns the size, as the engine computes it, of an image that EnsureImage
	// would not have to pull; ErrNoImage for any other image.
	ImageBytes(ctx context.Context, ref string) (int64, error)
	ImageRemover
	HostReader
	// Create creates the container but does not start it. If one of this name exists,
	// Create returns that one unchanged with ErrExists, for the caller to adopt after
	// comparing labels. The engine may still create the container after ctx has ended: a
	// caller that must leave no container behind waits for the answer.
	Create(ctx context.Context, spec ContainerSpec) (Container, error)
	// Start starts a created container; starting a running or exited one is no error and
	// changes nothing.
	Start(ctx context.Context, name string) error
	// Wait blocks until the container has exited and returns its final state, or
	// ErrNoContainer if the container does not exist or is removed meanwhile.
	Wait(ctx context.Context, name string) (Container, error)
	// Inspect returns the container's present state, ErrNoContainer if absent.
	Inspect(ctx context.Context, name string) (Container, error)
	// List returns all containers, running or not, that carry every given label. A container whose state the
	// engine does not give in time is listed as ContainerUnknown, so that it holds up no other one.
	List(ctx context.Context, labels map[string]string) ([]Container, error)
	// Unstarted returns the containers with every given label that were created and never
	// started. It is cheap, however many other containers exist. A container whose state the engine does not
	// give is left out.
	Unstarted(ctx context.Context, labels map[string]string) ([]Container, error)
	// Probe asks the engine for its networks and for a few of the containers that carry
	// every given label. It is cheap, and takes locks that the start and the end of every
	// container need, so it shows an engine that hangs. It returns an error if the engine
	// fails, or ctx ends first.
	Probe(ctx context.Context, labels map[string]string) error
	// Signal sends a signal such as "SIGUSR1" to the container's process;
	// no error if it has already exited.
	Signal(ctx context.Context, name, signal string) error
	// Stop sends SIGTERM and, if the container still runs after grace, SIGKILL,
	// and returns once it has exited.
	Stop(ctx context.Context, name string, grace time.Duration) error
	// Logs calls emit for every line that the container wrote at or after since (zero: from
	// the start), in order. With follow it returns once the container has exited and its
	// last line was delivered, else once the lines written so far were delivered. An error
	// of emit stops Logs and is returned. The engine's own time stamps are kept, so a
	// second read gives the same lines.
	Logs(ctx context.Context, name string, since time.Time, follow bool, emit func(LogLine) error) error
	// CopyOut returns a tar of the file or folder at an absolute path in a container that
	// has ended: a folder first, then its contents, each name beginning with the path's
	// last part. ErrNoPath if the path does not exist or cannot be resolved. The caller
	// closes the tar.
	CopyOut(ctx context.Context, name, path string) (io.ReadCloser, error)
	// Remove deletes a container and its writable layer, running or not; an absent
	// container is no error.
	Remove(ctx context.Context, name string) error
	// EnsureNetwork creates a network for containers unless it exists; concurrent callers
	// create one. Containers on the network reach each other by name. It returns the network
	// as the engine has it, whose labels beyond cluster, job and attempt may differ from those
	// asked for. It returns ErrNoNetwork if the name is another's, or no subnet is free.
	EnsureNetwork(ctx context.Context, n Network) (Network, error)
	// RemoveNetwork removes a network without containers. It returns ErrNetworkInUse if a
	// container in any state is on the network, as far as containers carry the network's
	// labels of cluster, job and attempt; an absent network is no error.
	RemoveNetwork(ctx context.Context, name string) error
	// Networks returns the networks that carry every given label.
	Networks(ctx context.Context, labels map[string]string) ([]Network, error)
	LayerMeter
	AccountReader
	FolderGiver
	Executor
	// Close releases the client's connections. Containers are untouched.
	io.Closer
}

// ImageRemover removes images.
type ImageRemover interface {
	// RemoveImage removes a name of an image from the machine, and the content unless another name
	// needs it. id is the ID that EnsureImage returned. RemoveImage returns ErrImageInUse if a
	// container in any state was created from the image, or if the name is a digest and a tag of the same
	// repository needs it; and ErrNoImage if the name is not known here, or means another image by now.
	RemoveImage(ctx context.Context, ref, id string) error
}

// LayerMeter measures the space that containers use outside of mounts.
type LayerMeter interface {
	// LayerUse returns the disk space of the container's writable layer: allocated bytes, and
	// inodes, or -1 if the engine does not count inodes. LayerUse may stop early once it has
	// counted more than enough bytes; with enough = 0 it counts all. The cost grows with the
	// number of files. If ctx ends first, the error is ctx's and the counts are lower bounds.
	// If the container does not exist, the error is ErrNoContainer.
	LayerUse(ctx context.Context, name string, enough int64) (bytes, inodes int64, err error)
}

// Errors that a Runtime wraps; callers branch with errors.Is.
var (
	// ErrImageNotFound: the registry answered that no such image exists, or that this
	// caller may not have it (404, 401, 403). A retry is useless.
	ErrImageNotFound = errors.New("image not found")
	// ErrImageUnavailable: the registry could not be reached, or answered 429 or 5xx, or
	// the machine could not store the image. A retry may help.
	ErrImageUnavailable = errors.New("image unavailable")
	// ErrImageMismatch: the received image does not have the requested digest. The image
	// was changed, at the registry or on the way.
	ErrImageMismatch = errors.New("image does not match its digest")
	// ErrNoImage: the image is not on this machine.
	ErrNoImage = errors.New("no such image here")
	// ErrImageInUse: a container was created from the image, or another name of it needs this one.
	ErrImageInUse = errors.New("image is in use")
	// ErrNoContainer: no container of this name exists.
	ErrNoContainer = errors.New("no such container")
	// ErrNoPath: no file or folder exists at that path in the container.
	ErrNoPath = errors.New("no such path")
	// ErrBadPath: the image leads a path into a read-only mount, a mount into another one, or paths
	// through too many folders. Every engine would refuse it.
	ErrBadPath = errors.New("path cannot be given to a user")
	// ErrExists: a container of this name exists already.
	ErrExists = errors.New("container exists")
	// ErrBadCommand: the container cannot start because of its own spec, such as
	// an executable that is not in the image (exit codes 126 and 127).
	ErrBadCommand = errors.New("command cannot start")
	// ErrBadImage: the configuration of the image, or a link in it, asks for a container that no engine can start,
	// such as a user that the image does not have, or a folder that cannot be created in /proc.
	ErrBadImage = errors.New("image cannot start on any machine")
	// ErrUnmappedUser: the engine runs containers in a user namespace, whose mapping does not have the container's user
	// or group. The machine works, and its operator has to give tenants other numbers or enlarge the mapping.
	ErrUnmappedUser = errors.New("user is outside of the engine's mapping of users")
	// ErrNetworkInUse: a container is on the network.
	ErrNetworkInUse = errors.New("network is in use")
	// ErrNoNetwork: no network can be made for the job here. The machine is not at fault.
	ErrNoNetwork = errors.New("no network for the job")
	// ErrDevice: the engine could not give the container its GPUs. The fault is the
	// machine's, which must not be tried again for GPU work.
	ErrDevice = errors.New("device request refused")
)

// HostReader describes how a Runtime separates containers from the host.
type HostReader interface {
	// Host returns versions and settings. withGPUs states that containers may reach GPUs of the machine.
	Host(ctx context.Context, withGPUs bool) (wire.HostFacts, error)
}

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
	// StartedAt is the start of the engine's process; zero if unknown. Without LiveRestore,
	// a container that started before this time ended with the previous engine process, or
	// earlier.
	StartedAt time.Time
}

// ContainerSpec holds all that a caller chooses for a container. The security defaults
// (capabilities dropped, no new privileges, memory without swap, init process, no restart)
// are the Runtime's own and cannot be changed by a spec.
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
	Network    string // "": the engine's default; HostNetwork; else a name
	User       string // UID:GID of all processes; "": the user that the image names
	// ReadOnlyRoot leaves the container no writable file system but its mounts, /dev/shm and a /tmp of TmpMiB in
	// memory, which counts against MemoryMiB.
	ReadOnlyRoot bool
	TmpMiB       int64 // above 0 with ReadOnlyRoot, else 0
	// Resolvers are the name servers of the container; none: the engine chooses.
	Resolvers []netip.Addr
}

// HostNetwork puts a container on its host's own network.
const HostNetwork = "host"

// Network is a network between containers of one engine.
type Network struct {
	Name   string
	Labels map[string]string
	// Hosts is the number of containers that a walled network must have addresses for. A walled
	// network has a subnet of the runtime's own range, and the caller's rules decide about its
	// traffic. 0: the network is not walled; the engine chooses the subnet and allows all traffic.
	Hosts int

	// Set by the runtime.
	CreatedAt time.Time
	Bridge    string       // its interface on the host; "": none
	Subnet    netip.Prefix // of its containers; zero: none
}

// Mount binds a folder that the agent owns into a container. Users cannot name
// host paths, so Host always lies in the agent's own state folder.
type Mount struct {
	Host     string
	Target   string
	ReadOnly bool
}

// RegistryAuth is a registry login, used only to pull an image and to check the right to pull it.
type RegistryAuth struct{ Username, Password string }

// Image is an image that a machine has.
type Image struct {
	// Digest is the digest under which the registry of the reference serves the image, "" for an
	// image that came from no registry.
	Digest string
	// Pulled is true if the caller's login has just been used to pull the image.
	Pulled bool
	// ID is the engine's own id of a pulled image, "" for others.
	ID string
}

// ContainerState is the stage of a container's life.
type ContainerState string

// The states of a container.
const (
	ContainerCreated ContainerState = "created"
	ContainerRunning ContainerState = "running"
	ContainerExited  ContainerState = "exited"
	// ContainerUnknown is the state of a container for which the engine does not answer. The container exists, and
	// may run. Only List returns it, with the container's id, name and labels alone.
	ContainerUnknown ContainerState = "unknown"
)

// Container is the engine's record of one container.
type Container struct {
	ID        string
	Name      string
	Labels    map[string]string
	State     ContainerState
	ExitCode  int
	OOMKilled bool   // the kernel killed one of its processes for lack of memory
	Error     string // the engine's message about a failed start
	// Signaled: a signal that ends processes (HUP, INT, QUIT, TERM, KILL) reached the
	// container through the engine: from a caller, or from the engine's own shutdown. False
	// if the engine does not record signals.
	Signaled bool
	PID      int // of its first process on the host; 0 unless running
	// Address is the address of the container on its own network; "" unless running, and for
	// a container on the host's network.
	Address string
	// Subnet is the range of addresses of that network; not valid without an address.
	Subnet     netip.Prefix
	StartedAt  time.Time
	FinishedAt time.Time
}

// LogLine is one line of a container's output.
type LogLine struct {
	At     time.Time // the engine's stamp, nanoseconds
	Stderr bool
	Text   string // without the newline
}
