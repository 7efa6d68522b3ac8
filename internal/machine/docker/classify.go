package docker

import (
	"context"
	"errors"
	"fmt"
	"regexp"

	cerrdefs "github.com/containerd/errdefs"

	"berth/activities/node"
)

// The engine passes on a registry's error as text: up to 20.10 even a 401 or a 429
// arrives as an HTTP 500 of the engine, or in the middle of a 200. The
// patterns below contain a space or a colon followed by one, which no image
// name can, so that a repository called "denied" does not decide anything.

// temporary is matched before the permanent faults and wins where both match, because a needless
// retry costs less than a job failed for good.
var temporary = regexp.MustCompile(`(?i)` +
	`toomanyrequests:|too many requests|error parsing http (429|5\d\d) |` +
	`unexpected (http )?status.*?: (429|5\d\d) |` +
	`no space left on device|` +
	`connection refused|connection reset|i/o timeout|no such host|` +
	`timeout exceeded|tls handshake timeout|server misbehaving|` +
	`network is unreachable|no route to host`)

// mismatch matches the engine's errors about content that differs from its digest.
var mismatch = regexp.MustCompile(`(?i)` +
	`verification failed for digest|does not match provided manifest digest|` +
	`unexpected commit digest|failed to validate .*digest`)

// permanent matches a registry's errors that a repeat would not change.
var permanent = regexp.MustCompile(`(?i)` +
	`manifest unknown|name unknown:|repository name not known|` +
	`pull access denied|access forbidden|` +
	`: denied: |^denied: |: unauthorized: |^unauthorized: |` +
	`authentication required|no basic auth credentials|incorrect username or password|` +
	`error parsing http 40[0134] |` +
	`unexpected (http )?status.*?: 40[0134] |` +
	`no matching manifest for|not match the specified platform|` +
	`unsupported media type|unsupported manifest|manifest invalid:`)

// classifyPull reports whether a failed pull is worth another try. Unknown errors
// are.
func classifyPull(ref string, err error) error {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("pull image %s: %w: %w", ref, node.ErrImageUnavailable, err)
	}
	text := err.Error()
	kind := node.ErrImageUnavailable
	switch {
	case mismatch.MatchString(text):
		kind = node.ErrImageMismatch
	case temporary.MatchString(text):
	case permanent.MatchString(text),
		cerrdefs.IsNotFound(err), cerrdefs.IsUnauthorized(err),
		cerrdefs.IsPermissionDenied(err), cerrdefs.IsInvalidArgument(err):
		kind = node.ErrImageNotFound
	}
	return fmt.Errorf("pull image %s: %w: %w", ref, kind, err)
}

// brokenEngine matches errors of containerd and of the engine about a program of their own, such as runc, that is
// missing or does not run. They read like errors about the job's command, and the machine is at fault.
var brokenEngine = regexp.MustCompile(`(?i)` +
	`unable to retrieve OCI runtime error|did not terminate succ?essfully|` +
	`failed to start shim: |exec: "docker-init": `)

// badImage matches errors of runc and of the engine about an image that no engine can start: about users that the image
// names and does not have, about files of accounts that cannot be read, and about a working folder, a volume or a mount
// behind a link that would have to be created in a file system of the kernel.
//
// A host with a read-only file system fails to create folders, too, and the image is not at fault. Most such errors
// name other folders than /proc, /sys and /dev of the container. But for each container the engine creates /dev/shm,
// /proc and the like in a layer of its own first. The path of this layer ends with "ID-init/merged" or "ID-init", and
// the path of a container's root with "ID/merged" or with an ID of 64 digits. So a name with a hyphen does not match.
var badImage = regexp.MustCompile(`(?i)` +
	`uids and gids must be in range|` +
	`unable to find (user|group|groups for spec) .*: ` +
	`(no matching entries in|.*is a directory(: unknown)?$|.*token too long(: unknown)?$)|` +
	`setup user: (stat /dev/null: )?no such file|can't mask paths: open /dev/null: no such file|` +
	`/dev/null inside container( caused)?: .*is a directory|` +
	`cannot be mounted because it is (inside /proc|not of type proc)|` +
	`change mount propagation through procfd: open o_path procfd: .*: no such file or directory|` +
	`is on the top of rootfs|` +
	`(container init( caused)?: mkdir(at)? |mkdir(at)? \S*/([^/\s-]+/merged|[0-9a-f]{64}))/(proc|sys|dev)/[^:]*: ` +
	`(no such file or directory|not a directory|read-only file system|operation not permitted|permission denied)|` +
	`cannot mount volume over existing file`)

// badCommand matches errors of runc and of the engine about an entry point that cannot be run, and about links of the
// image that lead in a circle at the place of a mount.
// With an init process the container usually starts all the same, and init exits 126 or 127.
var badCommand = regexp.MustCompile(`(?i)` +
	`executable file not found|exec format error|` +
	`exec: .*(no such file or directory|permission denied|is a directory)|` +
	`no command specified|` +
	`too many links in |too many levels of symbolic links|` +
	`chdir to cwd|cannot mkdir|not a directory`)

// badDevice matches errors of the engine, the NVIDIA hook or CDI about GPUs.
var badDevice = regexp.MustCompile(`(?i)` +
	`could not select device driver|` +
	`nvidia-container-cli|nvidia-container-runtime|libnvidia|` +
	`cdi device injection failed|unresolvable cdi devices|cdi .*(not enabled|not registered|unknown)`)

// unmappedUser matches errors of runc about a user or a group that the user namespace of the engine does not have.
var unmappedUser = regexp.MustCompile(`(?i)cannot set [ug]id to unmapped (user|group) in user namespace`)

// classifyStart names the culprit of a failed create or start.
func classifyStart(err error) error {
	switch text := err.Error(); {
	case unmappedUser.MatchString(text):
		return fmt.Errorf("%w: %w", node.ErrUnmappedUser, err)
	case badDevice.MatchString(text):
		return fmt.Errorf("%w: %w", node.ErrDevice, err)
	case brokenEngine.MatchString(text):
		return err
	case badImage.MatchString(text):
		return fmt.Errorf("%w: %w", node.ErrBadImage, err)
	case badCommand.MatchString(text):
		return fmt.Errorf("%w: %w", node.ErrBadCommand, err)
	default:
		return err
	}
}
